"""What a comparison says of its seeds."""

from __future__ import annotations

from homophily.experiments.comparison import _averaged


def test_a_mean_over_seeds_needs_the_number_of_every_seed() -> None:
    first = {"accuracy": 1.0, "accuracy_by_cluster": {"a": 1.0, "b": 3.0}, "loss": 1.0}
    found = _averaged([first, {"accuracy": None, "accuracy_by_cluster": {"a": 2.0, "b": None}, "loss": None}])
    assert (found["accuracy"], found["accuracy_by_cluster"]["b"], found["loss"]) == (None, None, None)
    assert found["accuracy_by_cluster"]["a"]["mean"] == 1.5


def test_a_cluster_that_only_some_seeds_have_is_averaged_over_those() -> None:
    found = _averaged([{"accuracy_by_cluster": {"0-2": 1.0}}, {"accuracy_by_cluster": {"1-3": 3.0}}])
    assert found["accuracy_by_cluster"] == {"0-2": {"mean": 1.0}, "1-3": {"mean": 3.0}}


def test_a_distance_that_a_seed_does_not_have_counts_as_no_models() -> None:
    found = _averaged(
        [{"models_per_peer_round_by_hops": {"1": 2.0}}, {"models_per_peer_round_by_hops": {"1": 2.0, "2": 4.0}}]
    )
    assert found["models_per_peer_round_by_hops"]["2"]["mean"] == 2.0
