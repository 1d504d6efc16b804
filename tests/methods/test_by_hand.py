"""The steps of each method on five peers, compared with results computed by hand."""

import math

import pytest
import torch

from homophily.errors import UserError
from homophily.methods import RoundContext, methods
from homophily.methods.base import usable
from homophily.methods.server import ServerMethod
from tests.methods.views import NO, a_set, members, play, view_of

FIVE = view_of(5, [0, 0, 0, 1, 1])
FIRST = FIVE.rows(slice(0, 1))


def numbers(*row: float) -> torch.Tensor:
    return torch.tensor([row], dtype=torch.float64)


def test_random_draws_k_peers_in_every_round() -> None:
    played = play(methods.get("random")(k=2), FIVE, 30)
    for met, chosen, _ in played:
        assert met.sum(1).tolist() == [2] * 5
        assert not bool(met.diagonal().any())
        assert torch.equal(met, chosen)
    often = torch.stack([met for met, _, _ in played]).double().mean(0)
    assert float(often[~torch.eye(5, dtype=torch.bool)].min()) > 0.2


def test_a_fixed_topology_is_drawn_once() -> None:
    played = play(methods.get("fix-topology")(k=2), FIVE, 5)
    assert all(torch.equal(met, played[0][0]) for met, _, _ in played)


def test_oracle_meets_its_cluster() -> None:
    (met, _, _), *_ = play(methods.get("oracle")(k=2), FIVE, 1)
    assert members(met) == [[1, 2], [0, 2], [0, 1], [4], [3]]


def test_panm_stage_one_keeps_the_best_of_candidates_and_neighbours() -> None:
    panm = methods.get("panm")(l=2, k=2, t1=3)
    now = RoundContext(FIRST, 2, {"neighbours": a_set(5, (1, 3))})
    met = panm.meet(now)
    assert members(met) == [[1, 2, 3, 4]]  # both neighbours and both others
    chosen = panm.choose(now, met, numbers(NO, 0.9, 0.8, 0.1, 0.2))
    assert members(chosen) == members(now.memory["neighbours"]) == [[1, 2]]
    assert members(panm.neighbours(now, chosen)) == [[1, 2]]


def test_panm_round_one_has_only_candidates() -> None:
    panm = methods.get("panm")(l=3, k=2, t1=3)
    now = RoundContext(FIRST, 1)
    met = panm.meet(now)
    assert int(met.sum()) == 3
    chosen = panm.choose(now, met, torch.where(met, numbers(NO, 4, 3, 2, 1), NO))
    assert chosen[0].nonzero()[:, 0].tolist() == met[0].nonzero()[:, 0].tolist()[:2]


def test_panm_ties_are_broken_by_a_draw_and_not_by_order() -> None:
    panm = methods.get("panm")(l=4, k=1, t1=9)
    chosen = set()
    for round in range(1, 30):
        now = RoundContext(FIRST, round)
        chosen |= {c for row in members(panm.choose(now, panm.meet(now), numbers(NO, 1, 1, 1, 1))) for c in row}
    assert chosen == {1, 2, 3, 4}


def test_panm_matches_neighbours_by_em_when_the_round_divides_by_tau() -> None:
    panm = methods.get("panm")(l=4, k=2, t1=3, tau=5)
    now = RoundContext(FIRST, 5, {"neighbours": a_set(5, (1, 3))})
    met = panm.meet(now)
    assert members(met) == [[1, 2, 3, 4]]
    assert panm.compares(now)
    # S = {1, 3} starts above C = {2, 4}: means 0.6 and 0.5. The next sweep has 0.9, 0.88 against 0.3, 0.12.
    chosen = panm.choose(now, met, numbers(NO, 0.9, 0.88, 0.3, 0.12))
    assert members(now.memory["neighbours"]) == [[1, 2]]
    assert members(chosen) == [[1, 2]]


