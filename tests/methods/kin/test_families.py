"""Who is alike, from fingerprints: whitening, the noise edge, families, and everything degenerate."""

import math

import pytest
import torch
from torch import Tensor

from homophily.fingerprints import fingerprint
from homophily.fingerprints.compute import summed_up
from homophily.fingerprints.embedding import BUCKETS
from homophily.fingerprints.fingerprint import LARGE_FEDERATION, SMALL_FEDERATION, Fingerprints, Format, checked
from homophily.methods.kin import families as kin
from homophily.methods.kin.families import Kinship, kinship


def gaussian(
    centres: Tensor, counts: list[int], seed: int, spread: Tensor | None = None, form: Format = SMALL_FEDERATION
) -> Fingerprints:
    """Peers whose samples are normal around their centres [N, d], with standard deviations ``spread`` [d]."""
    chance = torch.Generator().manual_seed(seed)
    d = centres.shape[1]
    scale = torch.linspace(0.5, 2.0, d) if spread is None else spread
    means, factors = [], []
    most = max(int(form.freedom(torch.tensor(n))) for n in counts)
    for peer, (centre, n) in enumerate(zip(centres, counts, strict=True)):
        x = centre + scale * torch.randn(n, d, generator=chance, dtype=torch.float64)
        mean, factor = summed_up(x[None], torch.tensor([n]), torch.tensor([peer]), seed, form)
        means.append(mean[0])
        factors.append(torch.nn.functional.pad(factor[0], (0, 0, 0, most - factor.shape[1])))
    return checked(torch.stack(means), torch.stack(factors), torch.tensor(counts), form)


def clusters(sizes: list[int], samples: int | list[int], gap: float, seed: int) -> tuple[Fingerprints, Tensor]:
    chance = torch.Generator().manual_seed(100 + seed)
    label = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = gap * torch.randn(len(sizes), BUCKETS, generator=chance, dtype=torch.float64)
    counts = [samples] * len(label) if isinstance(samples, int) else samples
    return gaussian(centres[label], counts, seed), label


def without(prints: Fingerprints, peer: int) -> Fingerprints:
    """The same, but for one peer that has too few samples."""
    count = prints.count.index_fill(0, torch.tensor(peer), 1)
    return checked(prints.mean, prints.factor, count, SMALL_FEDERATION)


def found(prints: Fingerprints, seed: int = 0) -> Kinship:
    return kinship(prints, torch.arange(len(prints.count)), seed)


def test_fingerprints_fold_to_a_power_of_two_of_at_most_a_third_of_the_degrees_of_freedom() -> None:
    assert kin.dimension(1900) == 512  # 100 peers with 20 samples
    assert kin.dimension(1140) == 256  # 60
    assert kin.dimension(10**6) == 512
    assert kin.dimension(10**6, 256) == 256
    assert kin.dimension(3 * 256 - 1, 256) == 128
    assert kin.dimension(3 * 128) == 128
    assert kin.dimension(3 * 32) == 32
    assert kin.dimension(3 * 32 - 1) is None
    assert torch.equal(kin.folded(torch.arange(512.0), 256), torch.arange(256.0) * 2 + 256)


def test_whitening_is_that_of_the_covariance_with_its_ridge() -> None:
    covariance = torch.tensor([[4.0, 1.0], [1.0, 1.0]]).double()
    w = kin.whitening(covariance, kin.ridge(covariance))
    ridge = 0.2 * 5.0 / 2
    assert torch.allclose(w.T @ (covariance + ridge * torch.eye(2).double()) @ w, torch.eye(2).double())


def test_the_pooled_covariance_and_mean_by_hand() -> None:
    """Two peers, one direction: samples 1, 3 and 4, 4, 10 in bucket 0."""
    factor = torch.zeros(2, 2, BUCKETS)
    factor[0, 0, 0], factor[1, 0, 0] = math.sqrt(2.0), math.sqrt(24.0)  # sums of squares 2 and 24
    mean = torch.zeros(2, BUCKETS)
    mean[:, 0] = torch.tensor([2.0, 6.0])
    covariance, centre = kin.pooled(checked(mean, factor, torch.tensor([2, 3]), SMALL_FEDERATION), BUCKETS)
    assert float(covariance[0, 0]) == pytest.approx(26 / 3)
    assert float(centre[0]) == pytest.approx((1 + 3 + 4 + 4 + 10) / 5)


