"""A federation small enough to follow by hand: linear models of two weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from homophily.federation.contacts import view_of_all
from homophily.federation.rows import Federation
from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.simulation.sources import InMemory, Published
from homophily.training.losses import mse
from homophily.training.task import Task
from tests.training.nets import shares, task

CPU = torch.device("cpu")
MODEL = 2 * 4  # bytes of a model


def tiny_task(counts: Sequence[int]) -> Task:
    """A regression with two weights; peer i has ``counts[i]`` samples."""
    return task(nn.Linear(2, 1, bias=False), shares(counts, [2], 1, regression=True), torch.float32, mse)


def federation(of: Task, rows: Sequence[Sequence[float]]) -> Federation:
    return Federation(of.layout, torch.tensor(rows), {})


def view_of(peers: int, contacts: int | None = None, graph: object = None, hops: int = 1) -> View:
    return view_of_all(peers, 0, graph, hops, contacts, torch.arange(peers) % 2, CPU)


def flags(peers: int, *which: int) -> Tensor:
    """[N] bool: these peers."""
    out = torch.zeros(peers, dtype=torch.bool)
    out[list(which)] = True
    return out


def fingerprints(sizes: Sequence[int]) -> Fingerprints:
    """Of so many bytes each (0: a peer has none); what they say does not matter."""
    peers, size = len(sizes), torch.tensor(list(sizes))
    count = torch.where(size > 0, 2, 0)
    return Fingerprints(torch.zeros(peers, 4), torch.zeros(peers, 1, 4), count, count.clamp(max=1), size)


def in_memory(view: View, start: Tensor, samples: Sequence[int] | None = None) -> InMemory:
    """A source without fingerprints."""

    def none(earlier: int) -> Fingerprints:
        raise AssertionError("no fingerprints are asked for")

    counts = torch.tensor(samples or [1] * len(view.me))
    return InMemory(view, start, counts, none, graph=None, limited=False)


def published(models: Federation, before: Tensor | None = None, tables: dict[str, Tensor] | None = None) -> Published:
    """Everyone has trained, nobody has diverged."""
    peers = len(models.rows)
    return Published(models, before, flags(peers), flags(peers, *range(peers)), tables or {})
