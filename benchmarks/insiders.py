"""Members that send altered models, or a copied fingerprint: the accuracy of the honest peers.

    python benchmarks/insiders.py    prints the tables of results/insiders.md

16 peers in two clusters (digits upright and rotated by 180 degrees). 1 or 4 of them are bad: they train alone, and send
altered models; or they send honest models of their own cluster with the fingerprint of a peer of the other one. All bad
peers report ten times their number of training samples, which only the merge fedavg uses.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from homophily.experiments.runner import as_config
from homophily.simulation.exchange import PeerExchange
from homophily.simulation.rounds import OneRun, RunState, play_round
from homophily.simulation.setup import prepare
from homophily.simulation.sources import Heard, LocalModels, ModelSource
from homophily.simulation.user_objects import UserObjects

BAD = {1: [0], 4: [0, 1, 8, 9]}  # peers 0 to 7 are one cluster, and 8 to 15 the other
SEEDS = (0, 1, 2)
GUARD = 2.0
REPORTED = 10  # times its training samples: what a bad peer reports
RULES = ("uniform", "fedavg", "median", "trimmed-mean", "krum")
ROWS = [*product(("kin", "random"), RULES), ("panm", "uniform"), ("panm", "fedsim")]  # fedsim needs similarities


def noise(rows: Tensor) -> Tensor:
    """Random weights with the mean and standard deviation of the model's own."""
    drawn = torch.randn(rows.shape, generator=torch.Generator().manual_seed(rows.shape[1]))
    return rows.mean(1, keepdim=True) + rows.std(1, keepdim=True) * drawn


ATTACKS: dict[str, Callable[[Tensor], Tensor]] = {
    "sign-flipped": lambda rows: -rows,
    "scaled by 10": lambda rows: 10 * rows,
    "noise": noise,
}


class WithInsiders:
    """A source of models in which some peers send altered models. Their own models are not altered, and not merged."""

    def __init__(self, source: ModelSource, bad: list[int], attack: str) -> None:
        self._source, self._bad, self._attack = source, torch.tensor(bad), attack
        self._own: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def fingerprints(self, *asked: Any, **named: Any) -> Heard | None:
        heard = self._source.fingerprints(*asked, **named)
        if heard is None or self._attack != "copied fingerprint":
            return heard
        peers = len(heard.ids)
        whose = torch.arange(peers)
        whose[self._bad] = (self._bad + peers // 2 + 2) % peers  # an honest peer of the other cluster
        copied = {f.name: getattr(heard.prints, f.name) for f in fields(heard.prints)}
        copied = {name: value[whose] for name, value in copied.items() if isinstance(value, Tensor)}
        return replace(heard, prints=replace(heard.prints, **copied))

    def publish(self, round: int, own: Any) -> None:
        self._own, self._trained = own, own.federation.rows[self._bad].clone()
        self._source.publish(round, own)

    def fetch(self, round: int, met: Tensor, updates: bool) -> LocalModels:
        models = self._source.fetch(round, met, updates)
        rows, samples = models.rows.clone(), models.samples.clone()
        samples[self._bad] *= REPORTED
        if self._attack in ATTACKS:
            rows[self._bad] = ATTACKS[self._attack](rows[self._bad])
        return replace(models, rows=rows, samples=samples)

    def merged(self, round: int) -> None:
        self._own.federation.rows[self._bad] = self._trained
        self._source.merged(round)


def honest_accuracy(method: str, merge: str, attack: str, bad: list[int], guard: float | None, seed: int) -> float:
    """The mean accuracy in percent of the peers that are not bad."""
    keys: dict[str, Any] = {
        "seed": seed,
        "peers": 16,
        "rounds": 20,
        "evaluate": 20,
        "record": False,
        "merge": merge,
        "method": {"name": method} if method == "local" else {"name": method, "k": 4},
        "data": {"angles": [0, 180], "train": 40, "validation": 20, "test": 100},
    }
    config = as_config(keys if guard is None else {**keys, "merge_guard": guard})
    experiment, _, _ = prepare(config, UserObjects(), torch.device("cpu"))
    exchange = experiment.exchange
    assert isinstance(exchange, PeerExchange)
    if attack != "none":
        exchange.source = WithInsiders(exchange.source, bad, attack)
    run = RunState(experiment)
    while not run.finished:
        play_round({0: run}, OneRun(run))
    _, scores = run.result()
    honest = torch.ones(16, dtype=torch.bool)
    honest[bad] = False
    return float(scores.value[honest].nan_to_num(nan=0.0).mean())


def print_table(guard: float | None, seeds: tuple[int, ...]) -> None:
    """Print a Markdown table: a row for each method and merge."""
    cases = [("none", 4), *product([*ATTACKS, "copied fingerprint"], BAD)]
    names = [attack if attack == "none" else f"{attack}, {count} bad" for attack, count in cases]
    print("| method, merge | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names), sep="\n")
    for method, merge in ROWS:
        cells = []
        for attack, count in cases:
            if attack == "copied fingerprint" and method != "kin":
                cells.append("-")
                continue
            found = [honest_accuracy(method, merge, attack, BAD[count], guard, seed) for seed in seeds]
            spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
            cells.append(f"{statistics.mean(found):.1f}{spread}")
        print(f"| {method}, {merge} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    seeds = SEEDS[: parser.parse_args().seeds]
    torch.set_num_threads(1)
    local = statistics.mean(honest_accuracy("local", "uniform", "none", BAD[4], None, seed) for seed in seeds)
    print(f"local: {local:.1f}")
    for guard in (None, GUARD):
        print(f"merge_guard: {guard}")
        print_table(guard, seeds)


if __name__ == "__main__":
    main()