def test_noise_left_in_a_chosen_direction_is_inflated() -> None:
    """t solves s^2 = (t + N - 1)(t + delta) / t; a strong signal is hardly inflated, one at the edge the most."""
    peers, delta = 51, 100.0
    t = torch.tensor([1e6, 500.0], dtype=torch.float64)
    squared = (t + peers - 1) * (t + delta) / t
    certain = 1e12  # degrees of freedom: as if the covariance were known
    assert torch.allclose(kin.inflated_noise(squared, peers, delta, certain), (1 + delta / t).square())
    edge = (math.sqrt(peers - 1) + math.sqrt(delta)) ** 2
    at_edge = kin.inflated_noise(torch.tensor([edge, edge - 50.0]).double(), peers, delta, certain)
    assert torch.allclose(at_edge, torch.full((2,), (1 + delta / math.sqrt((peers - 1) * delta)) ** 2).double())


def test_an_estimated_covariance_inflates_the_noise_in_the_signals_direction() -> None:
    """Simulated: whiten with a Wishart of 300 degrees in 64 dimensions, look along the whitened signal."""
    d, freedom = 64, 300
    chance = torch.Generator().manual_seed(0)
    ratios = []
    for _ in range(200):
        x = torch.randn(freedom, d, generator=chance, dtype=torch.float64)
        inverse = torch.linalg.inv(x.T @ x / freedom)
        signal = inverse[:, 0]
        ratios.append(float(signal @ signal / inverse[0, 0]))
    far = kin.inflated_noise(torch.tensor([1e12]).double(), 50, float(d), freedom)
    assert float(far) == pytest.approx(sum(ratios) / len(ratios), rel=0.03)


def test_the_chi_square_point() -> None:
    # 99.9 % points from tables
    for freedom, point in ((10, 29.588), (30, 59.703), (100, 149.449), (1000, 1143.917)):
        assert kin.chi_square_999(freedom) == pytest.approx(point, rel=0.01)


@pytest.mark.parametrize("counts", [[20] * 40, [10, 20, 30, 40] * 10, [30] * 12])
def test_one_distribution_is_found_to_be_one(counts: list[int]) -> None:
    """Pure Gaussian noise, no signal: the edge is meant to be passed in 1 of 300, so hardly ever in 40."""
    nothing = torch.zeros(len(counts), BUCKETS, dtype=torch.float64)
    ranks = [found(gaussian(nothing, counts, seed), seed).rank for seed in range(40)]
    assert sum(rank > 0 for rank in ranks) <= 3


@pytest.mark.parametrize(("sizes", "samples"), [([10, 10, 10], 30), ([20, 10, 5, 5], 30), ([15, 15], [20, 40] * 15)])
def test_families_are_certain_where_the_gap_is_wide(sizes: list[int], samples: int | list[int]) -> None:
    for seed in range(4):
        prints, label = clusters(sizes, samples, gap=0.5, seed=seed)
        answer = found(prints, seed)
        assert answer.rank == len(sizes) - 1
        assert answer.family is not None
        assert torch.equal(answer.family, label)
        weights = answer.weights(torch.arange(len(label)), torch.arange(len(label)).expand(len(label), -1), False)
        assert torch.equal(weights, (label[:, None] == label).double())


