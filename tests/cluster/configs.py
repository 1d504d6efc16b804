"""Small runs that must give the same numbers on any number of ranks."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "peers": 7, "rounds": 4, "engine": "one-by-one", "data": {"train": 8, "test": 6, "validation": 4},
    "model": {"name": "mlp", "hidden": [4]}, "training": {"epochs": 1},
}  # fmt: skip

UNEQUAL: dict[str, Any] = {"data": {"name": "tests.cluster.plugins:unequal"}}

CONFIGS: dict[str, dict[str, Any]] = {
    "local": {"method": "local"},
    "random": {"method": {"name": "random", "k": 2}, "merge": "fedavg"},
    "oracle": {"method": "oracle", "evaluate": 2},
    "pens": {"method": {"name": "pens", "k": 2, "l": 3}},
    "pens-l2": {"method": {"name": "pens", "k": 2, "l": 3, "metric": "l2"}, "merge": "median"},
    "pens-peer": {"method": {"name": "pens", "k": 2, "l": 3, "on": "peer"}},
    "pens-peer-validation": {"method": {"name": "pens", "k": 2, "l": 3, "on": "peer", "losses": "validation"}},
    "peer-stopping": {
        "method": {"name": "dac", "k": 2, "on": "peer"},
        "rounds": 8,
        "training": {"epochs": 1, "patience": 1, "stop_on": "headline", "lr": 0.5},
        "merge": "trimmed-mean",
    },
    "panm": {"method": {"name": "panm", "k": 2, "l": 2, "t1": 2, "tau": 2}, "merge": "fedsim"},
    "panm-updates": {"method": {"name": "panm", "k": 2, "l": 2, "metric": "panm"}, "init": "independent"},
    "dac": {"method": {"name": "dac", "k": 2}},
    "dac-ring": {"method": {"name": "dac-var", "k": 2, "hops": 2}, "topology": "ring", "merge": "krum"},
    "dac-contacts": {"method": {"name": "dac", "k": 2, "metric": "cosine-weights"}, "contacts": 3},
    "dpg": {"method": "dpg"},
    "kin": {"method": {"name": "kin", "k": 2, "renew": 2}, "data": {**BASE["data"], "train": 40}},
    "kin-ring": {"method": {"name": "kin", "k": 2}, "topology": "ring", "data": {**BASE["data"], "train": 40}},
    "fedavg": {"method": "fedavg"},
    "fedavg-stopping": {
        "method": {"name": "fedavg", "fraction": 0.5},
        "training": {"epochs": 1, "patience": 1, "lr": 0.5},
    },
    "ifca": {"method": {"name": "ifca", "models": 3, "fraction": 0.7}, "init": "independent"},
    "stopping": {"method": "random", "rounds": 12, "training": {"epochs": 1, "patience": 1, "lr": 0.5}},
    "after-training": {
        "method": "random",
        "score": "after-training",
        "training": {"epochs": 1, "lr_by_peer": [0.1] * 7},
    },
    "guarded": {
        "method": {"name": "random", "k": 3},
        "merge_guard": 1.05,
        "data": {"angles": [0, 180], "train": 20, "test": 6, "validation": 8},
        "rounds": 6,
    },
    "diverging": {"method": "random", "training": {"epochs": 1, "lr": 1e30}},
    "private": {
        "method": {"name": "kin", "k": 2, "renew": 2},
        "data": {**BASE["data"], "train": 40},
        "training": {"epochs_by_peer": [1, 1, 1, 1, 1, 1, 2]},
        "privacy": {"epsilon": 200, "max_noise": 100},
    },
    "generated": {
        "method": {"name": "random", "k": 2},
        "data": {"name": "synthetic", "train": 8, "test": 6, "validation": 4},
        "training": {"epochs": 1, "lr_by_peer": {"cluster 1": 0.02}},
    },
    "personal": {"method": "random", "model": {"name": "mlp", "hidden": [4], "personal": ["*.bias"]}},
    # Peers with one neighbour and with six: rows of contacts have unequal lengths on different ranks.
    "star": {"method": {"name": "dac", "k": 2}, "topology": "star", "rounds": 3},
    "line-hops": {"method": {"name": "dpg", "hops": 2}, "topology": "line"},
    # Peers with 6 to 36 training and 3 to 9 test samples of 5 numbers; the first rank has the smallest.
    "unequal-kin": {"method": {"name": "kin", "k": 2}, **UNEQUAL},  # a continuum
    "unequal-krum": {"method": {"name": "pens", "k": 3, "l": 3, "on": "peer"}, "merge": "krum", **UNEQUAL},
    "unequal-fedavg": {"method": "fedavg", **UNEQUAL},
    "unequal-frozen": {
        "method": {"name": "pens", "k": 2, "l": 2},
        "model": {"name": "mlp", "hidden": [8, 4], "frozen": ["1.*"]},
        **UNEQUAL,
    },
    # A continuum in which each peer chooses among its contacts.
    "continuum-contacts": {
        "method": {"name": "kin", "k": 2},
        "data": {"name": "synthetic", "train": 10, "test": 6},
        "peers": 30,
        "contacts": 5,
        "rounds": 2,
    },
    # A metric that is NaN for all pairs of some ranks.
    "some-nan": {
        "method": {"name": "dac", "k": 2, "metric": "tests.cluster.plugins:positive_only"},
        "init": "independent",
        "training": {"epochs": 1, "lr": 1e-3},
    },
    "own-method": {"method": "tests.cluster.plugins:Remembering"},
    "stacked": {"method": {"name": "pens", "k": 2, "l": 3}, "engine": "stacked"},
    "vectorised": {"method": {"name": "panm", "k": 2, "l": 2}, "engine": "vectorised"},
}


def config(name: str) -> dict[str, Any]:
    return {**BASE, **CONFIGS[name]}
