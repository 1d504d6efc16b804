"""Packed numbers can be read back."""

from __future__ import annotations

import base64

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from homophily.report.page.figures import Frames, packed, rounded, varints


def unpacked(text: str) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in base64.b64decode(text):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value)
            value = shift = 0
    return found


@given(st.lists(st.integers(0, 2**50), max_size=50))
def test_whole_numbers_of_any_size(values: list[int]) -> None:
    assert unpacked(varints(np.array(values, dtype=np.int64))) == values


def test_small_numbers_need_one_byte() -> None:
    assert len(base64.b64decode(varints(np.arange(128)))) == 128


def test_packed_numbers_are_little_endian() -> None:
    assert np.frombuffer(base64.b64decode(packed(np.array([1.4, 2.6, 300.0]), "u2")), "<u2").tolist() == [1, 3, 300]
    assert np.frombuffer(base64.b64decode(packed(np.array([1.5]), "f4")), "<f4").tolist() == [1.5]


def test_rounding_keeps_six_digits_and_unknown_numbers() -> None:
    assert rounded([1 / 3, None, 12345678.0]) == [0.333333, None, 12345700.0]


def test_frames_store_steps_between_cells_and_counts_only_if_they_differ() -> None:
    cells = [np.array([1, 5, 6]), np.array([0, 8])]
    once = Frames(3, [1, 2], cells, [np.ones(3), np.ones(2)]).as_dict()
    assert (once["lengths"], unpacked(once["steps"]), once["counts"]) == ([3, 2], [1, 4, 1, 0, 8], None)
    often = Frames(3, [1, 2], cells, [np.array([1, 2, 1]), np.ones(2)]).as_dict()
    assert unpacked(often["counts"]) == [1, 2, 1, 1, 1]
