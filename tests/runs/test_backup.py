"""A backup of a run's folder: complete, checked by hash, also while the run goes on; nothing is overwritten."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from pathlib import Path

import pytest

import homophily
from homophily.errors import UserError
from homophily.runs.backup import MANIFEST, back_up, restore
from homophily.runs.writer import RunWriter

SMALL = {"peers": 4, "rounds": 3, "checkpoint": 1, "data": {"test": 10}, "method": {"name": "random", "k": 1}}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return homophily.run(SMALL, out=tmp_path_factory.mktemp("made") / "run").path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_restored_folder_equals_the_original_and_resumes(stored: Path, tmp_path: Path) -> None:
    made = back_up(stored, tmp_path / "run.tar")
    assert (made.round, made.left_out) == (3, ())
    assert restore(tmp_path / "run.tar", tmp_path / "again") == made
    assert contents(tmp_path / "again") == contents(stored)
    assert homophily.resume(tmp_path / "again", {"rounds": 4}).summary["rounds"] == 4


def test_a_backup_of_a_running_run_resumes_to_the_same_result(tmp_path: Path) -> None:
    keys = {**SMALL, "rounds": 60}
    running = threading.Thread(target=homophily.run, args=(keys,), kwargs={"out": tmp_path / "run"})
    running.start()
    taken = []
    while running.is_alive():
        if RunWriter(tmp_path / "run").begun:
            file = tmp_path / f"{len(taken)}.tar"
            taken.append((file, back_up(tmp_path / "run", file).round))
    running.join()
    midway = [file for file, round in taken if 0 < round < 60]
    assert midway, "no backup was taken while the run went on"
    for number, file in enumerate({midway[0], midway[len(midway) // 2], midway[-1]}):
        restore(file, tmp_path / f"restored-{number}")
        resumed = homophily.resume(tmp_path / f"restored-{number}")
        models = (resumed.path / "models.safetensors").read_bytes()
        assert models == (tmp_path / "run" / "models.safetensors").read_bytes()
        assert [line["round"] for line in resumed.metrics()] == list(range(1, 61))


def test_a_private_key_and_a_link_are_left_out(stored: Path, tmp_path: Path) -> None:
    restore_here(stored, tmp_path)
    (tmp_path / "run" / "me.key").write_text("-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n")
    (tmp_path / "run" / "link").symlink_to(tmp_path / "run" / "me.key")
    made = back_up(tmp_path / "run", tmp_path / "with-key.tar")
    assert set(made.left_out) == {"me.key", "link"}
    assert b"secret" not in (tmp_path / "with-key.tar").read_bytes()
    assert (tmp_path / "with-key.tar").stat().st_mode & 0o777 == 0o600


def restore_here(stored: Path, tmp_path: Path) -> None:
    back_up(stored, tmp_path / "copy.tar")
    restore(tmp_path / "copy.tar", tmp_path / "run")


def test_nothing_is_written_over(stored: Path, tmp_path: Path) -> None:
    restore_here(stored, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"copy\.tar already exists"):
        back_up(stored, tmp_path / "copy.tar")
    with pytest.raises(UserError, match="run already exists: name a new folder"):
        restore(tmp_path / "copy.tar", tmp_path / "run")
    with pytest.raises(UserError, match="is inside"):
        back_up(tmp_path / "run", tmp_path / "run" / "inside.tar")
    with pytest.raises(UserError, match=r"has no config\.toml"):
        back_up(tmp_path, tmp_path / "other.tar")
    assert contents(tmp_path) == before


def test_a_damaged_backup_is_refused_and_leaves_nothing(stored: Path, tmp_path: Path) -> None:
    back_up(stored, tmp_path / "whole.tar")
    whole = (tmp_path / "whole.tar").read_bytes()
    with tarfile.open(tmp_path / "whole.tar") as tar:
        places = {entry.name: entry.offset_data for entry in tar}
    models, end = places["models.safetensors"] + 200, places[MANIFEST]
    flipped = whole[:models] + bytes([whole[models] ^ 1]) + whole[models + 1 :]
    cases = {
        "models.safetensors is not what was backed up": flipped,
        "its end is missing": whole[: end - 512] + bytes(1024),
        "damaged": whole[: places["models.safetensors"] + 100],
        "not a backup": b"something else" * 100,
    }
    for message, content in cases.items():
        (tmp_path / "bad.tar").write_bytes(content)
        with pytest.raises(UserError, match=message):
            restore(tmp_path / "bad.tar", tmp_path / "restored")
        assert sorted(os.listdir(tmp_path)) == ["bad.tar", "whole.tar"]
    with pytest.raises(UserError, match=r"cannot read .*none\.tar"):
        restore(tmp_path / "none.tar", tmp_path / "restored")


@pytest.mark.parametrize(
    "manifest",
    [b"", b"[]", b"[" * 100_000, b'{"format": 1}', b'{"format": 1, "files": {}, "round": 0}',
     b'{"format": 1, "files": [], "round": 0, "left_out": []}'],
)  # fmt: skip
def test_a_damaged_list_of_files_is_refused_and_leaves_nothing(tmp_path: Path, manifest: bytes) -> None:
    entry = tarfile.TarInfo(MANIFEST)
    entry.size = len(manifest)
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.addfile(entry, io.BytesIO(manifest))
    with pytest.raises(UserError, match=r"bad\.tar is damaged: its list of files cannot be read"):
        restore(tmp_path / "bad.tar", tmp_path / "restored")
    assert os.listdir(tmp_path) == ["bad.tar"]


def test_a_folder_in_place_of_a_backup_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        restore(tmp_path, tmp_path / "restored")


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_an_entry_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(UserError, match="unexpected entry"):
        restore(tmp_path / "bad.tar", tmp_path / "restored")
    assert os.listdir(tmp_path) == ["bad.tar"]
