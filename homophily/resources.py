"""What this machine allows: the engine, how much is worked on at a time, and how many threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from homophily.data import Shares
from homophily.errors import UserError
from homophily.layout import Layout
from homophily.training.probe import Character

_WORTH_THREADS = 32 << 20  # bytes that a training step of all peers touches
_SOME_MEMORY = 4 << 30  # where the system does not say how much is free


@dataclass(frozen=True)
class Resolved:
    """What was decided once for this machine, stored with the run and used again on resume."""

    engine: str
    why: str  # the engine's reason, in words
    chunk: int  # peers trained at a time
    score_peers: int  # peers and samples evaluated at a time
    score_samples: int
    measure_pairs: int  # pairs of models compared at a time
    threads: int


def resolve(
    engine: str, batch: int, shares: Shares, layout: Layout, character: Character, device: torch.device
) -> Resolved:
    """The engine ("auto": by what the network is like), and chunk sizes from the memory that is free."""
    if engine == "vectorised" and character.obstacle:
        raise UserError(f"engine = 'vectorised': this network cannot be vectorised: {character.obstacle}")
    why = "asked for" if engine != "auto" else character.obstacle or "the network vectorises"
    plain = engine == "one-by-one" or character.obstacle is not None
    budget = _free_memory(device) // 4
    row = layout.width * layout.dtype.itemsize
    # Twice what autograd saves (gradients of the same size), and rows, gradients and optimiser state.
    training = 2 * character.saved_bytes * batch + 8 * row
    most = int(shares.test.count.max())
    samples = max(1, min(most, 512))
    scoring = samples * character.saved_bytes + row + most * shares.outputs * 16
    measuring = int(shares.train.count.max()) * character.saved_bytes + 4 * row
    chunk = max(1, min(shares.peers, budget // max(1, training)))
    # One thread where each peer is work of its own, as on a real peer, and where a step is too small to share:
    # threads that wait for one another cost more than they bring, a hundredfold on a busy machine.
    alone = plain or chunk * training < _WORTH_THREADS
    return Resolved(
        engine="one-by-one" if plain else "vectorised",
        why=why,
        chunk=chunk,
        score_peers=max(1, min(shares.peers, budget // max(1, scoring))),
        score_samples=samples,
        measure_pairs=max(1, budget // max(1, measuring)),
        threads=1 if alone else torch.get_num_threads(),
    )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """That many torch threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system says
        return _SOME_MEMORY
