"""False positives of kin: all peers have one distribution, and kin should find a difference in 1 federation of 300.

Images of digits and of Fashion-MNIST are assigned to peers at random; a third case is pure Gaussian noise. digits
has 1,797 images, too few for 200 peers, for 60 with more than 25 each on average, and for 12 with 200 each. The rows
use different seeds, 1,000 apart. Upper bounds: 2 % of all federations, 5 % of those of a row.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import torch
from kin_own import alike, counts, dealt, pool
from kin_settings import NETWORK_OF, NETWORKS
from kin_work import Row, Study

import homophily
from homophily.experiments.runner import chosen_device
from homophily.fingerprints.compute import folded, summed_up
from homophily.fingerprints.embedding import BUCKETS
from homophily.fingerprints.fingerprint import checked, format_of
from homophily.methods.kin.families import kinship
from homophily.randomness import normal

DATA = ("digits", "fashion-mnist", "gaussian")
PEERS = (12, 60, 200)
LARGE = ((1000, (20, 20)),)  # peers and samples of federations whose fingerprints are small; only with --peers
SAMPLES = ((20, 20), (50, 50), (200, 200), (10, 40), (20, 200))  # from, to
HEAD = ("data", "peers", "samples a peer", "federations", "rank above 0")


def study(options: Any) -> Study:
    """Return the study, with one row per data set, number of peers and of samples for which there are enough images."""
    rows: list[Row] = []
    small, large = product(DATA, product(PEERS, SAMPLES)), product(DATA, LARGE)
    for number, (data, (peers, (low, high))) in enumerate([*small, *large]):
        asked = data in (options.data or DATA) and options.peers in ((None, peers) if peers in PEERS else (peers,))
        if asked and (data == "gaussian" or sum(counts(peers, low, high)) <= len(pool(data)[1])):
            rank = _noise_rank if data == "gaussian" else partial(_rank, data)
            seeds = (1000 * number + seed for seed in options.seeds)
            jobs = [partial(rank, peers, low, high, seed, options.device) for seed in seeds]
            rows.append(Row((data, peers, f"{low}" if low == high else f"{low} to {high}"), jobs))
    return Study(HEAD, rows, lambda ranks: [len(ranks), _above(ranks)], _pooled)


def _rank(data: str, peers: int, low: int, high: int, seed: int, device: str) -> int:
    """Return the rank that kin finds in a federation of images assigned at random."""
    asked = {"seed": seed, "model": NETWORKS[NETWORK_OF[data]], "data": {"normalise": "standard"}}
    return homophily.kin(asked, data=dealt(data, counts(peers, low, high), seed, alike), device=device).kinship.rank


def _noise_rank(peers: int, low: int, high: int, seed: int, device: str) -> int:
    """Return the rank that kin finds in noise whose standard deviations fall from 2 to 0.1 over the buckets."""
    on = chosen_device(device)
    count = torch.tensor(counts(peers, low, high), device=on)
    peer, sample = torch.arange(peers, device=on)[:, None, None], torch.arange(int(count.max()), device=on)
    scale = torch.linspace(2, 0.1, BUCKETS, device=on)
    x = normal(seed, 1, peer, sample[:, None], torch.arange(BUCKETS, device=on)) * scale
    mask = (sample < count[:, None])[..., None]
    ids, form = torch.arange(peers, device=on), format_of(peers)
    mean, factor = summed_up(folded(x * mask, form.buckets), count, ids, seed, form)
    return kinship(checked(mean, factor, count, form), ids, seed).rank


def _above(ranks: list[int]) -> int:
    return sum(rank > 0 for rank in ranks)


def _pooled(found: list[tuple[Row, list[int]]]) -> list[str]:
    """Return a line for images and for Gaussian noise: the share over all federations, and the worst row."""
    out = []
    for name, mine in (
        ("Images", [ranks for row, ranks in found if row.about[0] != "gaussian"]),
        ("Gaussian noise", [ranks for row, ranks in found if row.about[0] == "gaussian"]),
    ):
        if mine:
            above, federations = sum(map(_above, mine)), sum(map(len, mine))
            worst = max(_above(ranks) / len(ranks) for ranks in mine)
            share = f"{above} of {federations} federations ({above / federations:.1%})"
            out.append(f"- {name}: {share} with a rank above 0, {worst:.0%} in the worst row.")
    return out
