"""Continua: every peer's distribution as a mixture of those of all peers, or of its contacts alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from homophily.fingerprints import fingerprint
from homophily.fingerprints.embedding import BUCKETS
from homophily.methods.kin import continuum
from homophily.methods.kin.continuum import Continuum, mixtures, on_simplex
from homophily.methods.kin.families import Kinship
from tests.methods.kin.test_families import found, gaussian, without


def on_a_line(peers: int, samples: int = 40) -> Kinship:
    """Peers evenly on a line."""
    line = torch.linspace(-1, 1, peers, dtype=torch.float64)
    direction = torch.randn(BUCKETS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return found(gaussian(line[:, None] * direction, [samples] * peers, 1))


def in_a_plane(peers: int) -> Continuum:
    """Peers anywhere in a square, with unequal numbers of samples."""
    chance = torch.Generator().manual_seed(3)
    place = 2.0 * torch.rand(peers, 2, generator=chance, dtype=torch.float64) - 1.0
    count = torch.randint(10, 50, (peers,), generator=chance).double()
    return Continuum(place, count, 0.5, 3.0, torch.arange(peers))


def others_of(peers: int) -> Tensor:
    """[N, N - 1]: everyone but oneself."""
    return torch.stack([torch.cat([torch.arange(i), torch.arange(i + 1, peers)]) for i in range(peers)])


def of_all(continuum: Continuum) -> Tensor:
    """The mixtures of all peers, of the peers in the sample: [N, S]."""
    peers, sample = torch.arange(len(continuum.place)), torch.arange(len(continuum.sample))
    return continuum.of_sample(peers, sample.expand(len(peers), -1))


def test_the_nearest_point_of_the_simplex() -> None:
    rows = torch.tensor([[0.2, 0.3, 0.5], [2.0, 0.0, 0.0], [0.5, 0.5, 0.5], [-1.0, -1.0, 3.0]]).double()
    near = on_simplex(rows)
    assert torch.allclose(near, torch.tensor([[0.2, 0.3, 0.5], [1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 1]]).double())


def test_the_nearest_point_is_on_the_simplex_and_keeps_the_order() -> None:
    rows = 3.0 * torch.randn(50, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near = on_simplex(rows)
    assert torch.allclose(near.sum(1), torch.ones(50).double())
    assert bool((near >= 0).all())
    assert bool((near.gather(1, rows.argsort(1)).diff(dim=1) >= 0).all())
    assert torch.allclose(on_simplex(near), near)


def test_mixtures_by_hand() -> None:
    """Two peers in one direction at z and -z: by symmetry p_1 = (1 - q, q), and the risk in q is a parabola."""
    z = torch.tensor([[0.3], [-0.3]]).double()
    variance, own = 31 / 20, 1 / 20
    p = mixtures(z, z, torch.eye(2).bool(), torch.full((2,), own).double(), torch.full((2,), variance).double())
    # (1 - 2q)^2 z^2 + v((1 - q)^2 + q^2) - 2((1 - q)(z^2 - own) - q z^2), least where its slope is 0
    q = (2 * 0.09 + variance - 0.09 * 2 + own) / (4 * 0.09 + 2 * variance)
    assert torch.allclose(p, torch.tensor([[1 - q, q], [q, 1 - q]]).double(), atol=1e-6)


def test_a_continuum_is_no_family_and_neighbours_on_it_count_most() -> None:
    answer = on_a_line(40)
    assert answer.rank == 1
    assert answer.family is None
    assert answer.continuum is not None
    mixture = of_all(answer.continuum)
    assert torch.allclose(mixture.sum(1), torch.ones(40).double(), atol=1e-4)
    assert float(mixture[2, :10].sum()) > 0.9


def test_blocks_of_peers_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = in_a_plane(12)
    whole = of_all(plane)
    monkeypatch.setattr(continuum, "_BLOCK", 5)
    assert torch.allclose(of_all(plane), whole, atol=1e-9)
    assert torch.equal(
        plane.of_sample(torch.tensor([7, 2]), torch.tensor([[3], [4]]))[:, 0], of_all(plane)[[7, 2], [3, 4]]
    )


# Mixtures over contacts


def test_the_mixture_among_everyone_is_that_of_all() -> None:
    plane = in_a_plane(12)
    everyone = of_all(plane)
    among = plane.among(torch.arange(12), others_of(12))
    expected = everyone[~torch.eye(12).bool()].view(12, 11)
    assert torch.allclose(among, expected, atol=1e-6)
    assert torch.allclose(everyone.sum(1), torch.ones(12).double())


def test_a_mixture_over_few_contacts_is_a_mixture_of_these_and_oneself() -> None:
    plane = in_a_plane(12)
    columns = torch.tensor([[1, 2, 3], [0, 5, 7]])
    shares = plane.among(torch.tensor([0, 1]), columns)
    for row in range(2):
        few = [*columns[row].tolist(), row]
        alone = of_all(Continuum(plane.place[few], plane.count[few], 0.5, 3.0, torch.arange(4)))
        assert torch.allclose(shares[row], alone[3, :3], atol=1e-6)
    assert bool((shares.sum(1) < 1).all())  # the rest is oneself


def test_padding_gets_exactly_0_and_changes_nothing() -> None:
    plane = in_a_plane(12)
    columns = torch.tensor([[1, 2, 3]])
    padded = torch.tensor([[-1, 1, -1, 2, 3, -1]])
    found = plane.among(torch.tensor([0]), padded)
    assert found[0, [0, 2, 5]].tolist() == [0.0, 0.0, 0.0]
    assert torch.allclose(found[0, [1, 3, 4]], plane.among(torch.tensor([0]), columns)[0], atol=1e-9)
    assert plane.among(torch.tensor([0]), torch.full((1, 4), -1)).tolist() == [[0.0] * 4]


def test_what_the_mask_leaves_out_gets_exactly_0_whatever_its_place_and_noise() -> None:
    chance = torch.Generator().manual_seed(0)
    rows, others = (torch.randn(*shape, generator=chance, dtype=torch.float64) for shape in ((6, 2), (6, 5, 2)))
    mask = torch.rand(6, 5, generator=chance) < 0.6
    mask[:, -1], mask[5] = True, False
    oneself = torch.zeros(6, 5).bool()
    oneself[:, -1] = True
    noise = 0.1 + torch.rand(2, 6, 5, generator=chance, dtype=torch.float64)
    others[:, -1] = rows
    found = mixtures(rows, torch.where(mask[..., None], others, 0.0), oneself, *noise, mask)
    assert not found[~mask].any()
    assert torch.allclose(found[:5].sum(1), torch.ones(5).double(), atol=1e-6)
    assert found[5].tolist() == [0.0] * 5  # nobody is left, not even oneself
    for row in range(5):
        some = mask[row]
        alone = mixtures(rows[row, None], others[row, some], oneself[row, some][None], *noise[:, row, some])
        assert torch.allclose(found[row, some], alone[0], atol=1e-6)


def test_a_contact_without_a_fingerprint_is_no_part_of_a_mixture() -> None:
    plane = in_a_plane(12)
    place, count = plane.place.clone(), plane.count.clone()
    place[2], count[2] = torch.nan, 0.0
    one_less = Continuum(place, count, 0.5, 3.0, torch.tensor([0, 1, *range(3, 12)]))
    found = one_less.among(torch.tensor([0]), torch.tensor([[1, 2, 3]]))
    assert float(found[0, 1]) == 0.0
    assert torch.allclose(found[0, [0, 2]], plane.among(torch.tensor([0]), torch.tensor([[1, 3]]))[0], atol=1e-9)


def test_a_peer_without_a_fingerprint_has_no_mixture() -> None:
    plane = in_a_plane(12)
    place, count = plane.place.clone(), plane.count.clone()
    place[2], count[2] = torch.nan, 1.0
    one_less = Continuum(place, count, 0.5, 3.0, torch.tensor([0, 1, *range(3, 12)]))
    assert of_all(one_less)[2].tolist() == [0.0] * 11
    assert one_less.among(torch.tensor([2, 0]), torch.tensor([[0, 1, 3], [1, 2, 3]]))[0].tolist() == [0.0] * 3


def test_peers_are_worked_on_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = in_a_plane(12)
    whole = plane.among(torch.arange(12), others_of(12))
    monkeypatch.setattr(continuum, "_AT_ONCE", 5)
    assert torch.allclose(plane.among(torch.arange(12), others_of(12)), whole, atol=1e-6)


# In an answer


def test_with_limited_contacts_the_shares_are_of_these_alone() -> None:
    answer = on_a_line(40)
    rows, near = torch.tensor([2, 20]), torch.tensor([[0, 1, 3, 4, -1], [18, 19, 21, 22, 39]])
    everyone, contacts = (answer.weights(rows, near, limited) for limited in (False, True))
    assert torch.equal(everyone[0, -1:], torch.zeros(1).double())
    assert torch.equal(contacts[0, -1:], torch.zeros(1).double())
    assert bool((contacts.sum(1) > everyone.sum(1)).all())  # there are fewer to share with
    assert float(contacts[1, 4]) < 0.01  # the far end of the line
    assert bool((contacts.sum(1) < 1).all())


def test_among_many_peers_the_mixtures_are_of_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "LARGE", 30)
    answer = on_a_line(40)
    assert answer.continuum is not None
    sample = answer.continuum.sample
    assert len(sample) == 30
    weights = answer.weights(torch.arange(40), torch.arange(40).expand(40, -1), False)
    outside = torch.ones(40, dtype=torch.bool).index_fill(0, sample, False)
    assert not weights[:, outside].any()
    assert torch.allclose(weights.sum(1), torch.ones(40).double(), atol=1e-4)
    contacts = torch.stack([torch.arange(40)[outside][:5]] * 40)
    limited = answer.weights(torch.arange(40), contacts, True)  # contacts outside the sample can count
    assert bool((limited > 0).any())


def test_peers_without_a_fingerprint_count_for_nobody_in_a_continuum() -> None:
    line = torch.linspace(-1, 1, 40, dtype=torch.float64)
    direction = torch.randn(BUCKETS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answer = found(without(gaussian(line[:, None] * direction, [40] * 40, 1), 7))
    assert answer.family is None
    everyone = torch.arange(40).expand(40, -1)
    columns = torch.where(torch.eye(40).bool(), -1, everyone)
    for limited in (False, True):
        weights = answer.weights(torch.arange(40), columns, limited)
        assert not weights[7].any()
        assert not weights[:, 7].any()
        assert bool(weights.isfinite().all())
