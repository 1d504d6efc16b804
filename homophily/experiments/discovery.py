"""kin without training: which peers of a federation have similar data, from their fingerprints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from homophily.config.schema import Config
from homophily.data.given import Peers, given_peers
from homophily.experiments.runner import as_config, chosen_device
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.methods.kin import power
from homophily.methods.kin.families import Kinship, kinship
from homophily.methods.kin.method import Kin
from homophily.simulation.exchange import PeerExchange
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects
from homophily.training.losses import Loss
from homophily.training.resources import threads


@dataclass(frozen=True)
class Discovery:
    """Which peers of one federation have similar data."""

    kinship: Kinship
    prints: Fingerprints
    cluster: Tensor | None  # [N]: the true clusters, if they are known
    cluster_names: tuple[str, ...]
    bytes_per_peer: float  # the fingerprints that a peer receives, times hops; mean over peers
    seconds: float

    @property
    def families(self) -> list[list[int]] | None:
        """Peer ids, family by family; None: a continuum."""
        family = self.kinship.family
        if family is None:
            return None
        return [(family == f).nonzero()[:, 0].tolist() for f in range(int(family.max()) + 1)]

    @property
    def left_out(self) -> list[int]:
        """Peers whose fingerprint could not be used."""
        return (self.prints.count == 0).nonzero()[:, 0].tolist()

    @property
    def conclusive(self) -> bool:
        """Whether the fingerprints show that peers differ; see ``Kinship.conclusive``."""
        return self.kinship.conclusive

    @property
    def smallest_difference(self) -> float | None:
        """The smallest difference of two equal groups that would have been seen; see ``power.smallest_difference``.

        None: unknown, with too few samples or fingerprints that do not vary.
        """
        evidence = self.kinship.evidence
        return None if evidence is None else power.smallest_difference(evidence)

    def precision_and_recall(self) -> tuple[float | None, float | None]:
        """Means over peers of the same-cluster share of one's family, and of the family's share of one's cluster."""
        family, cluster = self.kinship.family, self.cluster
        if family is None or cluster is None:
            return None, None
        members = torch.bincount(family + 1)  # the first are those without a family
        both = torch.bincount((family + 1) * (int(cluster.max()) + 1) + cluster)
        inside = torch.where(family >= 0, both[(family + 1) * (int(cluster.max()) + 1) + cluster] - 1, 0).double()
        kin = torch.where(family >= 0, members[family + 1] - 1, 0)
        others = torch.bincount(cluster)[cluster] - 1
        return _mean_share(inside, kin), _mean_share(inside, others)

    def summary(self) -> dict[str, Any]:
        """What ``homophily kin --json`` prints."""
        precision, recall = self.precision_and_recall()
        edge = self.kinship.edge
        return {
            "rank": self.kinship.rank,
            "edge": edge**0.5 if self.kinship.enough_samples else None,
            "singular_values": self.kinship.squared.clamp(min=0).sqrt().tolist(),
            "families": self.families,
            "precision": precision,
            "recall": recall,
            "bytes_per_peer": self.bytes_per_peer,
            "left_out": self.left_out,
            "enough_samples": self.kinship.enough_samples,
            "conclusive": self.conclusive,
            "smallest_difference": self.smallest_difference,
            "seconds": round(self.seconds, 3),
        }


def _mean_share(inside: Tensor, of: Tensor) -> float | None:
    """The mean of inside [N] / of [N] over the peers with ``of`` above 0; None if there are none."""
    some = of > 0
    return float((inside[some] / of[some]).mean()) if bool(some.any()) else None


def kin(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | None = None,
    data: Peers | None = None,
    loss: Loss | None = None,
    device: str = "auto",
) -> Discovery:
    """Compare the fingerprints of all peers, without training: the number of families, and the peers in each.

    config, model, data, loss, device: as for ``run``.
    Returns a ``Discovery``. Raises UserError for bad input.
    """
    chosen = as_config(config)
    experiment, _, plan = prepare(chosen, UserObjects(model, given_peers(data), loss, Kin()), chosen_device(device))
    shares, exchange = experiment.task.data, experiment.exchange
    assert isinstance(exchange, PeerExchange)
    everyone = torch.ones(shares.peers, dtype=torch.bool)
    began = time.perf_counter()
    with threads(plan.threads):
        heard = exchange.source.fingerprints(1, 0, everyone, needed=True)
        assert heard is not None
        found = kinship(heard.prints, heard.ids, chosen.seed)
    took = time.perf_counter() - began
    cluster = None if shares.cluster is None else shares.cluster.to(heard.ids.device)
    return Discovery(found, heard.prints, cluster, shares.cluster_names, heard.bytes / shares.peers, took)
