"""How many samples a peer kin needs, by the formula of homophily/power.py, and whether the formula is right.

How far the kinds of data are apart is estimated from a federation with 200 samples a peer; the formula then says how
strong the weakest of the c - 1 directions will be with fewer, and other federations show how strong it is.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch
from kin_settings import NETWORK_OF, chosen, config, source
from kin_work import Row, Study
from torch import Tensor

import homophily
from homophily.introductions import BUCKETS, Fingerprints
from homophily.kinship import dimension, folded, inverse_root, pooled
from homophily.power import edge, expected, samples_needed

DATA = ("fashion-mnist", "mnist", "cifar-10")
HEAD = (
    "data", "shift", "samples", "strength a sample", "samples needed", "expected singular value", "measured",
    "expected edge", "measured", "all directions seen",
)  # fmt: skip
REFERENCE = 200  # samples a peer, where there are so many, of the federation that distances are estimated from


def study(options: Any) -> Study:
    """A row for each data set, shift with clusters and number of samples."""
    rows = []
    for data in options.data or DATA:
        for name, shift in chosen(options.shift).items():
            for samples in (options.samples or (10, 20, 50)) if name != "one distribution" else ():
                network = options.network[0] if options.network else NETWORK_OF[data]
                asked = [config(data, network, samples, shift, seed, options.peers) for seed in options.seeds]
                many = min(REFERENCE, 3 * len(source(data).train) // (4 * options.peers))
                far = config(data, network, many, shift, 10_000, options.peers)
                jobs = [partial(_told, far, samples, options.device)]
                rows.append(Row((data, name, samples), [*jobs, *(partial(_seen, a, options.device) for a in asked)]))
    return Study(HEAD, rows, _cells)


def _told(asked: dict[str, Any], samples: int, device: str) -> dict[str, Any]:
    """What the formula says of the weakest direction."""
    answer = homophily.kin(asked, device=device)
    assert answer.cluster is not None
    peers = len(answer.cluster)
    numbers = dimension(torch.full((peers,), float(samples)))
    assert numbers is not None
    strength, left = _strength(answer.prints, answer.cluster, numbers)
    whole, _ = _strength(answer.prints, answer.cluster, BUCKETS)
    return {
        "directions": int(answer.cluster.max()),
        "strength": whole,
        "needed": samples_needed(whole, peers),
        "value": expected(strength, peers, samples, left) ** 0.5,
        "edge": edge(peers, samples, left) ** 0.5,
    }


def _strength(prints: Fingerprints, cluster: Tensor, numbers: int) -> tuple[float, float]:
    """Of the weakest direction, for one sample a peer, in so many numbers; and what the ridge leaves of these."""
    covariance, centre = pooled(prints, numbers)
    whitening = inverse_root(covariance)
    member = torch.nn.functional.one_hot(cluster).double()  # [N, c]
    size = member.sum(0)
    means = member.T @ (folded(prints.mean.double(), numbers) - centre) @ whitening / size[:, None]
    found = torch.linalg.svdvals(size.sqrt()[:, None] * means).square()[len(size) - 2]
    left = float((whitening @ covariance @ whitening).trace())
    # The noise of the means themselves adds about what it has in all directions together.
    return max(0.0, float(found) - left / float(prints.count.double().mean())), left


def _seen(asked: dict[str, Any], device: str) -> dict[str, Any]:
    return homophily.kin(asked, device=device).summary()


def _cells(results: list[dict[str, Any]]) -> list[str]:
    said, *seen = results
    weakest = statistics.fmean(answer["singular_values"][said["directions"] - 1] for answer in seen)
    noise = statistics.fmean(answer["edge"] for answer in seen)
    full = sum(answer["rank"] >= said["directions"] for answer in seen)
    values = [f"{value:.1f}" for value in (said["value"], weakest, said["edge"], noise)]
    return [f"{said['strength']:.1f}", said["needed"] or "too many", *values, f"{full} of {len(seen)}"]
