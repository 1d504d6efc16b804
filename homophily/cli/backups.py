"""The commands backup and restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homophily.runs import backup as backups

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A peer's state folder, or the folder of a run.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup, a tar file.")]


def back_up(folder: Folder, file: File) -> None:
    """Write a state folder to a new file, also while the peer runs. Private keys are left out."""
    made = backups.back_up(folder, file)
    print(f"{file}: {made.files} files, {made.bytes} bytes, round {made.round}")
    for name in made.left_out:
        print(f"left out, because it is a private key or a link: {name}")


def restore(
    file: File,
    folder: Folder,
    nothing_since: Annotated[
        bool, typer.Option("--nothing-since", help="With [privacy]: the peer has not run since this backup.")
    ] = False,
) -> None:
    """Write a backup to a new folder, and check the hash of every file."""
    made = backups.restore(file, folder, nothing_since)
    print(f"{folder}: {made.files} files, {made.bytes} bytes, round {made.round}")
