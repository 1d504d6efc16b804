"""Writes are atomic: after any failure, a file has its old or its new content."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from homophily.atomic_io import (
    DTYPES,
    Stacked,
    in_use,
    locked,
    plain,
    read_folder,
    read_json,
    read_metadata,
    read_tensors,
    write_folder,
    write_json,
    write_stacked,
    write_tensors,
    write_text,
)
from homophily.errors import UserError

OLD, NEW = {"w": torch.zeros(3)}, {"w": torch.ones(3)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_written_values_are_read_back(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "90°\n")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "90°\n"
    write_json(tmp_path / "a.json", {"°": [1, 2.5, None]})
    assert read_json(tmp_path / "a.json") == {"°": [1, 2.5, None]}
    view = torch.arange(6.0).view(2, 3).T  # not contiguous, and shares its memory
    write_tensors(tmp_path / "a.safetensors", {"x": view, "y": view[0]}, {"raw": "numbers"})
    found = read_tensors(tmp_path / "a.safetensors")
    assert torch.equal(found["x"], view)
    assert torch.equal(found["y"], view[0])
    assert read_metadata(tmp_path / "a.safetensors") == {"raw": "numbers"}
    write_folder(tmp_path / "deep" / "state", [NEW], {"round": 3})
    tensors, numbers = read_folder(tmp_path / "deep" / "state")
    assert torch.equal(tensors["w"], NEW["w"])
    assert numbers == {"round": 3}
    assert names(tmp_path) == ["a.json", "a.safetensors", "a.txt", "deep"]
    assert names(tmp_path / "deep") == ["state"]


def test_tensors_that_come_in_parts_are_written_as_one(tmp_path: Path) -> None:
    whole = {
        "a": torch.randn(7, 3, generator=torch.Generator().manual_seed(0)),
        "b": torch.arange(7, dtype=torch.int64),
        "c": torch.tensor([True, False] * 3 + [True]),
        "d": torch.arange(14, dtype=torch.bfloat16).view(7, 2, 1),
        "e": torch.zeros(0, 4, dtype=torch.float64),
    }
    parts = [{name: table[rows] for name, table in whole.items()} for rows in (slice(0, 2), slice(2, 2), slice(2, 7))]
    rows = {name: len(table) for name, table in whole.items()}
    write_stacked(tmp_path / "parts", Stacked(iter(parts), rows))
    write_tensors(tmp_path / "whole", whole)
    found, expected = read_tensors(tmp_path / "parts"), read_tensors(tmp_path / "whole")
    assert found.keys() == expected.keys()
    for name, table in found.items():
        assert table.dtype == expected[name].dtype
        assert torch.equal(table, expected[name]), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_of_every_type_are_written_as_one_tensor(dtype: torch.dtype, tmp_path: Path) -> None:
    whole = torch.arange(6).view(3, 2).to(dtype)
    write_stacked(tmp_path / "parts", Stacked([{"w": whole[:1]}, {"w": whole[1:]}], {"w": 3}))
    found = read_tensors(tmp_path / "parts")["w"]
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), whole.view(torch.uint8))


def test_one_row_of_an_expanded_tensor_is_written(tmp_path: Path) -> None:
    """The counters of BatchNorm of a single peer have one element and the stride 0."""
    counters = torch.tensor(5).expand(1)
    write_stacked(tmp_path / "parts", Stacked([{"w": counters}], {"w": 1}))
    assert torch.equal(read_tensors(tmp_path / "parts")["w"], counters)


def test_parts_without_tensors_are_an_empty_file_of_tensors(tmp_path: Path) -> None:
    write_stacked(tmp_path / "parts", Stacked([{}, {}], {}))
    assert read_tensors(tmp_path / "parts") == {}


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (0, 2), (1, 6), (2, 5), (5, 7)])
def test_some_rows_of_a_folder_are_read_wherever_the_shards_end(start: int, stop: int, tmp_path: Path) -> None:
    whole, log = torch.arange(14).view(7, 2), torch.arange(5)
    cuts = [slice(0, 2), slice(2, 5), slice(5, 7)]
    write_folder(tmp_path / "state", [{"w": whole[cut], "log": log[cut]} for cut in cuts], {"round": 3})
    tensors, numbers = read_folder(tmp_path / "state", slice(start, stop), lambda name: name == "log")
    assert numbers == {"round": 3}
    assert torch.equal(tensors["w"], whole[start:stop])
    assert torch.equal(tensors["log"], log)


WRITERS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "text": (lambda path: write_text(path, "old"), lambda path: write_text(path, "new")),
    "json": (lambda path: write_json(path, ["old"]), lambda path: write_json(path, ["new"])),
    "tensors": (lambda path: write_tensors(path, OLD), lambda path: write_tensors(path, NEW)),
    "stacked": (
        lambda path: write_stacked(path, Stacked([OLD], {"w": 3})),
        lambda path: write_stacked(path, Stacked([NEW], {"w": 3})),
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_failure_in_between_keeps_the_old_file(
    kind: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = WRITERS[kind]
    old(tmp_path / "file")
    before = (tmp_path / "file").read_bytes()

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(step, full)
        with pytest.raises(UserError, match=r"cannot write .*file: No space left on device; what was written before"):
            new(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == before
    assert names(tmp_path) == ["file"]
    new(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() != before


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_folder_that_cannot_be_written_is_absent(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(step, full)
        with pytest.raises(UserError, match="No space left on device"):
            write_folder(tmp_path / "state", [NEW], {})
    assert names(tmp_path) == []
    write_folder(tmp_path / "state", [NEW], {})
    assert names(tmp_path / "state") == ["state.json", "state.safetensors"]


def killed(step: str, write: Callable[[], None]) -> None:
    """Write in a separate process that is killed at a step."""

    def die(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step, die)
            write()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")


@needs_fork
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_process_killed_in_between_leaves_the_old_file(kind: str, step: str, tmp_path: Path) -> None:
    old, new = WRITERS[kind]
    path = tmp_path / "file"
    old(path)
    before = path.read_bytes()
    killed(step, lambda: new(path))
    assert path.read_bytes() == before
    assert names(tmp_path) == ["file", "file.part"]  # the partial file does no harm
    new(path)
    assert path.read_bytes() != before
    assert names(tmp_path) == ["file"]


@needs_fork
@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_folder_is_absent_if_the_process_was_killed(step: str, tmp_path: Path) -> None:
    killed(step, lambda: write_folder(tmp_path / "state", [NEW], {"round": 1}))
    assert names(tmp_path) == ["state.part"]
    write_folder(tmp_path / "state", [NEW], {"round": 2})
    assert read_folder(tmp_path / "state")[1] == {"round": 2}
    assert names(tmp_path) == ["state"]


def test_a_file_of_tensors_can_be_read_by_those_who_can_read_its_folder(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_tensors(tmp_path / "a.safetensors", NEW)
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_folder_is_in_use_while_it_is_locked(tmp_path: Path) -> None:
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert in_use(tmp_path)
    assert not in_use(tmp_path)
    assert not in_use(tmp_path / "missing")


def test_a_locked_folder_is_refused_to_a_second_process(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "folder"
    with locked(folder):
        assert folder.is_dir()
        with pytest.raises(UserError, match="folder is in use by another process"), locked(folder):
            pass
        with locked(tmp_path / "other"):
            pass
    with pytest.raises(ValueError, match="in it"), locked(folder):
        raise ValueError("in it")
    with locked(folder):  # free again, also after an error
        pass


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match=r"cannot write .*file/folder: Not a directory"),
        locked(tmp_path / "file/folder"),
    ):
        pass


def test_numbers_that_are_not_finite_become_null() -> None:
    values = {"a": [1.5, math.nan, (math.inf, -math.inf)], "b": {"c": math.nan}, "d": "nan", "e": 3, "f": True}
    assert plain(values) == {"a": [1.5, None, [None, None]], "b": {"c": None}, "d": "nan", "e": 3, "f": True}


@pytest.mark.parametrize("text", ["", "{", '{"a": 1', "\xff"])
def test_a_damaged_json_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"a\.json is damaged: "):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("length", [0, 4, 40, -1])
def test_a_damaged_file_of_tensors_is_named(length: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, NEW)
    path.write_bytes(path.read_bytes()[:length])
    for read in (read_tensors, read_metadata):
        with pytest.raises(UserError, match=r"a\.safetensors is damaged: "):
            read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*a\.json: No such file or directory"):
        read_json(tmp_path / "a.json")
    with pytest.raises(UserError, match=r"cannot read .*a\.safetensors: No such file or directory"):
        read_tensors(tmp_path / "a.safetensors")