def test_a_faint_line_and_two_faint_families_of_the_same_extent_are_told_apart() -> None:
    """Both ways, where the difference is just seen: one error in 20 federations of either kind would be much."""
    lines, pairs = [], []
    for seed in range(10):
        chance = torch.Generator().manual_seed(500 + seed)
        direction = 0.15 * torch.randn(BUCKETS, generator=chance, dtype=torch.float64)
        at = 2.0 * torch.rand(40, 1, generator=chance, dtype=torch.float64) - 1.0
        lines.append(found(gaussian(at * direction, [20] * 40, seed), seed))
        pairs.append(found(gaussian(at.sign() / math.sqrt(3.0) * direction, [20] * 40, seed), seed))
    assert all(answer.rank > 0 for answer in lines + pairs)
    assert sum(answer.family is not None for answer in lines) <= 1
    assert sum(answer.family is None for answer in pairs) <= 1


def test_the_order_of_peers_changes_nothing() -> None:
    prints, _ = clusters([8, 8, 8], 30, gap=0.5, seed=1)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    plain, shuffled = found(prints), kinship(prints.of(order), order, 0)
    assert torch.allclose(plain.squared, shuffled.squared)
    assert plain.family is not None
    assert shuffled.family is not None
    assert torch.equal(
        (plain.family[:, None] == plain.family)[order][:, order], shuffled.family[:, None] == shuffled.family
    )


def test_a_place_has_the_same_bits_whoever_else_is_placed() -> None:
    """A process with some of the peers places only these."""
    prints, _ = clusters([20, 20], 30, 2.0, 1)
    space = kin.Space.of(prints, 0)
    together = space.place(prints.mean)
    for size in (1, 3, 17):
        assert torch.equal(torch.cat([space.place(some) for some in prints.mean.split(size)]), together)
    direct = (kin.folded(prints.mean.double(), space.d) - space.centre) @ space.basis
    assert torch.allclose(together, direct, rtol=1e-12, atol=1e-12)


def test_peers_without_a_usable_fingerprint_are_nobodys_kin() -> None:
    prints, _ = clusters([8, 8], 30, gap=0.5, seed=1)
    prints = without(prints, 3)
    answer = found(prints)
    assert answer.family is not None
    assert answer.family.tolist() == [0, 0, 0, -1, 0, 0, 0, 0] + [1] * 8
    weights = answer.weights(torch.tensor([3, 4]), torch.arange(16).expand(2, -1), False)
    assert weights[0].tolist() == [0.0] * 16
    assert weights[1, 3] == 0.0


def test_among_many_peers_a_sample_decides_and_the_others_go_to_the_nearest_centre(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prints, label = clusters([30, 30, 30], 30, gap=0.5, seed=2)
    monkeypatch.setattr(fingerprint, "LARGE", 40)
    answer = found(prints)
    assert answer.family is not None
    assert torch.equal(answer.family, label)


@pytest.mark.parametrize("peers", [1, 2, 3])
def test_few_peers(peers: int) -> None:
    same = found(gaussian(torch.zeros(peers, BUCKETS).double(), [60] * peers, 1))
    assert same.rank == 0
    assert same.family is not None
    assert same.family.tolist() == [0] * peers
    if peers > 1:
        apart = found(gaussian(5.0 * torch.eye(peers, BUCKETS).double() * 40, [60] * peers, 1))
        assert apart.family is not None
        assert apart.family.tolist() == list(range(peers))  # each a family of one


def test_with_too_few_samples_nobody_is_compared() -> None:
    answer = found(gaussian(torch.zeros(4, BUCKETS).double(), [5] * 4, 1))
    assert answer.evidence is None
    assert not answer.enough_samples
    assert not answer.conclusive
    assert answer.rank == 0
    assert answer.family is not None
    assert answer.family.tolist() == [0, 0, 0, 0]


def test_an_answer_is_conclusive_only_if_a_difference_was_found() -> None:
    prints, _ = clusters([10, 10], 30, gap=0.5, seed=1)
    assert found(prints).conclusive
    line = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None] * torch.ones(BUCKETS).double()
    continuum = found(gaussian(line, [40] * 40, 1))
    assert continuum.family is None
    assert continuum.conclusive
    same = found(gaussian(torch.zeros(20, BUCKETS).double(), [30] * 20, 1))
    assert same.enough_samples
    assert not same.conclusive