def test_panm_in_plain_rounds_of_stage_two_asks_neighbours_only_and_compares_nobody() -> None:
    panm = methods.get("panm")(l=4, k=1, t1=3, tau=5)
    now = RoundContext(FIRST, 6, {"neighbours": a_set(5, (1, 3))})
    met = panm.meet(now)
    assert int(met.sum()) == 1
    assert not bool((met & ~a_set(5, (1, 3))).any())
    assert not panm.compares(now)
    assert torch.equal(panm.choose(now, met, None), met)


def test_panm_never_loses_its_last_neighbours_to_diverged_models() -> None:
    panm = methods.get("panm")(l=4, k=2, t1=3, tau=5)
    now = RoundContext(FIRST, 5, {"neighbours": a_set(5, (1, 3))})
    panm.choose(now, panm.meet(now), numbers(NO, NO, NO, NO, NO))
    assert members(now.memory["neighbours"]) == [[1, 3]]


def test_pens_counts_the_best_and_then_keeps_those_above_the_threshold() -> None:
    pens = methods.get("pens")(l=4, k=2, t1=2, threshold="pens")
    memory: dict[str, torch.Tensor] = {}
    for round, alike in ((1, numbers(NO, 5, 4, 3, 2)), (2, numbers(NO, 5, 1, 4, 2))):
        now = RoundContext(FIRST, round, memory)
        chosen = pens.choose(now, pens.meet(now), alike)
    assert members(chosen) == [[1, 3]]
    assert memory["count"].tolist() == [[0, 2, 1, 1, 0]]
    # Expected: t1 * k / N = 0.8, so three are above it; "panm": ceil(t1 * l / N) = 2 leaves one.
    assert members(pens.neighbours(RoundContext(FIRST, 3, memory), chosen)) == [[1, 2, 3]]
    asked = pens.meet(RoundContext(FIRST, 3, memory))
    assert int(asked.sum()) == 2
    assert not bool(asked[0, 4])
    strict = methods.get("pens")(l=4, k=2, t1=2, threshold="panm")
    assert members(strict.meet(RoundContext(FIRST, 3, memory))) == [[1]]
    printed = methods.get("pens")(l=4, k=2, t1=2, threshold="panm-printed")  # ceil(2 * 6 / 5) = 3: nobody
    assert members(printed.meet(RoundContext(FIRST, 3, memory))) == [[]]


def test_dac_draws_by_softmax_of_tau_times_similarity() -> None:
    """Row 0 has similarities 0, ln 2, ln 3, ln 4 at tau 1: probabilities 0.1, 0.2, 0.3, 0.4."""
    entries = torch.tensor([[torch.nan, torch.nan, math.log(2), math.log(3), math.log(4)]]).double()
    dac = methods.get("dac")(k=1, tau=1.0, estimate=False)
    drawn = torch.zeros(5)
    for round in range(1, 4001):
        drawn += dac.meet(RoundContext(FIRST, round, {"similarity": entries}))[0]
    assert torch.allclose(drawn / 4000, torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4]), atol=0.03)
    mass = dac.neighbours(RoundContext(FIRST, 1, {"similarity": entries}), a_set(5, ()))
    assert torch.allclose(mass, numbers(0, 0.1, 0.2, 0.3, 0.4))


def test_dac_estimates_by_the_most_similar_friend_that_has_an_entry() -> None:
    dac = methods.get("dac")(k=2)
    says = {1: numbers(0.3, torch.nan, torch.nan, 0.7, torch.nan), 2: numbers(0.4, 0.1, torch.nan, 0.2, 0.6)}

    def shared(name: str, friends: torch.Tensor) -> torch.Tensor:
        assert name == "similarity"
        assert friends.tolist() == [[1, 2]]  # the most similar first
        return torch.where(says[1].isnan(), says[2], says[1])

    now = RoundContext(FIRST, 2, {}, shared)
    chosen = dac.choose(now, a_set(5, (1, 2)), numbers(NO, 0.9, 0.5, NO, NO))
    assert members(chosen) == [[1, 2]]
    # 3: friend 1 (more similar) says 0.7; 4: only friend 2 says 0.6; measured ones are one's own.
    assert now.memory["similarity"][0, 1:].tolist() == [0.9, 0.5, 0.7, 0.6]
    assert members(now.memory["met"]) == [[1, 2]]
    # Met before: one's own old measurement stays, whatever friends say now.
    again = RoundContext(FIRST, 3, {"similarity": numbers(0, 0.9, 0.5, 0.33, 0.6), "met": a_set(5, (1, 2, 3))}, shared)
    dac.choose(again, a_set(5, (1, 2)), numbers(NO, 0.8, 0.4, NO, NO))
    assert again.memory["similarity"][0, 1:].tolist() == [0.8, 0.4, 0.33, 0.6]


