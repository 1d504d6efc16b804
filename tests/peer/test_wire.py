"""Blobs: what is packed is unpacked bit for bit, and anything else is refused."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor, nn

from homophily.federation.layout import Layout
from homophily.fingerprints.compute import rounded, summed_up
from homophily.fingerprints.embedding import BUCKETS
from homophily.fingerprints.fingerprint import LARGE_FEDERATION, ROWS, SAMPLES, SMALL_FEDERATION, Format, checked
from homophily.peer.identity import Refused
from homophily.peer.wire import (
    MAX_FINGERPRINT_BYTES,
    MAX_SAMPLES,
    ExpectedModel,
    ModelMessage,
    network_number,
    pack_before,
    pack_model,
    pack_print,
    shared_tables,
    unpack_before,
    unpack_model,
    unpack_print,
)

NUMBERS = 12
NETWORK = 11
EXPECTED = ExpectedModel(NUMBERS, torch.float32, ("similarity", "trust"), NETWORK, 5)


def row(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(seed)).to(dtype)


def blob(**changes: Any) -> ModelMessage:
    tables = {"similarity": torch.tensor([1.5, math.nan, -2.0], dtype=torch.float64)}
    good: dict[str, Any] = {"row": row(), "samples": 7, "tables": tables, "contacts": torch.tensor([3, 5, 2**62])}
    return ModelMessage(**{**good, **changes})


def tensors(**changes: Any) -> bytes:
    """A good message but for some tensors; None leaves one out."""
    return save({k: v for k, v in {**load(pack_model(blob(), NETWORK)), **changes}.items() if v is not None})


def earlier(**changes: Any) -> bytes:
    """The same of a model before training."""
    return save({k: v for k, v in {**load(pack_before(row(1), NETWORK)), **changes}.items() if v is not None})


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Bit for bit, NaN and the sign of 0 included."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_model_travels_bit_for_bit(dtype: torch.dtype) -> None:
    sent = blob(row=row(0, dtype))
    data = pack_model(sent, NETWORK)
    expected = ExpectedModel(NUMBERS, dtype, EXPECTED.tables, NETWORK, 5)
    found = unpack_model(data, expected)
    before = unpack_before(pack_before(row(1, dtype), NETWORK), expected)
    assert found.row is not None
    assert same(found.row.view(torch.uint8), row(0, dtype).view(torch.uint8))
    assert same(before.view(torch.uint8), row(1, dtype).view(torch.uint8))
    assert same(found.contacts, sent.contacts)
    assert same(found.tables["similarity"], sent.tables["similarity"])
    assert found.samples == 7
    assert len(data) <= expected.max_bytes


def test_a_diverged_model_is_sent_without_parameters() -> None:
    assert unpack_model(pack_model(blob(row=None), NETWORK), EXPECTED).row is None


def test_only_known_entries_of_tables_are_sent() -> None:
    nan, ids = math.nan, torch.tensor([3, 5, 7, 9, 11])
    tables = {"similarity": torch.tensor([0.5, nan, nan, 2.0, 1.0]), "trust": torch.tensor([1, 2, nan, 3, 4])}
    known = torch.tensor([True, True, True, True, False])
    sent, about = shared_tables(tables, ids, known)
    assert about is not None
    assert about.tolist() == [3, 5, 9]
    assert same(sent["similarity"], torch.tensor([0.5, nan, 2.0], dtype=torch.float64))
    assert same(sent["trust"], torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert shared_tables({"similarity": torch.full((5,), nan)}, ids, known) == ({}, None)
    assert shared_tables({}, ids, known) == ({}, None)


def test_an_entry_of_the_tables_takes_an_id_and_its_values() -> None:
    assert blob().table_bytes == 3 * (8 + 8)
    assert blob(before=row(1)).table_bytes == 3 * (8 + 8)  # the exchange counts updates: see test_process.py
    assert ModelMessage(row(), 7).table_bytes == 0


def test_a_model_may_share_nothing() -> None:
    plain = ExpectedModel(NUMBERS, torch.float32, (), NETWORK, 5)
    found = unpack_model(pack_model(ModelMessage(row(), 7), NETWORK), plain)
    assert same(found.row, row())
    assert found.tables == {}
    with pytest.raises(Refused, match="unexpected tensor"):
        unpack_model(tensors(**{"table/similarity": None}), plain)  # contacts about nothing


@given(numbers=st.integers(1, 3000), contacts=st.integers(1, 300), many=st.integers(0, 4))
@settings(max_examples=30)
def test_no_honest_blob_is_larger_than_what_is_expected(numbers: int, contacts: int, many: int) -> None:
    names = tuple(f"table{i}" for i in range(many))
    expected = ExpectedModel(numbers, torch.float32, names, NETWORK, contacts)
    tables = {name: torch.zeros(contacts, dtype=torch.float64) for name in names}
    data = pack_model(ModelMessage(torch.zeros(numbers), MAX_SAMPLES, tables, torch.arange(contacts)), NETWORK)
    assert len(data) <= expected.max_bytes
    assert len(pack_before(torch.zeros(numbers), NETWORK)) <= expected.max_bytes
    assert unpack_model(data, expected).samples == MAX_SAMPLES


def filled(value: float) -> Tensor:
    spoilt = row()
    spoilt[-1] = value
    return spoilt


WRONG = {
    "without samples": {"samples": None},
    "without network": {"network": None},
    "of another network": {"network": torch.tensor([NETWORK + 1])},
    "row too long": {"row": torch.zeros(NUMBERS + 1)},
    "row too short": {"row": torch.zeros(NUMBERS - 1)},
    "row empty": {"row": torch.zeros(0)},
    "row of two dimensions": {"row": torch.zeros(NUMBERS, 1)},
    "row of no dimension": {"row": torch.zeros(())},
    "row of doubles": {"row": row().double()},
    "row of halves": {"row": row().half()},
    "row of whole numbers": {"row": torch.zeros(NUMBERS, dtype=torch.int32)},
    "row of truths": {"row": torch.zeros(NUMBERS, dtype=torch.bool)},
    "NaN in row": {"row": filled(math.nan)},
    "infinity in row": {"row": filled(-math.inf)},
    "with a model before training": {"before": row(1)},
    "no samples": {"samples": torch.tensor([0])},
    "fewer than no samples": {"samples": torch.tensor([-3])},
    "too many samples": {"samples": torch.tensor([MAX_SAMPLES + 1])},
    "samples as a fraction": {"samples": torch.tensor([3.0])},
    "two numbers of samples": {"samples": torch.tensor([3, 4])},
    "no contacts": {"contacts": None},
    "contacts too long": {"contacts": torch.arange(6)},
    "contacts empty": {"contacts": torch.arange(0), "table/similarity": torch.zeros(0, dtype=torch.float64)},
    "contacts falling": {"contacts": torch.tensor([5, 4, 6])},
    "contacts names one twice": {"contacts": torch.tensor([4, 4, 6])},
    "contacts wraps around": {"contacts": torch.tensor([2**63 - 1, -(2**63), 0])},
    "contacts of two dimensions": {"contacts": torch.arange(3)[None]},
    "contacts of floats": {"contacts": torch.arange(3.0)},
    "table longer than the contacts": {"table/similarity": torch.zeros(4, dtype=torch.float64)},
    "table of floats": {"table/similarity": torch.zeros(3)},
    "infinity in a table": {"table/similarity": torch.tensor([0.0, 1.0, math.inf], dtype=torch.float64)},
    "table that nobody asked for": {"table/other": torch.zeros(3, dtype=torch.float64)},
    "tensor that nobody asked for": {"weights": torch.zeros(3)},
    "empty tensor without a name": {"": torch.zeros(0)},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_a_model_of_any_other_form_is_refused(changes: dict[str, Any]) -> None:
    unpack_model(tensors(), EXPECTED)
    with pytest.raises(Refused):
        unpack_model(tensors(**changes), EXPECTED)


WRONG_BEFORE = {
    "without before": {"before": None},
    "without network": {"network": None},
    "of another network": {"network": torch.tensor([NETWORK + 1])},
    "NaN in before": {"before": filled(math.nan)},
    "before too long": {"before": torch.zeros(NUMBERS + 1)},
    "before of doubles": {"before": row().double()},
    "tensor that nobody asked for": {"row": row()},
}


@pytest.mark.parametrize("changes", WRONG_BEFORE.values(), ids=WRONG_BEFORE)
def test_a_model_before_training_of_any_other_form_is_refused(changes: dict[str, Any]) -> None:
    unpack_before(earlier(), EXPECTED)
    with pytest.raises(Refused):
        unpack_before(earlier(**changes), EXPECTED)


@given(cut=st.integers(0, len(tensors()) - 1))
def test_a_model_cut_off_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(Refused, match="not safetensors"):
        unpack_model(tensors()[:cut], EXPECTED)


@pytest.mark.parametrize("data", [b"", b"\x80\x04K\x01.", b"PK\x03\x04", b"\xff" * 64, tensors() + b"\x00", b"\0" * 8])
def test_data_that_is_not_safetensors_is_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="not safetensors"):
        unpack_model(data, EXPECTED)
    with pytest.raises(Refused, match="not safetensors"):
        unpack_print(data, SMALL_FEDERATION, NETWORK)


# Fingerprints


FORMS = {"small": SMALL_FEDERATION, "large": LARGE_FEDERATION}


def fingerprint(
    count: int, scale: float = 1.0, seed: int = 0, form: Format = SMALL_FEDERATION
) -> tuple[Tensor, Tensor, int]:
    """As a peer makes it of so many embedded samples."""
    drawn = torch.randn(count, form.buckets, generator=torch.Generator().manual_seed(seed))
    (mean,), (factor,) = summed_up(drawn[None] * scale, torch.tensor([count]), torch.tensor([1]), seed, form)
    return mean, factor, count


@given(
    count=st.integers(2, SAMPLES),
    exponent=st.integers(-45, 36),
    seed=st.integers(0, 2**32),
    tilt=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_a_fingerprint_travels_bit_for_bit(count: int, exponent: int, seed: int, tilt: float) -> None:
    mean, factor, count = fingerprint(count, 10.0**exponent * (1 + tilt), seed)
    data = pack_print(mean, factor, count, NETWORK)
    found = unpack_print(data, SMALL_FEDERATION, NETWORK)
    assert same(found[0], mean)
    assert torch.equal(found[1], factor)  # but for the sign of the zeros below the diagonal
    assert found[2] == count
    assert len(data) <= MAX_FINGERPRINT_BYTES


@given(largest=st.floats(2.0**-140, 2.0**120), ratio=st.floats(0, 1))
def test_rounding_a_fingerprint_twice_changes_nothing(largest: float, ratio: float) -> None:
    """A largest number just above a power of two is rounded down to it, and is then packed with half the scale."""
    mean = torch.zeros(BUCKETS, dtype=torch.float64)
    mean[:3] = torch.tensor([largest, -largest * ratio, largest * ratio**4])
    (sent,) = rounded(mean[None])
    packed = pack_print(sent, torch.zeros(1, BUCKETS), 2, NETWORK)
    assert torch.equal(unpack_print(packed, SMALL_FEDERATION, NETWORK)[0], sent)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_fingerprint_takes_about_the_bytes_it_is_said_to(form: Format) -> None:
    mean, factor, count = fingerprint(ROWS, form=form)
    said = int(checked(mean[None], factor[None], torch.tensor([count]), form).bytes)
    assert said <= len(pack_print(mean, factor, count, NETWORK)) <= said + 512


def prints(**changes: Any) -> bytes:
    return save({k: v for k, v in {**load(pack_print(*fingerprint(9), NETWORK)), **changes}.items() if v is not None})


HALVES = 8 * BUCKETS - 28
WRONG_PRINTS = {
    "without mean": {"mean": None},
    "without factor": {"factor": None},
    "without scales": {"scales": None},
    "without count": {"count": None},
    "without network": {"network": None},
    "of another network": {"network": torch.tensor([NETWORK + 1])},
    "mean too long": {"mean": torch.zeros(BUCKETS + 1).half()},
    "mean of floats": {"mean": torch.zeros(BUCKETS)},
    "NaN in mean": {"mean": torch.full((BUCKETS,), math.nan).half()},
    "infinity in factor": {"factor": torch.full((HALVES,), math.inf).half()},
    "factor of other samples": {"factor": torch.zeros(HALVES - 1).half()},
    "a whole factor": {"factor": torch.zeros(8, BUCKETS).half()},
    "one sample": {"count": torch.tensor([1])},
    "fewer than no samples": {"count": torch.tensor([-9])},
    "more samples than anyone takes": {"count": torch.tensor([SAMPLES + 1])},
    "another number of samples": {"count": torch.tensor([10])},
    "scale of no power of two": {"scales": torch.tensor([1.0, 3.0]).double()},
    "scale below nothing": {"scales": torch.tensor([1.0, -2.0]).double()},
    "scale of nothing": {"scales": torch.tensor([0.0, 1.0]).double()},
    "scale of NaN": {"scales": torch.tensor([math.nan, 1.0]).double()},
    "scale of infinity": {"scales": torch.tensor([math.inf, 1.0]).double()},
    "scale that makes infinity": {"scales": torch.tensor([2.0**1000, 1.0]).double()},
    "scales of floats": {"scales": torch.ones(2)},
    "tensor that nobody asked for": {"more": torch.zeros(1)},
}


@pytest.mark.parametrize("changes", WRONG_PRINTS.values(), ids=WRONG_PRINTS)
def test_a_fingerprint_of_any_other_form_is_refused(changes: dict[str, Any]) -> None:
    unpack_print(prints(), SMALL_FEDERATION, NETWORK)
    with pytest.raises(Refused):
        unpack_print(prints(**changes), SMALL_FEDERATION, NETWORK)


@given(cut=st.integers(0, len(prints()) - 1))
def test_a_fingerprint_cut_off_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(Refused, match="not safetensors"):
        unpack_print(prints()[:cut], SMALL_FEDERATION, NETWORK)


@pytest.mark.parametrize("count", [0, 1])
def test_a_fingerprint_of_too_few_samples_carries_only_its_count(count: int) -> None:
    data = pack_print(torch.randn(BUCKETS), torch.zeros(0, BUCKETS), count, NETWORK)
    mean, factor, found = unpack_print(data, SMALL_FEDERATION, NETWORK)
    assert (found, factor.shape, bool(mean.any())) == (count, (0, BUCKETS), False)
    assert len(data) < 300


@pytest.mark.parametrize("count", [2, 3, 64, 200])
def test_a_fingerprint_of_a_large_federation_travels_bit_for_bit(count: int) -> None:
    mean, factor, _ = fingerprint(count, 1e-5, form=LARGE_FEDERATION)
    data = pack_print(mean, factor, count, NETWORK)
    found = unpack_print(data, LARGE_FEDERATION, NETWORK)
    assert same(found[0], mean)
    assert same(found[1], factor)
    assert found[1].shape == (1, 256)
    assert len(data) < 1500


@pytest.mark.parametrize(("sent", "expected"), [("small", "large"), ("large", "small")])
def test_a_fingerprint_in_the_format_of_another_federation_is_refused(sent: str, expected: str) -> None:
    packed = pack_print(*fingerprint(20, form=FORMS[sent]), NETWORK)
    with pytest.raises(Refused, match="mean of the wrong shape"):
        unpack_print(packed, FORMS[expected], NETWORK)


def test_networks_are_distinguished_by_names_shapes_seed_frozen_weights_task_and_classes() -> None:
    def number(*widths: int, seed: int = 0, frozen: str = "", task: str = "tokens", classes: int | None = 2) -> int:
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        return network_number(Layout.of(nn.Sequential(*layers)), seed, frozen, task, classes)

    assert number(4, 3, 2) == number(4, 3, 2)
    assert len({number(4, 3, 2), number(4, 2, 3), number(4, 3, 2, seed=1), number(2, 3, 4)}) == 4
    assert number(4, 3, 2, frozen="a1") != number(4, 3, 2)
    assert len({number(4, 3, 2, classes=classes) for classes in (2, 3, None)}) == 3
    assert number(4, 3, 2, task="classification") != number(4, 3, 2)