def test_the_evidence_is_what_the_edge_rests_on() -> None:
    """Peers with a usable fingerprint, their samples, and degrees of freedom of at most 64 samples each."""
    prints = gaussian(torch.zeros(12, BUCKETS).double(), [30] * 11 + [100], 1)
    prints = without(prints, 3)
    evidence = found(prints).evidence
    assert evidence is not None
    assert (evidence.peers, evidence.samples, evidence.freedom) == (11, 10 * 30 + 100, 10 * 29 + 63)
    assert evidence.edge == found(prints).edge
    assert evidence.levels.shape == (64,)
    assert 0 < float(evidence.levels.min()) < float(evidence.levels.max()) < 1


def test_identical_samples_and_constant_directions_do_no_harm() -> None:
    spread = torch.linspace(0.5, 2.0, BUCKETS)
    spread[:400] = 0.0  # directions in which nothing ever varies
    answer = found(gaussian(torch.zeros(12, BUCKETS).double(), [30] * 12, 1, spread))
    assert answer.rank == 0
    still = found(gaussian(torch.zeros(12, BUCKETS).double(), [30] * 12, 1, torch.zeros(BUCKETS)))
    assert still.rank == 0
    assert math.isfinite(still.edge) or still.edge == math.inf


def test_noise_unlike_from_peer_to_peer_is_no_signal() -> None:
    """Four groups, each with noise of its own in which the others have none."""
    ranks = []
    for seed in range(10):
        spreads = torch.ones(4, BUCKETS).double()
        for group in range(4):
            spreads[group, 8 * group : 8 * group + 8] = 6.0
        groups = [gaussian(torch.zeros(10, BUCKETS).double(), [30] * 10, 10 * seed + g, spreads[g]) for g in range(4)]
        both = (torch.cat([getattr(g, name) for g in groups]) for name in ("mean", "factor", "count"))
        ranks.append(found(checked(*both, SMALL_FEDERATION), seed).rank)
    assert sum(rank > 0 for rank in ranks) <= 1


def test_a_strong_signal_does_not_hide_a_weak_one() -> None:
    """What is found above the edge is left out of the noise in which the next is looked for."""
    chance = torch.Generator().manual_seed(1)
    strong, weak = torch.randn(2, BUCKETS, generator=chance, dtype=torch.float64)
    side, up = torch.arange(60) % 2 * 2.0 - 1.0, torch.arange(60) // 30 * 2.0 - 1.0
    centres = 2.0 * side[:, None] * strong + 0.16 * up[:, None] * weak
    assert [found(gaussian(centres, [20] * 60, seed), seed).rank for seed in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("gap", [0.0, 0.1])
def test_fingerprints_of_a_large_federation_show_the_same(gap: float) -> None:
    """1,000 peers, 256 numbers and one direction of noise each."""
    side = torch.arange(1000) % 2
    direction = torch.randn(256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prints = gaussian(gap * side[:, None] * direction, [10, 20] * 500, 1, form=LARGE_FEDERATION)
    answer = found(prints)
    assert answer.evidence is not None
    assert (answer.evidence.peers, answer.evidence.samples, answer.evidence.freedom) == (1000, 15_000, 1000)
    assert answer.evidence.levels.shape == (256,)
    assert answer.rank == (gap > 0)
    assert answer.family is not None
    assert int(answer.family.max()) == answer.rank
    if gap:
        assert float((answer.family == side).double().mean()) > 0.9


def test_whoever_asks_and_whatever_its_contacts_families_are_the_same() -> None:
    """Limited contacts limit whom a peer can merge with, not what it knows."""
    prints, label = clusters([10, 10], 30, gap=0.5, seed=1)
    answer = found(prints)
    rows, columns = torch.arange(20), torch.stack([torch.randperm(20)[:6] for _ in range(20)])
    weights = [answer.weights(rows, columns, limited) for limited in (False, True)]
    assert torch.equal(*weights)
    assert torch.equal(weights[0], (label[rows, None] == label[columns]).double())