def test_dac_with_tau_10_000_takes_the_most_similar_and_fills_up_in_order() -> None:
    entries = numbers(0, 0.9, 0.5, 0.2, 0.1)
    assert members(methods.get("dac")(k=3, tau=10_000.0).meet(RoundContext(FIRST, 1, {"similarity": entries}))) == [
        [1, 2, 3]
    ]
    equal = [
        members(
            methods.get("dac")(k=1, tau=10_000.0).meet(RoundContext(FIRST, t, {"similarity": numbers(0, 1, 1, 1, 1)}))
        )[0][0]
        for t in range(1, 40)
    ]
    assert set(equal) == {1, 2, 3, 4}


def test_dac_remembers_negative_similarities_as_entries() -> None:
    now = RoundContext(FIRST, 1, {}, lambda name, friends: torch.full((1, 5), torch.nan).double())
    dac = methods.get("dac")(k=2, tau=1.0)
    dac.choose(now, a_set(5, (1, 2)), numbers(NO, -0.5, 0.25, NO, NO))
    assert now.memory["similarity"][0].isnan().tolist() == [True, False, False, True, True]
    weights = torch.tensor([0.0, math.exp(-0.5), math.exp(0.25), 1.0, 1.0]).double()
    assert torch.allclose(dac.neighbours(now, a_set(5, ()))[0], weights / weights.sum())


def test_dac_var_warms_up_from_one_towards_tau_max_plus_one() -> None:
    dac = methods.get("dac-var")(tau_max=30.0)
    assert dac._temperature(1) == 1.0
    assert dac._temperature(11) == pytest.approx(1 + 30 * (2 / (1 + math.exp(-2)) - 1))
    assert dac._temperature(1000) == pytest.approx(31.0)


def test_dpg_updates_probabilities_of_the_drawn_and_keeps_the_others() -> None:
    near = FIVE.rows(slice(0, 1))
    near = type(near)(near.me, near.seed, near.contacts, near.known, torch.tensor([[1, 1, 2, 2, 1]]), near.same)
    dpg = methods.get("dpg")(k=2, rho=0.1)
    now = RoundContext(near, 1)
    assert torch.allclose(dpg.neighbours(now, a_set(5, ())), numbers(0, 0.25, 0.25, 0.25, 0.25))
    chosen = dpg.choose(now, a_set(5, (1, 2)), numbers(NO, 3.0, 1.0, NO, NO))
    assert members(chosen) == [[1, 2]]
    # shares 0.75 and 0.25, minus 0.1 and 0.2 for one and two hops
    assert torch.allclose(now.memory["probability"], numbers(0, 0.65, 0.05, 0.25, 0.25))
    dpg.choose(RoundContext(near, 2, now.memory), a_set(5, (2, 3)), numbers(NO, NO, 0.0, 2.0, NO))
    assert torch.allclose(now.memory["probability"], numbers(0, 0.65, 0.0, 0.8, 0.25))
    assert 2 not in {c for t in range(3, 60) for c in members(dpg.meet(RoundContext(near, t, now.memory)))[0]}


def test_dpg_starts_again_when_every_probability_is_zero() -> None:
    dpg = methods.get("dpg")(k=4, rho=1.0)
    now = RoundContext(FIRST, 1)
    dpg.choose(now, a_set(5, (1, 2, 3, 4)), numbers(NO, 1, 1, 1, 1))
    assert float(now.memory["probability"].sum()) == 0.0
    assert members(dpg.meet(RoundContext(FIRST, 2, now.memory))) == [[1, 2, 3, 4]]


