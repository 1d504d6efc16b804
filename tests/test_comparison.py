"""What a comparison says of its seeds."""

from __future__ import annotations

from homophily.comparison import _averaged


def test_errors_are_averaged_over_seeds_only_where_all_are_finite() -> None:
    first = {"mse": 1.0, "mse_by_cluster": {"a": 1.0, "b": 3.0}, "loss": 1.0}
    found = _averaged([first, {"mse": None, "mse_by_cluster": {"a": 2.0, "b": None}, "loss": None}])
    assert (found["mse"], found["mse_by_cluster"]["b"]) == (None, None)
    assert (found["mse_by_cluster"]["a"]["mean"], found["loss"]["mean"]) == (1.5, 1.0)
