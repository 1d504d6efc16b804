"""A seed reproduces recorded runs: partitions, topologies, contacts, partners and communication counts.

Only draws and counts are recorded, which are the same on every machine; weights and scores depend on how a processor
rounds. ``python -m tests.test_recorded`` records them again after an intended change.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import homophily
from homophily.config.schema import Config
from homophily.randomness import Purpose, bits, permutation, uniform
from homophily.simulation.configuration import make
from homophily.simulation.training_setup import SetupCache, data_of
from homophily.simulation.user_objects import UserObjects

RECORD = Path(__file__).with_name("recorded.json")
BASE: dict[str, Any] = {"peers": 12, "rounds": 3, "data": {"train": 12, "test": 10, "angles": [0, 90, 180]}}
SHIFTS: dict[str, dict[str, Any]] = {
    "rotation": {"angles": [0, 90, 180]},
    "label-swap": {},
    "label-groups": {"groups": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]},
    "dirichlet": {"alpha": 0.3},
    "iid": {},
}
TOPOLOGIES: dict[str, Any] = {
    "full": "full",
    "ring": "ring",
    "line": "line",
    "star": "star",
    "torus": {"name": "torus", "rows": 3},
    "torus, shuffled": {"name": "torus", "rows": 3, "shuffle": True},
    "random": {"name": "random", "low": 3, "high": 5},
    "small-world": "small-world",
    "erdos-renyi": {"name": "erdos-renyi", "probability": 0.5},
}
METHODS = ("local", "random", "fix-topology", "oracle")


def digest(values: Any) -> str:
    array = np.ascontiguousarray(values)
    return hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()[:16]


def of_run(**keys: Any) -> dict[str, Any]:
    """The merges and the communication counts of a run."""
    with tempfile.TemporaryDirectory() as folder:
        run = homophily.run({**BASE, **keys}, out=Path(folder) / "run", device="cpu")
        counted = ("models_sent_per_peer", "bytes_sent_per_peer", "peak_models_per_peer_round")
        return {"merges": digest(run.merges()), **{name: run.summary[name] for name in counted}}


def of_partition(shift: str) -> dict[str, str]:
    """The partition of the digits under a shift."""
    config: Config = make({**BASE, "data": {"train": 12, "test": 10, "shift": shift, **SHIFTS[shift]}})
    data = data_of(config, UserObjects(), torch.device("cpu"), SetupCache())[1]
    labels = [split.peer(peer)[1].numpy() for split in (data.train, data.test) for peer in range(data.peers)]
    return {"labels": digest(np.concatenate(labels)), "counts": digest(data.train.count.numpy())}


def of_draws() -> dict[str, str]:
    index = torch.arange(1000)
    return {
        "bits": digest(bits(7, index, 3, Purpose.MEET).numpy()),
        "uniform": digest(uniform(7, index).numpy()),
        "permutation": digest(permutation(1000, 7).numpy()),
    }


CASES: dict[str, Any] = {
    "draws": of_draws,
    **{f"partition, {shift}": (lambda shift=shift: of_partition(shift)) for shift in SHIFTS},
    **{f"method, {name}": (lambda name=name: of_run(method={"name": name})) for name in METHODS},
    **{
        f"topology, {name}": (lambda where=where: of_run(topology=where, method={"name": "random", "k": 2, "hops": 2}))
        for name, where in TOPOLOGIES.items()
    },
    "contacts": lambda: of_run(contacts=5, method={"name": "random", "k": 2}),
    "personal layers": lambda: of_run(model={"name": "mlp", "personal": ["3"]}, method={"name": "random"}),
    "fedavg, half of the clients": lambda: of_run(method={"name": "fedavg", "fraction": 0.5}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_seed_reproduces_the_recorded_results(case: str) -> None:
    assert CASES[case]() == json.loads(RECORD.read_text(encoding="utf-8"))[case]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = {name: record() for name, record in CASES.items()}
    RECORD.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
