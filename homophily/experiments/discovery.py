"""kin without training: which peers of a federation have similar data, from their fingerprints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from homophily.config.privacy import Privacy
from homophily.config.schema import Config, Headline, Model
from homophily.data.given import Peers, given_peers
from homophily.experiments.runner import as_config, chosen_device
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.fingerprints.private import BYTES, PrivateFingerprints, keyed_draws
from homophily.methods.kin import power
from homophily.methods.kin.families import Kinship, kinship
from homophily.methods.kin.method import Kin
from homophily.methods.kin.private_power import samples_needed, smallest_spread
from homophily.methods.kin.released import released_kinship
from homophily.privacy.accountant import Budget, solve
from homophily.privacy.gaussian import gaussian_noise
from homophily.simulation.exchange import PeerExchange
from homophily.simulation.privacy import check_delta, check_own_data
from homophily.simulation.setup import prepare
from homophily.simulation.training_setup import task_private_fingerprints
from homophily.simulation.user_objects import UserObjects
from homophily.training.losses import Loss
from homophily.training.resources import threads


@dataclass(frozen=True)
class PrivateRelease:
    """What private fingerprints promise, and how small a difference they show. Lengths are in clipping norms."""

    epsilon: float
    delta: float
    noise: float  # standard deviation of the noise over the sensitivity
    spread: list[float]  # of the peers' means in each direction that was found
    smallest_spread: float  # a smaller one would not have been seen
    samples_needed: dict[str, int | None]  # by epsilon, for the weakest direction that was found; {} if there is none

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "bytes_per_fingerprint": BYTES}


@dataclass(frozen=True)
class Discovery:
    """Which peers of one federation have similar data."""

    kinship: Kinship
    prints: Fingerprints | PrivateFingerprints
    cluster: Tensor | None  # [N]: the true clusters, if they are known
    cluster_names: tuple[str, ...]
    bytes_per_peer: float  # the fingerprints that a peer receives, times hops; mean over peers
    seconds: float
    private: PrivateRelease | None = None  # what was promised and its power; None: no noise was added
    names: tuple[str | None, ...] | None = None  # of the peers; None: no peer has a name

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
        return self.kinship.place[:, 0].isnan().nonzero()[:, 0].tolist()

    @property
    def conclusive(self) -> bool:
        """Whether the fingerprints show that peers differ; see ``Kinship.conclusive``."""
        return self.kinship.conclusive

    @property
    def smallest_difference(self) -> float | None:
        """The smallest difference of two equal groups that would have been seen; see ``power.smallest_difference``.

        None: unknown, with too few samples or fingerprints that do not vary; for private fingerprints see
        ``PrivateRelease.smallest_spread``.
        """
        evidence = self.kinship.evidence
        return None if evidence is None or self.private is not None else power.smallest_difference(evidence)

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
            **({} if self.private is None else {"privacy": self.private.as_dict()}),
        }


def _mean_share(inside: Tensor, of: Tensor) -> float | None:
    """The mean of inside [N] / of [N] over the peers with ``of`` above 0; None if there are none."""
    some = of > 0
    return float((inside[some] / of[some]).mean()) if bool(some.any()) else None


class _StandIn(nn.Module):
    """Takes inputs of any form, and returns one number per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor | None = None, **fields: Tensor) -> Tensor:
        samples = next(iter(fields.values())) if x is None else x
        return self.bias.expand(len(samples), 1)


def _first_output(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, 0]


def kin(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | None = None,
    data: Peers | None = None,
    loss: Loss | None = None,
    device: str = "auto",
) -> Discovery:
    """Compare the fingerprints of all peers, without training: the number of families, and the peers in each.

    config, model, data, loss, device: as for ``run``. Without a model, no network has to fit the data.
    Returns a ``Discovery``. Raises UserError for bad input.
    """
    chosen = as_config(config)
    if model is None and chosen.model == Model():  # fingerprints do not depend on the network
        model, loss = _StandIn(), _first_output
        usable = {"headline": Headline(name="loss"), "engine": "one-by-one", "init": "common"}
        chosen = chosen.model_copy(update=usable)
    if chosen.privacy is not None:
        return _private(chosen, chosen.privacy, UserObjects(model, given_peers(data), loss, Kin()), device)
    experiment, _, plan = prepare(chosen, UserObjects(model, given_peers(data), loss, Kin()), chosen_device(device))
    shares, exchange = experiment.task.data, experiment.exchange
    assert isinstance(exchange, PeerExchange)
    everyone = torch.ones(shares.peers, dtype=torch.bool)
    began = time.perf_counter()
    with threads(plan.threads):
        heard = exchange.source.fingerprints(1, 0, everyone, needed=True)
        assert heard is not None
        assert isinstance(heard.prints, Fingerprints)
        found = kinship(heard.prints, heard.ids, chosen.seed)
    took = time.perf_counter() - began
    cluster = None if shares.cluster is None else shares.cluster.to(heard.ids.device)
    return Discovery(
        found, heard.prints, cluster, shares.cluster_names, heard.bytes / shares.peers, took, names=shares.names
    )


_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)  # for which the samples needed are reported


def _private(chosen: Config, privacy: Privacy, given: UserObjects, device: str) -> Discovery:
    """Compare private fingerprints: one release per peer, with all of its epsilon, since nothing is trained."""
    without = chosen.model_copy(update={"privacy": None})
    experiment, _, plan = prepare(without, given, chosen_device(device))
    shares, task = experiment.task.data, experiment.task
    check_own_data(chosen, privacy, given.data is not None, shares)
    check_delta(privacy.delta, max(int(shares.train.count.max()), privacy.samples or 0))
    budget = Budget(privacy.epsilon, privacy.delta, fingerprints=1, group=privacy.group)
    noise = solve(budget).fingerprint
    assert noise is not None
    began = time.perf_counter()
    with threads(plan.threads):
        prints = task_private_fingerprints(task, chosen.seed, noise, keyed_draws(chosen.seed))
        ids = torch.arange(shares.peers)
        found, space = released_kinship(prints, ids, chosen.seed)
    took = time.perf_counter() - began
    spread = [] if space is None else space.spread.tolist()
    peers, sampling = max(found.evidence.peers if found.evidence else 0, 1), 0.0 if space is None else space.sampling
    needed = {
        f"{epsilon:g}": samples_needed(
            min(spread), peers, privacy.group * gaussian_noise(epsilon, privacy.delta), sampling
        )
        for epsilon in (_EPSILONS if spread else ())
    }
    typical = float(prints.count.clamp(min=1.0).median())
    release = PrivateRelease(
        privacy.epsilon, privacy.delta, noise, spread, smallest_spread(typical, peers, noise, sampling), needed
    )
    cluster = None if shares.cluster is None else shares.cluster.cpu()
    sent = float(BYTES * (shares.peers - 1))
    return Discovery(found, prints, cluster, shares.cluster_names, sent, took, release, shares.names)
