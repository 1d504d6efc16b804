"""The command export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homophily.atomic_io import read_metadata
from homophily.errors import UserError
from homophily.runs.adapter import TENSORS
from homophily.runs.reader import Run
from homophily.runs.stored_models import stored_models
from homophily.runs.writer import RunWriter


def export_model(
    run: Annotated[Path, typer.Argument(help="The folder of a run or of a peer, finished or not.")],
    file: Annotated[Path, typer.Argument(help="The safetensors file to write; with --adapter, the folder.")],
    peer: Annotated[
        str | None, typer.Option("--peer", help="The number or the name of the peer; not needed if there is only one.")
    ] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Only the LoRA adapters, in the format of peft.")] = False,
) -> None:
    """Write one peer's model as safetensors: the final one, or the one of the newest checkpoint."""
    found = Run(run)
    which = _which(found, peer)
    written = found.export_adapter(which, file) if adapter else found.export(which, file)
    print(written)
    if (
        note := _about_round(found, int(read_metadata(written / TENSORS if adapter else written)["round"]))
    ) is not None:
        print(note)


def _which(run: Run, peer: str | None) -> int | str:
    """The number or the name of a peer, as it was typed."""
    if peer is None:
        models = stored_models(run.path)
        if models is not None and models.peers > 1:
            raise UserError(f"this run has peers 0 to {models.peers - 1}: name one with --peer")
        return 0
    return int(peer) if peer.removeprefix("-").isdecimal() and peer not in run.names else peer


def _about_round(run: Run, round: int) -> str | None:
    """Of which round an exported model is, if it is not simply the final one."""
    if not run.finished or run.summary["rounds"] != round:
        return f"the model of round {round} of {run.config.rounds}: the run has not finished"
    newer = RunWriter(run.path).last_round
    return (
        None if newer <= round else f"the final model of round {round}; the run was extended, and is in round {newer}"
    )
