"""The exchange between clients and a server: models are assigned before training and averaged after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from homophily.federation.factors import with_mean_products
from homophily.federation.peer_sets import pick
from homophily.federation.rows import Federation
from homophily.methods.server import ServerMethod
from homophily.randomness import Purpose, bits
from homophily.runs.fields import RoundMetrics, Summary
from homophily.simulation.communication import Traffic
from homophily.simulation.pairwise import cross_loss
from homophily.simulation.recording import Entries, RecordedPeers
from homophily.training.task import Engine, Task


@dataclass
class ServerExchange:
    """A server's models are rows [c, D] beside the clients', in nobody's contacts."""

    method: ServerMethod
    task: Task
    engine: Engine
    models: Tensor  # [c, D]
    chunk: int  # client and model pairs evaluated at a time
    notes: list[str]  # what a user should know
    recorded: RecordedPeers | None = None  # the peers in the run's history

    def __post_init__(self) -> None:
        peers, device = self.task.data.peers, self.models.device
        self.traffic = Traffic(peers, device)
        self.choice = torch.zeros(peers, dtype=torch.int64, device=device)
        self.taking_part = torch.ones(peers, dtype=torch.bool, device=device)
        self.shared = self.task.layout.mask(shared=True).to(device)

    def before_training(self, federation: Federation, round: int, active: Tensor) -> Tensor:
        """The clients that take part: [N] bool. They, and in round 1 all, choose the model with the lowest loss."""
        active = active.to(self.choice.device)
        self.taking_part = self._asked(active, round)
        if len(self.models) > 1:
            picks = self.taking_part if round > 1 else active
            self.choice = torch.where(picks, self.method.assign(self._losses(federation)), self.choice)
        self._hand_out(federation, active)
        return self.taking_part.cpu()

    @property
    def wanted(self) -> int:
        """How many clients take part in a round."""
        return max(1, round(self.method.fraction * len(self.choice)))

    def _asked(self, active: Tensor, round: int) -> Tensor:
        """A fresh uniform draw of the active clients: [N] bool."""
        keys = bits(self.task.seed, self.task.ids, round, Purpose.SERVER)
        return pick(active[None], self.wanted, keys[None])[0]

    def _losses(self, federation: Federation) -> Tensor:
        """Loss of every server model on every client's training data, with the client's personal parameters: [N, c]."""
        peers, count = len(federation.rows), len(self.models)
        data = torch.arange(peers, device=self.models.device).repeat_interleave(count)
        model = peers + torch.arange(count, device=self.models.device).repeat(peers)
        rows = torch.cat([federation.rows, self.models])
        parts = [
            cross_loss(self.task, self.engine, rows, federation.kept, model[part], data[part])
            for part in torch.arange(len(data), device=data.device).split(self.chunk)
        ]
        return torch.cat(parts).view(peers, count)

    def _hand_out(self, federation: Federation, to: Tensor) -> None:
        if federation.layout.has_personal:
            rows = torch.where(self.shared, self.models[self.choice], federation.rows)
            federation.rows.copy_(torch.where(to[:, None], rows, federation.rows))
        elif len(self.models) == 1 and bool(to.all()):
            federation.rows.copy_(self.models.expand_as(federation.rows))
        else:
            federation.rows[to] = self.models[self.choice[to]]

    def wants_rows_before(self, round: int) -> bool:
        return False

    def meet(
        self, federation: Federation, before: Tensor | None, round: int, stopped: Tensor, diverged: Tensor
    ) -> None:
        """Each server model becomes the average of the clients that trained it, if there are any."""
        stopped, diverged = stopped.to(self.choice.device), diverged.to(self.choice.device)
        counts = self.task.data.train.count.to(torch.float64)
        for model in range(len(self.models)):
            mine = self.taking_part & (self.choice == model) & ~diverged
            weights = torch.where(mine, counts, 0.0)
            if bool(mine.any()):
                share = (weights / weights.sum()).to(federation.rows.dtype)
                everyone = bool(mine.all())  # others are excluded, not multiplied by zero: they may have diverged
                rows = federation.rows if everyone else federation.rows[mine]
                share = share if everyone else share[mine]
                among = torch.arange(len(rows), device=rows.device)[None]
                mean = (share @ rows)[None]
                self.models[model] = with_mean_products(mean, federation.layout, rows, among, share[None])[0]
        self._hand_out(federation, ~stopped)
        sent = torch.where(self.taking_part, len(self.models) + (~diverged).to(torch.int64), 0)[:, None]
        self.traffic.count(sent, torch.ones_like(sent), federation.layout.model_bytes)

    def choose(self, similarity: Tensor | None) -> None:
        """Clients merge with nobody."""

    def conclude(self, merged: Tensor | None) -> RoundMetrics:
        return {
            "neighbour_precision": None,
            "neighbour_recall": None,
            "same_cluster_merges": None,
            "models_sent_per_peer": self.traffic.models_per_peer,
            "bytes_sent_per_peer": self.traffic.bytes_per_peer,
            "clients_of_model": self.choice.bincount(minlength=len(self.models)).tolist(),
        }

    def entries(self) -> Entries:
        """The model that each client has chosen, if there are several."""
        if self.recorded is None or len(self.models) == 1:
            return {}
        return {"diagnostics": self.recorded.of_peers({"choice": self.choice.to(torch.int16)})}

    def summary(self, rounds: int) -> Summary:
        nominal = self.method.nominal(rounds, self.wanted / len(self.choice))
        return {
            "neighbour_precision": None,
            "neighbour_recall": None,
            "same_cluster_merges": None,
            **self.traffic.summary(rounds),
            "nominal_models_per_peer": nominal,
            "notes": self.notes,
        }

    def final(self) -> dict[str, Tensor]:
        """Clients merge nobody; the model each one has chosen."""
        return {"choice": self.choice}

    def tensors(self) -> dict[str, Tensor]:
        return {
            "received": self.traffic.received,
            "server/models": self.models,
            "server/choice": self.choice,
        }

    def numbers(self) -> dict[str, Any]:
        return {"traffic": self.traffic.numbers()}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.traffic.restore(tensors["received"], numbers["traffic"])
        self.models, self.choice = tensors["server/models"], tensors["server/choice"]