def test_dpg_s_ignores_distance_and_has_no_rho() -> None:
    assert methods.get("dpg-s")().rho == 0.0
    with pytest.raises(TypeError):
        methods.get("dpg-s")(rho=0.5)


def test_clients_take_the_server_model_with_the_lowest_loss() -> None:
    ifca: ServerMethod = methods.get("ifca")(models=3)
    losses = torch.tensor([[3.0, 1.0, 2.0], [0.5, torch.nan, 2.0], [torch.inf, torch.inf, 9.0]])
    assert ifca.assign(losses).tolist() == [1, 0, 2]


def test_nominal_costs_are_those_of_the_papers() -> None:
    # Table 6 of PANM: l = 4, tau = 10, T1 = 100, T2 = 200.
    assert methods.get("panm")(l=4, k=2, t1=100, tau=10).nominal(300) == 1118
    assert methods.get("panm")(l=4, k=3, t1=100, tau=10).nominal(300) == 1397
    assert methods.get("pens")(l=10, k=5, t1=100).nominal(300) == 100 * 10 + 200 * 5
    assert methods.get("random")(k=3).nominal(10) == methods.get("dac")(k=3).nominal(10) == 30
    assert methods.get("fedavg")().nominal(10) == 20
    assert methods.get("ifca")(models=4).nominal(10) == 50
    assert methods.get("local")().nominal(10) == 0


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        ("panm", {"tau": 0}, r"method\.tau = 0"),
        ("panm", {"t1": -3}, r"method\.t1 = -3: must be at least 1"),
        ("pens", {"t1": 0}, r"method\.t1 = 0"),
        ("panm", {"alpha": 7.0}, r"method\.alpha = 7.0: must be at most 1"),
        ("random", {"hops": 0}, r"method\.hops = 0: must be at least 1"),
        ("oracle", {"k": 0}, r"method\.k = 0"),
        ("kin", {"renew": -1}, r"method\.renew = -1"),
        ("dac", {"tau": -1.0}, r"method\.tau = -1"),
        ("dac-var", {"tau_max": math.inf}, r"method\.tau_max"),
        ("dpg", {"rho": -0.1}, r"method\.rho"),
    ],
)
def test_impossible_settings_are_refused(name: str, keys: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        usable(methods.get(name)(**keys))


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [("fedavg", {"fraction": 0.0}, r"method\.fraction"), ("ifca", {"models": 0}, r"method\.models")],
)
def test_impossible_settings_of_a_server_are_refused(name: str, keys: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        methods.get(name)(**keys)


def test_dpg_and_panm_learn_nothing_from_a_diverged_peer() -> None:
    dpg = methods.get("dpg")(k=2)
    now = RoundContext(FIRST, 1)
    dpg.choose(now, a_set(5, (1, 2)), numbers(NO, 3.0, NO, NO, NO))
    assert now.memory["probability"][0, 2] == 0.25
    panm = methods.get("panm")(l=4, k=2, t1=3, tau=5)
    then = RoundContext(FIRST, 5, {"neighbours": a_set(5, (1, 2))})
    panm.choose(then, a_set(5, (1, 2, 3, 4)), numbers(NO, 0.9, NO, 0.1, 0.12))
    assert members(then.memory["neighbours"]) == [[1, 2]]


def test_dac_drops_the_entry_of_a_diverged_peer() -> None:
    dac = methods.get("dac")(k=2, estimate=False)
    now = RoundContext(FIRST, 1)
    dac.choose(now, a_set(5, (1, 2)), numbers(NO, 3.0, 2.0, NO, NO))
    dac.choose(now, a_set(5, (2, 3)), numbers(NO, NO, NO, 1.0, NO))
    assert now.memory["similarity"][0].nan_to_num(nan=-1.0).tolist() == [-1.0, 3.0, -1.0, 1.0, -1.0]
    assert members(now.memory["met"]) == [[1, 3]]
