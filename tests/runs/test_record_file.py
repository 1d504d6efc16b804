"""A record file keeps whole entries after a crash, stays below its limit, and a damaged one is refused."""

from __future__ import annotations

import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homophily.errors import UserError
from homophily.runs.record_file import Content, Entry, RecordFile, decoded, read_entries, thinned

LIMIT = 4096


def numbers(round: int, size: int = 8) -> dict[str, np.ndarray]:
    return {"x": np.full(size, round, dtype=np.float32)}


def written(path: Path, rounds: range, limit: int = LIMIT) -> Content:
    file = RecordFile(path, limit)
    for round in rounds:
        file.add(round, numbers(round))
    file.flush()
    return read_entries(path)


def rounds_of(content: Content) -> list[int]:
    return [entry.round for entry in content.entries]


def test_entries_are_read_as_they_were_added(tmp_path: Path) -> None:
    found = written(tmp_path / "a", range(1, 4))
    assert (found.every, rounds_of(found)) == (1, [1, 2, 3])
    assert decoded(tmp_path / "a", found.entries[1])["x"].tolist() == [2.0] * 8
    assert rounds_of(read_entries(tmp_path / "missing")) == []


def test_entries_wait_in_memory_until_they_are_flushed(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "a", LIMIT)
    file.add(1, numbers(1))
    assert not (tmp_path / "a").exists()
    file.flush()
    assert rounds_of(read_entries(tmp_path / "a")) == [1]


def test_a_file_cut_at_any_byte_has_the_entries_before_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    written(path, range(1, 4))
    whole = path.read_bytes()
    ends = [16 + sum(len(e.frame) for e in read_entries(path).entries[:k]) for k in range(4)]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        expected = [round for round in (1, 2, 3) if ends[round] <= length]
        assert rounds_of(read_entries(path)) == expected
    path.write_bytes(whole + bytes(3000))  # blocks that a power failure left empty
    assert rounds_of(read_entries(path)) == [1, 2, 3]


def test_a_torn_file_goes_on_where_it_was_whole(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    written(other, range(1, 6))
    written(path, range(1, 4))
    path.write_bytes(path.read_bytes()[:-5])
    file = RecordFile(path, LIMIT)
    file.cut(3)
    for round in range(3, 6):
        file.add(round, numbers(round))
    file.flush()
    assert path.read_bytes() == other.read_bytes()


def test_above_the_limit_the_first_entry_of_each_window_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for last in (10, 40, 100, 1000):
        path.unlink(missing_ok=True)
        found = written(path, range(1, last + 1))
        assert path.stat().st_size <= LIMIT
        assert rounds_of(found) == list(range(1, last + 1, found.every))
    assert found.every == 32
    assert not list(tmp_path.glob("*.part"))


def test_entries_of_few_rounds_are_kept_although_most_rounds_have_none(tmp_path: Path) -> None:
    """Every 10th round has an entry; a rule by round numbers would lose all of them."""
    found = written(tmp_path / "a", range(10, 2000, 10))
    assert found.every > 4
    assert len(found.entries) > 15


@given(st.sets(st.integers(1, 400), min_size=1, max_size=80), st.integers(0, 6), st.integers(0, 6))
def test_thinning_twice_equals_thinning_once(rounds: set[int], first: int, second: int) -> None:
    entries = [Entry(round, b"") for round in sorted(rounds)]
    once = thinned(entries, 2 ** max(first, second))
    assert thinned(thinned(entries, 2**first), 2 ** max(first, second)) == once


@pytest.mark.parametrize("stopped", [5, 23, 24, 40, 77])
@pytest.mark.parametrize("back", [1, 4, 30])
def test_a_resumed_file_equals_one_that_was_not_interrupted(stopped: int, back: int, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    written(whole, range(1, 101))
    written(parts, range(1, stopped + 1))
    checkpoint = max(0, stopped - back)
    file = RecordFile(parts, LIMIT)
    file.cut(checkpoint)
    for round in range(checkpoint + 1, 101):
        file.add(round, numbers(round))
    file.flush()
    assert parts.read_bytes() == whole.read_bytes()


def test_an_entry_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "a", LIMIT)
    file.add(1, numbers(1, size=LIMIT))
    file.add(2, numbers(2))
    file.flush()
    assert rounds_of(read_entries(tmp_path / "a")) == [2]


def test_a_full_disk_leaves_whole_entries_and_they_are_written_later(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    written(other, range(1, 31))
    file = RecordFile(path, LIMIT)
    file.add(1, numbers(1))
    file.flush()
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    for rounds in (range(2, 10), range(10, 31)):  # the second time, the file is to be thinned
        before = path.read_bytes()
        for round in rounds:
            file.add(round, numbers(round))
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, room[1]))
        try:
            with pytest.raises(UserError, match=r"cannot write .*a: "):
                file.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, room)
        assert path.read_bytes() == before
        file.flush()
    assert path.read_bytes() == other.read_bytes()
    assert not list(tmp_path.glob("*.part"))


def framed(round: int, content: bytes) -> bytes:
    head = struct.pack("<II", len(content), round)
    return head + struct.pack("<I", zlib.crc32(content, zlib.crc32(head))) + content


HOSTILE = {
    "another file": b"not a record file, but long enough to be one",
    "a wrong check in the header": b"HMPHREC1" + struct.pack("<II", 1, 7),
    "every 0": (head := b"HMPHREC1" + struct.pack("<I", 0)) + struct.pack("<I", zlib.crc32(head)),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_damaged_header_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError, match=r"a is damaged, or of another version"):
        read_entries(tmp_path / "a")


def test_a_changed_byte_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    found = written(path, range(1, 4))
    data = bytearray(path.read_bytes())
    data[16 + len(found.entries[0].frame) + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a is damaged after \d+ bytes"):
        read_entries(path)


def test_a_length_beyond_the_file_is_an_incomplete_entry(tmp_path: Path) -> None:
    path = tmp_path / "a"
    written(path, range(1, 2))
    path.write_bytes(path.read_bytes() + struct.pack("<III", 2**32 - 1, 2, 0) + b"x" * 40)
    assert rounds_of(read_entries(path)) == [1]


def test_rounds_that_do_not_ascend_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    found = written(path, range(1, 2))
    path.write_bytes(path.read_bytes() + found.entries[0].frame)
    with pytest.raises(UserError, match="its rounds do not ascend"):
        read_entries(path)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="it has more than 64 MiB"):
        read_entries(tmp_path / "a")


@pytest.mark.parametrize(
    "content",
    [
        b"junk",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 64) + b'{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}',
        (text := b'{"x":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}')
        and struct.pack("<Q", 58) + text + b"1234",
    ],
)
def test_content_that_is_not_safetensors_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    written(path, range(1, 2))
    path.write_bytes(path.read_bytes() + framed(2, content))
    entry = read_entries(path).entries[1]
    with pytest.raises(UserError, match="a is damaged in the entry of round 2"):
        decoded(path, entry)
