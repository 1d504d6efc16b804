"""Means over seeds, and how evenly scores are spread over peers."""

from __future__ import annotations

import numpy as np
import pytest

from homophily.runs.headline import ACCURACY, MSE
from homophily.runs.statistics import averaged, fairness


def test_a_mean_over_seeds_needs_the_number_of_every_seed() -> None:
    first = {"accuracy": 1.0, "accuracy_by_cluster": {"a": 1.0, "b": 3.0}, "loss": 1.0}
    found = averaged([first, {"accuracy": None, "accuracy_by_cluster": {"a": 2.0, "b": None}, "loss": None}])
    assert (found["accuracy"], found["accuracy_by_cluster"]["b"], found["loss"]) == (None, None, None)
    assert found["accuracy_by_cluster"]["a"]["mean"] == 1.5


def test_a_cluster_that_only_some_seeds_have_isaveraged_over_those() -> None:
    found = averaged([{"accuracy_by_cluster": {"0-2": 1.0}}, {"accuracy_by_cluster": {"1-3": 3.0}}])
    assert found["accuracy_by_cluster"] == {"0-2": {"mean": 1.0}, "1-3": {"mean": 3.0}}


def test_a_distance_that_a_seed_does_not_have_counts_as_no_models() -> None:
    found = averaged(
        [{"models_per_peer_round_by_hops": {"1": 2.0}}, {"models_per_peer_round_by_hops": {"1": 2.0, "2": 4.0}}]
    )
    assert found["models_per_peer_round_by_hops"]["2"]["mean"] == 2.0


def test_texts_and_lists_are_not_averaged() -> None:
    assert averaged([{"accuracy": 1.0, "notes": ["a"], "run": "x", "headline": "accuracy"}]) == {
        "accuracy": {"mean": 1.0}
    }


@pytest.mark.parametrize(("name", "worst"), [("accuracy", [1.0, 2.0]), ("mse", [30.0, 29.0])])
def test_the_worst_tenth_has_the_lowest_accuracies_or_the_highest_errors(name: str, worst: list[float]) -> None:
    values = [float(value) for value in np.random.default_rng(0).permutation(np.arange(1, 31))][:30]
    expected = sorted(values, reverse=name == "mse")[:3]
    assert expected[:2] == worst
    found = fairness(ACCURACY if name == "accuracy" else MSE, {name: values})
    assert found == pytest.approx({"worst_tenth": np.mean(expected), "std_over_peers": np.std(values)})


def test_the_worst_tenth_of_few_peers_is_one_peer() -> None:
    assert fairness(ACCURACY, {"accuracy": [3.0, 1.0, 2.0]})["worst_tenth"] == 1.0


def test_a_diverged_peer_leaves_fairness_unknown() -> None:
    assert set(fairness(ACCURACY, {"accuracy": [3.0, None]}).values()) == {None}
