"""The training data, partitioned once by the package and stored where every environment can read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from homophily.data import prepared_data


def export(path: Path, data: str, peers: int, samples: int) -> None:
    """x: [peers, samples, 1, 28, 28] float32, standardised, rotated by four angles for a quarter of the peers each."""
    settings = {"shift": "rotation", "sizes": None, "normalise": None, "train": samples, "validation": None, "test": 1}
    train = prepared_data(data, {}, {**settings, "balanced": False}, peers, 0, None).shares.train
    parts = [train.peer(i) for i in range(peers)]
    np.savez(path, x=np.stack([x.numpy() for x, _ in parts]), y=np.stack([y.numpy() for _, y in parts]))
