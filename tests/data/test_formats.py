"""Readers of the data formats, and their error messages for damaged files."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homophily.data.formats import read_cifar, read_idx, read_numbers
from homophily.errors import UserError


def idx(shape: list[int], content: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + content


def written(folder: Path, content: bytes, name: str = "some.file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


# idx


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), zipped=st.booleans())
def test_idx_has_the_shape_and_bytes_it_was_written_with(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], zipped: bool
) -> None:
    content = bytes(i % 256 for i in range(math.prod(shape)))
    data = idx(shape, content)
    # gzip is recognised by the content, not by the file name
    path = written(tmp_path_factory.getbasetemp(), gzip.compress(data) if zipped else data, "any.idx")
    read = read_idx(path)
    assert read.dtype == torch.uint8
    assert list(read.shape) == shape
    assert bytes(read.flatten().tolist()) == content


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not an idx file"),
        (b"PK\x03\x04 a zip", "not an idx file"),
        (bytes([0, 0, 13, 1]) + bytes(8), "not an idx file"),  # floats
        (bytes([0, 0, 8]), "truncated"),
        (idx([2, 3], bytes(6))[:7], "truncated"),
        (idx([2, 3], bytes(5)), "truncated"),
        (idx([2, 3], bytes(7)), "truncated"),
        (idx([0], b""), "truncated"),
        (gzip.compress(idx([50, 50], bytes(range(250)) * 10))[:-40], "cannot be read"),
        (b"\x1f\x8b and no gzip", "cannot be read"),
    ],
    ids=["empty", "zip", "floats", "no-shape", "half-shape", "short", "long", "nothing", "cut-gzip", "no-gzip"],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UserError, match=complaint) as error:
        read_idx(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.gz: cannot be read"):
        read_idx(tmp_path / "missing.gz")


# CIFAR


def test_cifar_has_a_label_byte_and_then_the_planes(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    rows = [bytes([label]) + bytes(image.flatten().tolist()) for label, image in zip((7, 0, 9), images, strict=True)]
    x, labels = read_cifar(written(tmp_path, b"".join(rows)), (10,))
    assert torch.equal(x, images)
    assert labels.tolist() == [[7], [0], [9]]
    assert labels.dtype == torch.int64


def test_cifar_100_has_the_superclass_before_the_class(tmp_path: Path) -> None:
    x, labels = read_cifar(written(tmp_path, bytes([19, 99]) + bytes(3072)), (20, 100))
    assert x.shape == (1, 3, 32, 32)
    assert labels.tolist() == [[19, 99]]


@pytest.mark.parametrize("size", [0, 3072, 3074, 2 * 3073 - 1])
def test_a_cifar_file_of_the_wrong_size_is_named(tmp_path: Path, size: int) -> None:
    with pytest.raises(UserError, match=rf"some\.file: truncated or damaged: its size of {size} bytes"):
        read_cifar(written(tmp_path, bytes(size)), (10,))


def test_a_label_beyond_the_classes_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"some\.file: contains the label 10, but there are 10 classes"):
        read_cifar(written(tmp_path, bytes([10]) + bytes(3072)), (10,))


# comma-separated numbers


def test_a_question_mark_is_a_missing_number(tmp_path: Path) -> None:
    read = read_numbers(written(tmp_path, b"1,?,-.5\n2, 3.0,4e1\n"), 3)
    assert read.dtype == torch.float64
    assert read.isnan().tolist() == [[False, True, False], [False, False, False]]
    assert read[1].tolist() == [2.0, 3.0, 40.0]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file is empty"),
        (b"1,2\n1,two\n", "line 2 contains something other than numbers"),
        (b"1,2\n\xff\xfe,2\n", "line 2 contains something other than numbers"),
        (b"1,2\n3,4\n5\n", "line 3 has 1 values instead of 2"),
        (b"<html>404</html>", "line 1 contains something other than numbers"),
    ],
)
def test_a_damaged_table_is_named_with_its_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    with pytest.raises(UserError, match=rf"some\.file: {complaint}"):
        read_numbers(written(tmp_path, content), 2)
