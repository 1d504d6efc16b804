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
from homophily.simulation.shards import ONE_PROCESS, WHOLE, Shards, total
from homophily.training.task import Engine, Task

_AT_ONCE = 64  # rows whose sum is computed together


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
    shards: Shards = ONE_PROCESS
    everyone: int = 0  # clients of all processes; 0: all are in this one

    def __post_init__(self) -> None:
        peers, device = self.task.data.peers, self.models.device
        self.everyone = self.everyone or peers
        self.traffic = Traffic(peers, device, self.shards, self.everyone)
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
        return max(1, round(self.method.fraction * self.everyone))

    def _asked(self, active: Tensor, round: int) -> Tensor:
        """A fresh uniform draw of the active clients of all processes: [P] bool, those of this one."""
        keys = bits(self.task.seed, self.task.ids, round, Purpose.SERVER)
        active, keys = self.shards.gathered(active), self.shards.gathered(keys)
        return pick(active[None], self.wanted, keys[None])[0][self.shards.mine(self.everyone)]

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
        self._average(federation, self.taking_part & ~diverged)
        self._hand_out(federation, ~stopped)
        sent = torch.where(self.taking_part, len(self.models) + (~diverged).to(torch.int64), 0)[:, None]
        self.traffic.count(sent, torch.ones_like(sent), federation.layout.model_bytes)

    def _average(self, federation: Federation, clients: Tensor) -> None:
        """Average the models of these clients [P] bool; the others are left out, since they may have diverged."""
        counts = self.task.data.train.count.to(torch.float64)
        samples = counts.new_zeros(len(self.models)).index_add_(0, self.choice[clients], counts[clients])
        samples = total(self.shards, samples)  # whole numbers, so their order does not matter
        share, layout = counts / samples[self.choice], federation.layout
        trained = {model: clients & (self.choice == model) for model in samples.nonzero()[:, 0].tolist()}

        def added(sums: Tensor) -> Tensor:
            for model, mine in trained.items():
                sums[model] = _added(sums[model], share[mine], federation.rows[mine])
            return sums

        sums = self.shards.in_turn(torch.zeros_like(self.models, dtype=torch.float64), added)
        for model, mine in trained.items():
            mean = sums[model].to(federation.rows.dtype)[None]
            if layout.factors:
                rows, parts = self.shards.gathered(federation.rows[mine]), self.shards.gathered(share[mine])
                among = torch.arange(len(rows), device=rows.device)[None]
                mean = with_mean_products(mean, layout, rows, among, parts.to(rows.dtype)[None])
            self.models[model] = mean[0]

    def choose(self, similarity: Tensor | None) -> None:
        """Clients merge with nobody."""

    def conclude(self, merged: Tensor | None) -> RoundMetrics:
        return {
            "neighbour_precision": None,
            "neighbour_recall": None,
            "same_cluster_merges": None,
            "models_sent_per_peer": self.traffic.models_per_peer,
            "bytes_sent_per_peer": self.traffic.bytes_per_peer,
            "clients_of_model": total(self.shards, self.choice.bincount(minlength=len(self.models))).tolist(),
        }

    def entries(self) -> Entries:
        """The model that each client has chosen, if there are several."""
        if self.recorded is None or len(self.models) == 1:
            return {}
        return {"diagnostics": self.recorded.of_peers({"choice": self.shards.gathered(self.choice.to(torch.int16))})}

    def summary(self, rounds: int) -> Summary:
        nominal = self.method.nominal(rounds, self.wanted / self.everyone)
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
        models = {f"{WHOLE}server/models": self.models} if self.shards.rank == 0 else {}  # the same in all processes
        return {"received": self.traffic.received, **models, "server/choice": self.choice}

    def numbers(self) -> dict[str, Any]:
        return {"traffic": self.traffic.numbers()}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.traffic.restore(tensors["received"], numbers["traffic"])
        self.models, self.choice = tensors[f"{WHOLE}server/models"], tensors["server/choice"]


def _added(sum: Tensor, share: Tensor, rows: Tensor) -> Tensor:
    """A sum [D] float64 plus rows [P, D] times their shares [P].

    A CPU adds one row after the other, so that no bit depends on how the rows are divided among processes.
    """
    if rows.is_cuda:
        return sum + (share.to(rows.dtype) @ rows).double()
    for some, parts in zip(rows.split(_AT_ONCE), share.split(_AT_ONCE), strict=True):
        sum = torch.cat([sum[None], parts[:, None] * some.double()]).cumsum(0)[-1]
    return sum
