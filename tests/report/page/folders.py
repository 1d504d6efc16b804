"""Small run folders for the tests of the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

import homophily

HOSTILE = '<img src=x onerror="document.title=1">'


def peers(count: int = 12) -> list[homophily.PeerData]:
    """Two clusters of peers; the name of the first is markup that must never run."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 40, 6)).astype(np.float32)
    names = [HOSTILE, *(f"peer & {i}" for i in range(1, count))]
    return [
        homophily.PeerData(x[i], (x[i, :, i % 2] > 0).astype(int), name=names[i], cluster=f"cluster <{i % 2}>")
        for i in range(count)
    ]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def regression(out: Path) -> Path:
    """A finished run that is scored by its mean squared error."""
    found = [
        homophily.PeerData(one.x, np.asarray(one.x)[:, :2], cluster=one.cluster, name=one.name) for one in peers(6)
    ]
    config = {"rounds": 2, "method": {"name": "random", "k": 2}}
    homophily.run(config, model=network(), data=found, out=out, device="cpu")
    return out
