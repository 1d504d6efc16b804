"""Fingerprints as they travel: formats, bytes, what is left out, and which peers are compared."""

from __future__ import annotations

import pytest
import torch

from homophily.fingerprints import fingerprint
from homophily.fingerprints.fingerprint import (
    LARGE,
    LARGE_FEDERATION,
    SAMPLES,
    SMALL_FEDERATION,
    Fingerprints,
    Format,
    checked,
    format_of,
    sampled,
)


def made(counts: list[int], form: Format = SMALL_FEDERATION) -> Fingerprints:
    chance = torch.Generator().manual_seed(0)
    mean = torch.randn(len(counts), form.buckets, generator=chance)
    factor = torch.randn(len(counts), form.rows, form.buckets, generator=chance)
    return checked(mean, factor, torch.tensor(counts), form)


def test_federations_from_1000_peers_send_small_fingerprints() -> None:
    assert format_of(2) == format_of(999) == SMALL_FEDERATION == Format(512, 63)
    assert format_of(1000) == format_of(10**6) == LARGE_FEDERATION == Format(256, 1)


@pytest.mark.parametrize(
    ("count", "size"),
    [
        (0, 0),
        (1, 0),
        (2, 2 * (512 + 512) + 16),
        (4, 2 * (512 + 512 + 511 + 510) + 16),  # the mean and three rows of a triangle, and two scales
        (64, 2 * (512 + sum(512 - row for row in range(63))) + 16),
        (65, 2 * (512 + sum(512 - row for row in range(63))) + 16),
        (SAMPLES, 2 * (512 + sum(512 - row for row in range(63))) + 16),
    ],
)
def test_bytes_of_a_small_federations_fingerprint_by_hand(count: int, size: int) -> None:
    assert int(SMALL_FEDERATION.bytes(torch.tensor(count))) == size


@pytest.mark.parametrize(("count", "size"), [(1, 0), (2, 2 * (256 + 256) + 16), (SAMPLES, 2 * (256 + 256) + 16)])
def test_bytes_of_a_large_federations_fingerprint_by_hand(count: int, size: int) -> None:
    assert int(LARGE_FEDERATION.bytes(torch.tensor(count))) == size


def test_a_large_federations_fingerprint_has_about_a_twentieth_of_the_bytes_or_less() -> None:
    for count in (20, 64, SAMPLES):
        assert int(LARGE_FEDERATION.bytes(torch.tensor(count))) < int(SMALL_FEDERATION.bytes(torch.tensor(count))) / 18
    assert int(LARGE_FEDERATION.bytes(torch.tensor(64))) < int(SMALL_FEDERATION.bytes(torch.tensor(64))) / 50


def test_degrees_of_freedom_are_one_less_than_samples_up_to_the_rows() -> None:
    count = torch.tensor([0, 1, 2, 3, 64, 65, SAMPLES])
    assert SMALL_FEDERATION.freedom(count).tolist() == [0, 0, 1, 2, 63, 63, 63]
    assert LARGE_FEDERATION.freedom(count).tolist() == [0, 0, 1, 1, 1, 1, 1]


def test_fingerprints_that_cannot_be_used_are_left_out_and_not_counted() -> None:
    form = Format(512, 3)
    mean, factor = torch.randn(5, 512), torch.randn(5, 3, 512)
    mean[1, 7], factor[2, 0, 0] = torch.nan, torch.inf
    found = checked(mean, factor, torch.tensor([4, 4, 4, 1, 4]), form)
    assert found.count.tolist() == [4, 0, 0, 0, 4]
    assert found.freedom.tolist() == [3, 0, 0, 0, 3]
    assert not found.mean[1:4].any()
    assert not found.factor[1:4].any()
    size = 2 * (512 + 512 + 511 + 510) + 16
    assert found.bytes.tolist() == [size, 0, 0, 0, size]
    assert torch.equal(found.mean[[0, 4]], mean[[0, 4]])
    assert torch.equal(found.factor[[0, 4]], factor[[0, 4]])


def test_some_of_the_fingerprints_keep_all_their_parts() -> None:
    prints, some = made([5, 9, 1, 30]), torch.tensor([3, 1])
    found = prints.of(some)
    for name in ("mean", "factor", "count", "freedom", "bytes"):
        assert torch.equal(getattr(found, name), getattr(prints, name)[some])


# The keyed sample


def test_up_to_1000_peers_all_that_can_be_are_compared() -> None:
    assert LARGE == 1000
    assert sampled(made([5, 1, 9, 0, 2]), torch.arange(5), 0).tolist() == [0, 2, 4]


def test_of_more_peers_a_keyed_sample_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "LARGE", 6)
    prints, ids = made([5, 1, *[9] * 18], Format(4, 1)), torch.arange(20) * 7
    found = sampled(prints, ids, 0)
    assert found.tolist() == sorted(set(found.tolist()))
    assert len(found) == 6
    assert 1 not in found.tolist()  # it has no fingerprint
    assert torch.equal(sampled(prints, ids, 0), found)
    assert not torch.equal(sampled(prints, ids, 1), found)


def test_the_sample_depends_on_who_the_peers_are_and_not_on_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every peer draws the same sample, however it has the fingerprints."""
    monkeypatch.setattr(fingerprint, "LARGE", 6)
    prints, ids = made([9] * 20, Format(4, 1)), torch.arange(20) * 7
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    whole, turned = sampled(prints, ids, 3), sampled(prints.of(order), ids[order], 3)
    assert ids[whole].tolist() == ids[order][turned].sort().values.tolist()


def test_every_peer_is_as_likely_in_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "LARGE", 6)
    prints, ids = made([9] * 20, Format(4, 1)), torch.arange(20)
    often = torch.zeros(20)
    for seed in range(400):
        often[sampled(prints, ids, seed)] += 1
    assert float(often.min()) > 80  # 120 on average, with a standard deviation of 9
    assert float(often.max()) < 160
