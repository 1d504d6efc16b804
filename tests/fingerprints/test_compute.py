"""A peer's fingerprint: mean and noise of its embedded samples, the same alone and among all."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from homophily.data.types import Split
from homophily.fingerprints import compute
from homophily.fingerprints.compute import contrasts, fingerprints, folded, rounded, summed_up
from homophily.fingerprints.embedding import BUCKETS, Embedding, Targets
from homophily.fingerprints.fingerprint import (
    LARGE_FEDERATION,
    ROWS,
    SAMPLES,
    SMALL_FEDERATION,
    Fingerprints,
    Format,
)
from tests.training.nets import shares

FORMS = pytest.mark.parametrize("form", [SMALL_FEDERATION, LARGE_FEDERATION], ids=["small", "large"])


def prints(
    split: Split, targets: Targets | None = None, seed: int = 3, form: Format = SMALL_FEDERATION
) -> Fingerprints:
    return fingerprints(split, targets or Targets(10), torch.arange(len(split.start)), seed, form)


def embedded(split: Split, peer: int, targets: Targets | None = None, seed: int = 3) -> Tensor:
    """[n, 512] float64: a peer's samples, one by one."""
    x, y = split.peer(peer)
    embed = Embedding(x[:1], y[:1], targets or Targets(10), seed, torch.device("cpu"))
    return torch.cat([embed(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]).double()


@pytest.mark.parametrize("inputs", [(6,), (1, 8, 8), (3, 40, 36)])
def test_mean_and_factor_are_those_of_the_embedded_samples(inputs: tuple[int, ...]) -> None:
    split = shares([7, 12], inputs).train
    found = prints(split)
    for peer in range(2):
        samples = embedded(split, peer)
        largest = float(samples.mean(0).abs().max())
        assert torch.allclose(found.mean[peer].double(), samples.mean(0), atol=2e-3 * largest)
        centred = samples - samples.mean(0)
        r = found.factor[peer].double()
        assert torch.allclose(r.T @ r, centred.T @ centred, atol=5e-3 * float((centred.T @ centred).abs().max()))
    assert found.count.tolist() == [7, 12]
    assert found.freedom.tolist() == [6, 11]
    assert found.factor.shape == (2, 11, BUCKETS)
    assert not found.factor[0, 6:].any()


def test_the_factor_is_a_triangle_which_shows_the_covariance_and_no_more() -> None:
    found = prints(shares([9], (6,)).train)
    assert torch.equal(found.factor[0], found.factor[0].triu())


@FORMS
def test_a_fingerprint_is_the_same_alone_and_among_all(form: Format) -> None:
    """Bit for bit: a real peer computes only its own."""
    split = shares([7, 70, 5, 2, 1, SAMPLES + 9, 7, 70, 7, SAMPLES + 30, *[20] * 40], (6,)).train
    together = prints(split, form=form)
    for peer in range(len(split.count)):
        one = Split(split.x, split.y, split.start[peer : peer + 1], split.count[peer : peer + 1])
        alone = fingerprints(one, Targets(10), torch.tensor([peer]), 3, form)
        rows = len(alone.factor[0])
        assert torch.equal(alone.mean[0], together.mean[peer])
        assert torch.equal(alone.factor[0], together.factor[peer, :rows])
        assert not together.factor[peer, rows:].any()
        assert (alone.count[0], alone.bytes[0]) == (together.count[peer], together.bytes[peer])


def test_memory_is_bounded_by_pieces_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    embed = Embedding.__call__

    def watched(self: Embedding, x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        return embed(self, x, y)

    split = shares([40], (5000,)).train
    whole = prints(split)
    monkeypatch.setattr(Embedding, "__call__", watched)
    monkeypatch.setattr(compute, "_BYTES", 1 << 20)
    pieces = prints(split)
    assert sum(sizes) == 40
    assert max(sizes) * 5000 * 4 <= 1 << 20
    assert torch.allclose(pieces.mean, whole.mean, atol=1e-3)


@FORMS
def test_peers_summed_up_together_are_as_apart(form: Format) -> None:
    """A GPU sums up many peers at once, with rows of 0 if one has fewer samples than another."""
    count, most, ids = torch.tensor([7, 70, 1, 2, 64]), 70, torch.tensor([4, 0, 7, 9, 2])
    samples = torch.randn(5, most, form.buckets) * (torch.arange(most) < count[:, None])[..., None]
    samples[3, 0, 5] = torch.inf
    mean, factor = summed_up(samples, count, ids, 3, form)
    assert factor.shape == (5, form.rows, form.buckets)
    assert not mean[3].isfinite().all()
    for peer in (0, 1, 2, 4):
        some = slice(peer, peer + 1)
        alone, own = summed_up(samples[some, : count[peer]], count[some], ids[some], 3, form)
        assert torch.allclose(mean[peer], alone[0], atol=1e-3)
        assert torch.allclose(factor[peer, : own.shape[1]], own[0], atol=1e-2)
        assert not factor[peer, own.shape[1] :].any()


def test_draws_for_many_peers_are_those_for_each() -> None:
    split = shares([ROWS, ROWS + 9, SAMPLES + 40, 3], (2,), outputs=3).train
    ids = torch.tensor([4, 2, 9, 1])
    samples, count = compute._drawn(split, ids, torch.arange(4), 5)
    assert count.tolist() == [ROWS, ROWS + 9, SAMPLES, 3]
    for peer in range(4):
        alone, _ = compute._drawn(split, ids, torch.tensor([peer]), 5)
        assert torch.equal(samples[peer, : count[peer]], alone[0])
        assert len(alone.unique()) == count[peer]
    assert samples[0, :ROWS].tolist() == list(range(ROWS))


def test_the_order_of_samples_does_not_matter() -> None:
    split = shares([9], (6,)).train
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    first, again = prints(split), prints(Split(split.x[order], split.y[order], split.start, split.count))
    assert torch.allclose(first.mean, again.mean, atol=1e-2)
    covariances = [p.factor[0].T @ p.factor[0] for p in (first, again)]
    assert torch.allclose(*covariances, atol=5e-3 * float(covariances[0].abs().max()))


def test_regression_with_the_constants_of_its_targets() -> None:
    split = shares([6], (3,), outputs=2, regression=True).train
    scaled = Targets(None, torch.tensor([1.0, -2.0]), torch.tensor([3.0, 0.5]))
    for targets in (scaled, Targets(None)):
        expected = embedded(split, 0, targets).mean(0)
        found = prints(split, targets).mean[0].double()
        assert torch.allclose(found, expected, atol=2e-3 * float(expected.abs().max()))
    assert not torch.allclose(prints(split, scaled).mean, prints(split, Targets(None)).mean, atol=0.1)


def test_at_most_500_samples_count_and_the_draw_is_keyed() -> None:
    split = shares([SAMPLES + 200], (2,), outputs=3).train
    found = [prints(split, Targets(3), seed=s) for s in (1, 1, 2)]
    assert found[0].count.tolist() == [SAMPLES]
    assert torch.equal(found[0].mean, found[1].mean)
    assert not torch.equal(found[0].mean, found[2].mean)
    assert found[0].factor.shape == (1, ROWS - 1, BUCKETS)


def test_one_value_that_is_not_finite_leaves_a_peer_out_and_no_other() -> None:
    split = shares([6, 6, 6], (4,)).train
    whole = prints(split)
    split.x[8, 1] = torch.nan
    found = prints(split)
    assert found.count.tolist() == [6, 0, 6]
    assert torch.equal(found.mean[[0, 2]], whole.mean[[0, 2]])


# The format of large federations


def test_a_large_federations_mean_is_the_folded_mean() -> None:
    split = shares([30, 70], (6,)).train
    small, large = prints(split), prints(split, form=LARGE_FEDERATION)
    assert large.mean.shape == (2, 256)
    assert torch.allclose(large.mean, folded(small.mean, 256), atol=1e-2)
    assert large.factor.shape == (2, 1, 256)
    assert large.bytes.tolist() == [2 * (256 + 256) + 16] * 2


def test_the_one_direction_of_noise_has_the_variance_of_a_contrast() -> None:
    """Over many peers of one distribution it gives the covariance of one sample, like all contrasts."""
    deviation = torch.linspace(0.5, 3.0, 256)
    samples = deviation * torch.randn(4000, 12, 256, generator=torch.Generator().manual_seed(0)) + 5.0
    count = torch.tensor([12, 12, 5, 2]).repeat(1000)
    samples = samples * (torch.arange(12) < count[:, None])[..., None]
    _, factor = summed_up(samples, count, torch.arange(4000), 3, LARGE_FEDERATION)
    assert factor.shape == (4000, 1, 256)
    for samples_of_a_peer in (12, 5, 2):
        seen = factor[count == samples_of_a_peer, 0].double()
        assert torch.allclose(seen.square().mean(0).sqrt(), deviation.double(), rtol=0.12)
        assert float((seen[:, :-1] * seen[:, 1:]).mean()) == pytest.approx(0.0, abs=0.1)


def test_the_one_direction_is_a_turn_of_the_contrasts_drawn_by_the_peers_id() -> None:
    samples, count = torch.randn(1, 20, 256, generator=torch.Generator().manual_seed(0)), torch.tensor([20])

    def noise(id: int, seed: int = 3) -> Tensor:
        return summed_up(samples, count, torch.tensor([id]), seed, LARGE_FEDERATION)[1][0, 0].double()

    apart = contrasts(samples[0].double())
    share = torch.linalg.lstsq(apart.T, noise(5)[:, None]).solution
    assert torch.allclose(apart.T @ share, noise(5)[:, None], atol=1e-2)
    assert float(share.norm()) == pytest.approx(1.0, abs=1e-3)
    assert not torch.allclose(noise(5), noise(6), atol=0.1)
    assert not torch.allclose(noise(5), noise(5, seed=4), atol=0.1)


# Contrasts, folding, rounding

SIZES = st.integers(2, 12)


@given(n=SIZES, d=st.integers(1, 6), seed=st.integers(0, 1000), shift=st.floats(-100, 100))
def test_contrasts_have_the_scatter_of_their_rows_wherever_these_are(n: int, d: int, seed: int, shift: float) -> None:
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = contrasts(rows)
    assert found.shape == (n - 1, d)
    centred = rows - rows.mean(0)
    assert torch.allclose(found.T @ found, centred.T @ centred, atol=1e-9)
    assert torch.allclose(found, contrasts(rows + shift), atol=1e-9)
    for first in range(2, n + 1):
        assert torch.allclose(found[: first - 1], contrasts(rows[:first]), atol=1e-12)


@given(n=SIZES)
def test_contrasts_are_orthonormal_differences(n: int) -> None:
    matrix = contrasts(torch.eye(n, dtype=torch.float64))
    assert torch.allclose(matrix @ matrix.T, torch.eye(n - 1).double())
    assert torch.allclose(matrix.sum(1), torch.zeros(n - 1).double(), atol=1e-12)


@given(power=st.integers(0, 9), seed=st.integers(0, 1000))
def test_folding_adds_the_buckets_that_are_alike_modulo_d(power: int, seed: int) -> None:
    values = torch.randn(3, 512, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    d = 2**power
    found = folded(values, d)
    expected = torch.zeros(3, d, dtype=torch.float64).index_add_(1, torch.arange(512) % d, values)
    assert torch.allclose(found, expected, atol=1e-9)
    assert torch.allclose(folded(found, max(1, d // 2)), folded(values, max(1, d // 2)), atol=1e-9)


@settings(deadline=None)
@given(exponent=st.integers(-30, 30), seed=st.integers(0, 1000), shape=st.sampled_from([(7,), (3, 5)]))
def test_rounding_keeps_three_digits_at_any_scale_and_is_done_once(
    exponent: int, seed: int, shape: tuple[int, ...]
) -> None:
    values = torch.randn(4, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scale = torch.tensor([1.0, 10.0**exponent, 1e-9, 1e9]).double().view(4, *[1] * len(shape))  # each peer's own
    found = rounded(values * scale)
    assert found.dtype == torch.float32
    largest = values.abs().flatten(1).amax(1)
    assert bool(((found.double() / scale - values).abs().flatten(1).amax(1) < 1e-3 * largest).all())
    assert torch.equal(rounded(found.double()), found)


def test_rounding_what_is_zero_empty_or_not_finite() -> None:
    assert rounded(torch.zeros(2, 3).double()).tolist() == [[0.0] * 3] * 2
    assert rounded(torch.zeros(2, 0, 3).double()).shape == (2, 0, 3)
    found = rounded(torch.tensor([[1.0, math.nan], [1.0, 2.0]]).double())
    assert bool(found[0].isnan().any())
    assert found[1].tolist() == [1.0, 2.0]
