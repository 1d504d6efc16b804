"""Networks, shifts and training settings of the studies of kin."""

from __future__ import annotations

from typing import Any

SHIFTS: dict[str, dict[str, Any]] = {
    "rotations, 2": {"shift": "rotation", "angles": [0, 180]},
    "rotations, 4": {"shift": "rotation"},
    "rotations, 70/20/5/5": {"shift": "rotation", "sizes": [70, 20, 5, 5]},
    "label swaps, 2": {"shift": "label-swap", "clusters": 2},
    "label swaps, 4": {"shift": "label-swap", "clusters": 4},
    "label pairs, 5": {"shift": "label-groups", "groups": "pairs"},
    "one distribution": {"shift": "iid"},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "small mlp": {"name": "mlp", "hidden": [32]},
    "mlp": {"name": "mlp", "hidden": [200, 200]},  # the PANM paper's for MNIST and Fashion-MNIST
    "cnn": {"name": "cnn"},
    "cifar-cnn": {"name": "cifar-cnn"},
}
NETWORK_OF = {"digits": "small mlp", "mnist": "mlp", "fashion-mnist": "mlp", "cifar-10": "cifar-cnn"}
# The PANM paper's training. It does not say how inputs are scaled; standardised, they give its accuracies to a point.
TRAINING = {"optimizer": "sgd", "lr": 0.08, "momentum": 0.9, "decay": 0.99, "batch": 128, "epochs": 3}


def chosen(names: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return the shifts with these names; None: all."""
    return {name: shift for name, shift in SHIFTS.items() if names is None or name in names}


def config(
    data: str, network: str, samples: int, shift: dict[str, Any], seed: int, peers: int, **more: Any
) -> dict[str, Any]:
    """Return the config of a federation."""
    table = {"name": data, "train": samples, "test": 1, "normalise": "standard", **shift}
    if "sizes" in shift:  # of 100 peers
        table["sizes"] = [size * peers // 100 for size in shift["sizes"]]
    return {"seed": seed, "peers": peers, "data": table, "model": NETWORKS[network], **more}
