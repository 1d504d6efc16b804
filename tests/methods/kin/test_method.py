"""kin as a method: fingerprints before the first round, and from then on only one's own family."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import homophily
from homophily.federation.contacts import view_of_all
from homophily.federation.view import View
from homophily.methods import methods
from homophily.methods.dispatch import meet
from homophily.methods.kin.families import kinship
from homophily.methods.kin.method import balanced
from homophily.randomness import normal
from tests.methods.kin.test_families import clusters, gaussian, without
from tests.methods.views import view_of

pytestmark = pytest.mark.usefixtures("here")

DIGITS: dict[str, Any] = {
    "peers": 40,
    "rounds": 6,
    "data": {"train": 30, "angles": [0, 180]},
    "method": {"name": "kin"},
}

FINGERPRINT = 2 * (512 + sum(512 - row for row in range(29))) + 16  # bytes: the mean and a triangle of 29 rows


def test_kin_meets_its_family_only() -> None:
    prints, label = clusters([8, 4], 30, gap=0.5, seed=1)
    view = view_of(12)
    kin = methods.get("kin")(k=3)
    memory = kin.on_fingerprints(view, prints, view.me, False).memory
    often = sum(meet(kin, view, round, memory).double() for round in range(1, 60))
    assert not bool(often[label[:, None] != label].any())
    assert meet(kin, view, 1, memory).sum(1).tolist() == [3] * 12
    inside = often[(label[:, None] == label) & view.known]
    assert float(inside.min()) > 10  # everyone of it, in turn


def test_kin_says_what_it_found() -> None:
    kin, view = methods.get("kin")(k=3), view_of(12)
    prints, _ = clusters([8, 4], 30, gap=0.5, seed=1)
    assert kin.notes(view, kin.on_fingerprints(view, prints, view.me, False).memory) == [
        "found 2 families, of 8, 4 peers"
    ]
    prints, _ = clusters([5, 3, *[4] * 8], 30, gap=0.5, seed=1)
    many = kin.notes(view_of(40), kin.on_fingerprints(view_of(40), prints, torch.arange(40), False).memory)
    assert many == ["found 10 families, of 3 to 5 peers"]
    continuum = kin.on_fingerprints(view_of(40), gaussian(line(40), [40] * 40, 1), torch.arange(40), False).memory
    assert kin.notes(view_of(40), continuum) == ["found no families but a continuum, and draws partners by likeness"]


def test_a_real_peer_says_what_kin_found_for_it() -> None:
    kin, view = methods.get("kin")(k=3), view_of(12)
    prints, label = clusters([8, 4], 30, gap=0.5, seed=1)
    families = kin.on_fingerprints(view, prints, view.me, None).memory
    for peer, size in enumerate(torch.where(label == label[0], int((label == label[0]).sum()), 0).tolist()):
        one = {name: table[peer : peer + 1] for name, table in families.items()}
        found = kin.peer_notes(view.rows(slice(peer, peer + 1)), one)
        assert found == [f"this peer belongs to a family of {size or int((label != label[0]).sum())} peers"]
    same, _ = clusters([12], 30, gap=0.5, seed=1)
    memory = kin.on_fingerprints(view, same, view.me, None).memory
    one = {name: table[:1] for name, table in memory.items()}
    assert kin.peer_notes(view.rows(slice(0, 1)), one) == kin.notes(view, memory)
    continuum = kin.on_fingerprints(view_of(40), gaussian(line(40), [40] * 40, 1), torch.arange(40), None).memory
    one = {name: table[:1] for name, table in continuum.items()}
    assert kin.peer_notes(view_of(40).rows(slice(0, 1)), one) == kin.notes(view_of(40), continuum)
    assert kin.peer_notes(view, {}) == []


def test_kin_says_what_it_could_not_have_found() -> None:
    """One family is no claim that the data are alike."""
    kin, view = methods.get("kin")(k=3), view_of(12)
    prints, _ = clusters([12], 30, gap=0.5, seed=1)
    memory = kin.on_fingerprints(view, prints, view.me, False).memory
    evidence = kinship(prints, torch.arange(12), 0).evidence
    assert evidence is not None
    limit = homophily.methods.kin.power.smallest_difference(evidence)
    assert memory["smallest_difference"].tolist() == [limit] * 12
    assert limit is not None
    found, advice = kin.notes(view, memory)
    assert found == (
        "found no difference between the fingerprints of 12 peers, so all count as one family; two equal groups that "
        f"differ by less than {limit:.2g} standard deviations of one embedded sample (four groups: "
        f"{math.sqrt(2) * limit:.2g}) would not have been seen with these samples"
    )
    assert advice == (
        "the data may still differ in ways that fingerprints do not show: try more samples per peer, and compare with "
        "method=random"
    )


def test_fingerprints_without_any_noise_say_nothing_of_the_smallest_difference() -> None:
    kin, view = methods.get("kin")(k=3), view_of(12)
    still = gaussian(torch.zeros(12, 512).double(), [30] * 12, 1, torch.zeros(512))
    found, _ = kin.notes(view, kin.on_fingerprints(view, still, view.me, False).memory)
    assert found == "found no difference between the fingerprints of 12 peers, so all count as one family"


def test_with_limited_contacts_kin_says_what_was_found_among_all() -> None:
    prints, _ = clusters([10, 10], 30, gap=0.5, seed=1)
    view, kin = limited_view(20, 5), methods.get("kin")()
    memory = kin.on_fingerprints(view, prints, view.me, True).memory
    assert kin.notes(view, memory) == ["found 2 families, of 10, 10 peers"]


@pytest.mark.parametrize(
    ("train", "sentences"),
    [
        (2, ["too few samples to compare anyone: all peers with a fingerprint count as one family"]),
        (1, ["20 peers have too few samples for a fingerprint, and merge with nobody"]),
    ],
)
def test_kin_says_if_nobody_can_be_compared(train: int, sentences: list[str]) -> None:
    found = homophily.run({"peers": 20, "rounds": 1, "data": {"train": train}, "method": {"name": "kin"}})
    assert found.summary["notes"] == sentences


def test_kin_says_that_one_peer_has_nobody_to_be_compared_with() -> None:
    one = [homophily.PeerData([[float(i), 1.0] for i in range(30)], [i % 2 for i in range(30)])]
    found = homophily.run({"rounds": 1, "method": "kin", "model": "linear"}, data=one)
    assert found.summary["notes"] == ["there is one peer, and nobody to compare it with"]


def test_the_balanced_make_up_for_each_other_by_hand() -> None:
    """On a line, from 0: the nearest is 2; -3 brings the sum to -1, 5 to 4; then all are taken that there are."""
    away = torch.tensor([[[2.0], [4.0], [-3.0], [5.0]], [[2.0], [4.0], [-3.0], [5.0]]]).double()
    mask = torch.tensor([[True] * 4, [True, True, False, True]])
    assert balanced(away, mask, 1).tolist() == [[True, False, False, False]] * 2
    assert balanced(away, mask, 2).tolist() == [[True, False, True, False], [True, True, False, False]]
    assert balanced(away, mask, 3).tolist() == [[True, True, True, False], [True, True, False, True]]
    assert torch.equal(balanced(away, mask, 9), mask)
    plane = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [-0.9, -1.0], [-1.0, 0.2]]]).double()
    assert balanced(plane, torch.ones(1, 4).bool(), 2).tolist() == [[True, False, False, True]]


def limited_view(peers: int, contacts: int) -> View:
    """Each peer knows only so many others."""
    return view_of_all(peers, 0, None, 1, contacts, None, torch.device("cpu"))


def line(peers: int) -> torch.Tensor:
    """A continuum: centres [N, 512] evenly on a line."""
    direction = torch.randn(512, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.linspace(-1, 1, peers, dtype=torch.float64)[:, None] * direction


@pytest.mark.parametrize("limited", [False, True])
def test_in_a_continuum_partners_are_of_the_mixture_and_nearer_together_than_by_lot(limited: bool) -> None:
    """Whether partners are limited to contacts or not: here everyone is a contact, so that the answer is the same."""
    peers, k = 40, 3
    view, prints = view_of(peers).rows(slice(18, 22)), gaussian(line(peers), [40] * peers, 1)
    kin = methods.get("kin")(k=k)
    memory = kin.on_fingerprints(view, prints, torch.arange(peers), limited).memory
    weights, at = memory["weights"], torch.linspace(-1, 1, peers).double()
    assert memory["family"].tolist() == [-1] * 4
    off, by_lot, met = [], [], set()
    for round in range(1, 60):
        mine = meet(kin, view, round, memory)
        assert bool((weights[mine] > 0).all())
        assert mine.sum(1).tolist() == [k] * 4
        met |= {tuple(pair) for pair in mine.nonzero().tolist()}
        drawn = torch.multinomial(weights, k, generator=torch.Generator().manual_seed(round))
        off.append((mine * at).sum(1) / k - at[view.me])
        by_lot.append(at[drawn].sum(1) / k - at[view.me])
    assert float(torch.stack(off).square().mean()) < 0.5 * float(torch.stack(by_lot).square().mean())
    assert len(met) > 0.5 * int((weights > 0).sum())  # in turn, not always the same


def test_in_a_continuum_limited_contacts_are_weighed_among_themselves() -> None:
    """A peer whose contacts are all far away still merges with the nearest of them."""
    peers = 40
    prints, kin = gaussian(line(peers), [40] * peers, 1), methods.get("kin")(k=2)
    view = limited_view(peers, 6)
    memory = kin.on_fingerprints(view, prints, view.me, True).memory
    found = kinship(prints, view.me, 0)
    columns = torch.where(view.known, view.contacts, -1)
    assert torch.equal(memory["weights"], found.weights(view.me, columns, True))
    assert int((memory["weights"] > 0).sum(1).min()) >= 1
    met = meet(kin, view, 1, memory)
    assert bool((met.sum(1) >= 1).all())
    assert bool((memory["weights"][met] > 0).all())


def test_a_peer_without_a_fingerprint_meets_nobody_in_a_continuum() -> None:
    prints, kin, view = without(gaussian(line(40), [40] * 40, 1), 5), methods.get("kin")(k=3), limited_view(40, 12)
    for limited in (False, True):
        memory = kin.on_fingerprints(view, prints, view.me, limited).memory
        often = sum(meet(kin, view, round, memory).double() for round in range(1, 30))
        assert not often[5].any()
        assert not often[view.contacts == 5].any()
        assert bool((often.sum(1) > 0).index_fill(0, torch.tensor(5), True).all())


@pytest.mark.parametrize("limited", [False, True])
def test_contacts_limit_partners_and_not_knowledge(limited: bool) -> None:
    """One decision for all: each peer keeps to its family among its contacts, even if it knows nobody else."""
    prints, label = clusters([10, 10], 30, gap=0.5, seed=1)
    view, kin = limited_view(20, 4), methods.get("kin")()
    memory = kin.on_fingerprints(view, prints, view.me, limited).memory
    whole = kin.on_fingerprints(view_of(20), prints, view.me, False).memory
    assert torch.equal(memory["family"], whole["family"])
    assert torch.equal(memory["family"], label)
    assert torch.equal(memory["weights"] > 0, label[:, None] == label[view.contacts])
    met = meet(kin, view, 1, memory)
    assert torch.equal(met, (memory["weights"] > 0) & view.known)  # four contacts at most: all of the family


def test_kin_equals_the_truth_on_digits_and_pays_for_its_fingerprints() -> None:
    found = homophily.run(DIGITS).summary
    assert found["same_cluster_merges"] == found["neighbour_precision"] == found["neighbour_recall"] == 1.0
    assert found["models_sent_per_peer"] == 6 * 4
    oracle = homophily.run({**DIGITS, "method": {"name": "oracle"}}).summary
    fingerprints = 39 * FINGERPRINT  # from everyone once
    assert found["bytes_sent_per_peer"] - oracle["bytes_sent_per_peer"] == fingerprints


def test_on_one_distribution_everyone_is_kin() -> None:
    config = {**DIGITS, "data": {"train": 30, "shift": "iid"}}
    kin, anyone = (homophily.run({**config, "method": {"name": name}}) for name in ("kin", "random"))
    assert int((kin.neighbours() > 0).sum()) == 40 * 39
    assert abs(kin.summary["accuracy"] - anyone.summary["accuracy"]) < 6


def test_in_a_partial_topology_kin_looks_at_all_and_meets_those_within_its_hops() -> None:
    found = homophily.run({**DIGITS, "topology": {"name": "torus", "rows": 5}, "method": {"name": "kin", "hops": 2}})
    assert found.summary["same_cluster_merges"] == 1.0
    far = {int(hops) for hops in found.summary["models_per_peer_round_by_hops"]}
    assert far == {1, 2}


def test_engines_and_resume_agree() -> None:
    runs = [homophily.run({**DIGITS, "engine": engine}) for engine in ("vectorised", "one-by-one")]
    assert np.array_equal(runs[0].merges(), runs[1].merges())
    half = homophily.run({**DIGITS, "rounds": 3})
    assert np.array_equal(homophily.resume(half.path, {"rounds": 6}).merges(), runs[0].merges())


def test_fingerprints_are_made_anew_when_asked() -> None:
    def size(renew: int) -> float:
        return float(
            homophily.run({**DIGITS, "method": {"name": "kin", "renew": renew}}).summary["bytes_sent_per_peer"]
        )

    once = 39 * FINGERPRINT
    assert size(2) - size(0) == 2 * once  # before rounds 3 and 5 too


def test_the_answer_does_not_depend_on_how_models_start() -> None:
    found = homophily.run({**DIGITS, "init": "independent"}).summary
    assert found["neighbour_precision"] == found["neighbour_recall"] == 1.0


def test_a_new_fingerprint_changes_the_answer_of_all() -> None:
    prints, _ = clusters([8, 8], 30, gap=0.5, seed=1)
    view, kin = limited_view(16, 5), methods.get("kin")()
    before = kin.on_fingerprints(view, prints, view.me, True).memory
    prints.mean[15] += 5 * normal(1, torch.arange(512)).float()
    after = kin.on_fingerprints(view, prints, view.me, True).memory
    assert before["family"].tolist() == [0] * 8 + [1] * 8
    assert after["family"].tolist() == [0] * 8 + [1] * 7 + [2]
    changed = (before["weights"] != after["weights"]).any(1)
    assert torch.equal(changed[:15], ((view.contacts == 15) & (before["weights"] > 0)).any(1)[:15])


def test_the_answer_alone(tmp_path: object) -> None:
    found = homophily.kin(DIGITS)
    assert found.families == [list(range(20)), list(range(20, 40))]
    answer = found.summary()
    assert (answer["rank"], answer["precision"], answer["recall"], answer["left_out"]) == (1, 1.0, 1.0, [])
    assert answer["singular_values"][0] > answer["edge"] > answer["singular_values"][1]
    assert answer["bytes_per_peer"] == 39 * FINGERPRINT
    assert (answer["enough_samples"], answer["conclusive"]) == (True, True)
    assert answer["smallest_difference"] == found.smallest_difference
    assert 0.2 < answer["smallest_difference"] < 2


def test_the_answer_alone_counts_the_bytes_that_a_run_sends() -> None:
    """Fingerprints travel over several hops, and in a large federation a peer receives those of a sample."""
    ring = homophily.kin({**DIGITS, "topology": "ring"})
    assert ring.bytes_per_peer == FINGERPRINT * (2 * sum(range(1, 20)) + 20)
    peers = [homophily.PeerData(x, [0, 1, 0]) for x in torch.randn(1040, 3, 2, generator=torch.Generator())]
    config = {"contacts": 10, "rounds": 1}
    large = homophily.kin(config, data=peers, model=torch.nn.Linear(2, 2))
    run = homophily.run(config, data=peers, model=torch.nn.Linear(2, 2))
    model_bytes = 6 * 4
    sent = run.summary["bytes_sent_per_peer"] - model_bytes * run.summary["models_sent_per_peer"]
    assert large.bytes_per_peer == pytest.approx(sent)
    assert large.bytes_per_peer < 1039 * large.prints.bytes.double().mean()


@pytest.mark.parametrize(
    ("data", "enough", "known"), [({"train": 30, "shift": "iid"}, True, True), ({"train": 2}, False, False)]
)
def test_an_answer_without_a_difference_is_not_conclusive(data: dict[str, Any], enough: bool, known: bool) -> None:
    answer = homophily.kin({"peers": 40, "data": data}).summary()
    assert (answer["rank"], answer["enough_samples"], answer["conclusive"]) == (0, enough, False)
    assert (answer["smallest_difference"] is not None) == (answer["edge"] is not None) == known
    assert "told" not in answer


def test_own_data_is_asked_the_same_way() -> None:
    """Should these hospitals train together?"""
    chance = np.random.default_rng(0)
    data = []
    for clinic in range(24):
        x = chance.normal(size=(50, 4))
        disease = x[:, 0] > 0 if clinic < 12 else x[:, 1] > 0.5  # a sign means different things in different places
        data.append(homophily.PeerData(x=x, y=disease.astype(int)))
    found = homophily.kin({"model": {"name": "linear"}}, data=data)
    assert found.families == [list(range(12)), list(range(12, 24))]
    assert found.summary()["precision"] is None


def test_a_continuum_with_limited_contacts_runs() -> None:
    data = {"shift": "dirichlet", "alpha": 0.3, "train": 30}
    found = homophily.run({"peers": 40, "rounds": 2, "contacts": 10, "data": data, "method": {"name": "kin"}})
    assert found.summary["notes"] == ["found no families but a continuum, and draws partners by likeness"]
    assert found.summary["models_sent_per_peer"] > 0
