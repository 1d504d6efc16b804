"""Clustering before training: kin, PACFL and gradient cosines, compared by the adjusted Rand index.

Both baselines use information that is not available in practice. PACFL (three principal vectors of a peer's raw pixels;
a proximity of angles; hierarchical clustering cut at a threshold) uses the best threshold in hindsight for each
federation, and the best of three proximities (the smallest principal angle, the sum of the angles, and the smallest
angle between vectors computed per label, as in its public code) and of two linkages. The cosines of the peers' mean
gradients at the common model are clustered by average linkage into the true number of clusters. With one distribution
this information is already the answer, so their index is 1 there.

kin gets no such information. A continuum counts as one cluster per peer, which has an index of 0.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np
import torch
from kin_settings import NETWORK_OF, chosen, config
from kin_work import Row, Study
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from homophily.data.types import Split
from homophily.experiments.runner import as_config, chosen_device
from homophily.methods.kin.families import kinship
from homophily.simulation.setup import prepare
from homophily.simulation.training_setup import task_fingerprints
from homophily.simulation.user_objects import UserObjects
from homophily.training.task import Task

DATA = ("fashion-mnist", "mnist", "cifar-10")
HEAD = ("data", "network", "samples", "shift", "kin", "PACFL, best threshold", "gradient cosines, true number")
VECTORS = 3  # p of PACFL
CUTS = 20  # most clusters a threshold is tried for


def study(options: Any) -> Study:
    """Return the study, with one row per data set, number of samples and shift: mean and lowest index over seeds."""
    rows = []
    for data in options.data or DATA:
        network = options.network[0] if options.network else NETWORK_OF[data]
        for samples in options.samples or ((200,) if data == "cifar-10" else (20, 50, 200)):
            for name, shift in chosen(options.shift).items():
                asked = [config(data, network, samples, shift, seed, options.peers) for seed in options.seeds]
                jobs = [partial(_indices, one, options.device) for one in asked]
                rows.append(Row((data, network, samples, name), jobs))
    return Study(HEAD, rows, _cells)


def _cells(indices: list[tuple[float, ...]]) -> list[str]:
    return [f"{statistics.fmean(values):.3f} ({min(values):.3f})" for values in zip(*indices, strict=True)]


def _indices(asked: dict[str, Any], device: str) -> tuple[float, float, float]:
    """Return the adjusted Rand index of kin, PACFL and gradient cosines in one federation."""
    task = prepare(as_config(asked), UserObjects(), chosen_device(device))[0].task
    assert task.data.cluster is not None
    truth = task.data.cluster.cpu().numpy()
    found = kinship(task_fingerprints(task, asked["seed"], task.data.peers), task.ids, asked["seed"]).family
    said = np.arange(len(truth)) if found is None else found.cpu().numpy()
    kin = float(adjusted_rand_score(truth, said))
    return kin, _pacfl(task.data.train, truth), _cosines(task, truth)


def _pacfl(data: Split, truth: np.ndarray[Any, Any]) -> float:
    """Return PACFL's best index over proximities, linkages and thresholds (numbers of clusters)."""
    best = 0.0
    for distance in _proximities(data.to(torch.device("cpu")), len(truth)):
        for linkage in ("average", "complete"):
            for clusters in range(1, min(CUTS, len(truth)) + 1):
                best = max(best, _index(distance, clusters, linkage, truth))
    return best


def _proximities(data: Split, peers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return three distances between peers [N, N]: smallest principal angle, sum of angles, smallest angle by label."""
    black = data.x.amin(dim=[0, *range(2, data.x.dim())], keepdim=True)  # inputs are shifted pixels: black is 0 again
    shares = [((data.peer(i)[0] - black).flatten(1), data.peer(i)[1]) for i in range(peers)]
    whole = torch.stack([_principal(x) for x, _ in shares])
    angles = torch.linalg.svdvals(whole[:, None] @ whole.mT).clamp(max=1.0).arccos()  # [N, N, p]
    parts = [torch.cat([_principal(x[y == label]) for label in y.unique()]) for x, y in shares]
    cosines, sizes = torch.cat(parts) @ torch.cat(parts).T, [len(part) for part in parts]
    rows = torch.stack([block.amax(0) for block in cosines.split(sizes)])
    nearest = torch.stack([block.amax(1) for block in rows.split(sizes, dim=1)], 1)
    return angles[..., 0], angles.sum(-1), nearest.clamp(max=1.0).arccos()


def _principal(x: Tensor) -> Tensor:
    """Return the first principal vectors of samples [n, features]: [p, features], fewer if there are fewer samples."""
    vectors = torch.linalg.eigh(x @ x.T).eigenvectors.flip(1)[:, :VECTORS]
    return torch.nn.functional.normalize(vectors.T @ x, dim=1)


def _cosines(task: Task, truth: np.ndarray[Any, Any]) -> float:
    """Return the index of average linkage on cosines of the peers' mean gradients, with the true number of clusters."""
    parameters = [p for p in task.module.parameters() if p.requires_grad]
    made = []
    for peer in range(len(truth)):
        x, y = task.data.train.peer(peer)
        loss = task.loss(task.module(task.cast(x)), task.cast(y)).mean()
        made.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    unit = torch.nn.functional.normalize(torch.stack(made).double(), dim=1)
    return _index(1.0 - unit @ unit.T, len(np.unique(truth)), "average", truth)


def _index(distance: Tensor, clusters: int, linkage: str, truth: np.ndarray[Any, Any]) -> float:
    """Return the index of a hierarchical clustering on distances [N, N], compared with the true clusters."""
    square = ((distance + distance.T) / 2).clamp(min=0.0).fill_diagonal_(0.0).cpu().numpy()
    tree = AgglomerativeClustering(n_clusters=clusters, metric="precomputed", linkage=linkage)
    return float(adjusted_rand_score(truth, tree.fit_predict(square)))
