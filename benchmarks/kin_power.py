"""How many samples per peer kin needs by the formula of homophily/methods/kin/power.py, and whether the formula holds.

The distance between the clusters is estimated from a federation with 200 samples per peer. The formula then predicts
the strength of the weakest of the c - 1 directions with fewer samples, which is compared with its measured strength.
"""

from __future__ import annotations

import statistics
from functools import lru_cache, partial
from typing import Any

import torch
from kin_settings import NETWORK_OF, SHIFTS, chosen, config
from kin_work import Row, Study
from torch import Tensor

import homophily
from homophily.data.sources import load_source
from homophily.fingerprints.compute import folded
from homophily.fingerprints.fingerprint import Fingerprints, format_of
from homophily.methods.kin.families import dimension, pooled, ridge, whitening
from homophily.methods.kin.power import edge, expected, samples_needed

DATA = ("fashion-mnist", "mnist", "cifar-10")
HEAD = (
    "data", "shift", "samples", "strength a sample", "level", "samples needed", "expected singular value", "measured",
    "expected edge", "measured", "all directions seen",
)  # fmt: skip
REFERENCE = 200  # samples per peer, if there are enough, of the federation for the estimate of distances


def study(options: Any) -> Study:
    """Return the study, with one row per data set, shift with clusters and number of samples."""
    rows = []
    for data in options.data or DATA:
        network = options.network[0] if options.network else NETWORK_OF[data]
        for name in chosen(options.shift):
            for samples in (options.samples or (10, 20, 50)) if name != "one distribution" else ():
                about = (data, network, name, options.peers)
                jobs = [partial(_both, about, samples, seed, options.device) for seed in options.seeds]
                rows.append(Row((data, name, samples), jobs))
    return Study(HEAD, rows, _cells)


def _both(about: tuple[str, str, str, int], samples: int, seed: int, device: str) -> dict[str, Any]:
    """Return the predicted and the measured strength of the weakest direction in a federation."""
    data, network, name, peers = about
    many = min(REFERENCE, 3 * len(load_source(data, 0, {}).train) // (4 * peers))
    prints, cluster = _reference(about, many, seed, device)
    buckets = prints.mean.shape[1]
    freedom = peers * int(format_of(peers).freedom(torch.tensor(samples)))
    numbers = dimension(freedom, buckets)
    assert numbers is not None
    strength, level, levels = weakest_direction(prints, cluster, numbers)
    whole, whole_level, _ = weakest_direction(prints, cluster, buckets)
    answer = homophily.kin(config(data, network, samples, SHIFTS[name], seed, peers), device=device).summary()
    directions = int(cluster.max())
    return {
        "strength": whole,
        "level": whole_level,
        "needed": samples_needed(whole, peers, whole_level, buckets=buckets) or float("inf"),
        "expected": expected(strength, level, peers, samples, levels) ** 0.5,
        "measured": answer["singular_values"][directions - 1],
        "expected edge": edge(peers, samples, levels) ** 0.5,
        "edge": answer["edge"],
        "seen": answer["rank"] >= directions,
    }


@lru_cache(maxsize=8)
def _reference(about: tuple[str, str, str, int], many: int, seed: int, device: str) -> tuple[Fingerprints, Tensor]:
    """Return fingerprints of many samples, and the true clusters."""
    data, network, name, peers = about
    answer = homophily.kin(config(data, network, many, SHIFTS[name], seed, peers), device=device)
    assert answer.cluster is not None
    return answer.prints, answer.cluster


def weakest_direction(prints: Fingerprints, cluster: Tensor, numbers: int) -> tuple[float, float, Tensor]:
    """Return the strength of the weakest direction for one sample per peer, its noise level, and all noise levels.

    numbers: the dimension that fingerprints are folded to.
    """
    covariance, centre = pooled(prints, numbers)
    whiten = whitening(covariance, ridge(covariance))
    noise = whiten.T @ covariance @ whiten
    member = torch.nn.functional.one_hot(cluster).double()  # [N, c]
    size = member.sum(0)
    means = member.T @ (folded(prints.mean.double(), numbers) - centre) @ whiten / size[:, None]
    _, found, directions = torch.linalg.svd(size.sqrt()[:, None] * means, full_matrices=False)
    weakest = directions[len(size) - 2]
    # The noise of the means adds about its trace to the strength.
    strength = float(found[len(size) - 2]) ** 2 - float(noise.trace()) / float(prints.count.double().mean())
    return max(0.0, strength), float(weakest @ noise @ weakest), torch.linalg.eigvalsh(noise)


def _cells(found: list[dict[str, Any]]) -> list[str]:
    digits = {"strength": 1, "level": 2, "needed": 0, "expected": 1, "measured": 1, "expected edge": 1, "edge": 1}
    means = [f"{statistics.fmean(one[name] for one in found):.{places}f}" for name, places in digits.items()]
    return [*means, f"{sum(one['seen'] for one in found)} of {len(found)}"]
