"""Plays the missing runs of a folder that other processes may play too, and follows the runs that others play."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from homophily.atomic_io import locked
from homophily.cluster.joining import joined
from homophily.config.schema import Config
from homophily.errors import InUseError, UserError
from homophily.experiments.callbacks import Callbacks
from homophily.experiments.leases import Lease, Leases
from homophily.experiments.queue import RunRequest, execute
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.shards import ONE_PROCESS, Shards
from homophily.simulation.training_setup import SetupCache
from homophily.simulation.user_objects import UserObjects

POLL = 0.5  # seconds between two looks at what others play


class _LeaseLostError(Exception):
    """Another process has taken over a run, because this one was suspended for too long."""


class SharedPlay:
    """The missing runs of a folder, in order; no two processes play a run at the same time.

    The ranks of one torchrun play each run together: rank 0 holds the leases and says which run is next.
    alone: whether this process plays one run at a time, so that others get their share.
    """

    def __init__(self, requests: Sequence[RunRequest], leases: Leases, alone: bool, followers: Followers) -> None:
        self._waiting = {request.out: request for request in requests}
        self._leases, self._alone, self._followers = leases, alone, followers
        self._held: dict[Path, tuple[Lease, ExitStack]] = {}
        self._shards: Shards = ONE_PROCESS

    def play(self, objects: UserObjects, device: torch.device, cache: SetupCache) -> None:
        """Play the runs that nobody else plays, until all have finished."""
        self._shards = joined(device)
        try:
            while self._shards.agreed(lambda: bool(self._waiting)):
                try:
                    for run in execute(self._next(), objects, device, cache, self._check, self._alone):
                        self._release(run.path)
                        del self._waiting[run.path]
                except _LeaseLostError:
                    self._release_all()
                if self._waiting and self._shards.rank == 0:  # others play these
                    self._followers.look(self._waiting.values())
                    time.sleep(POLL)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(*(stop.args or map(str, list(self._waiting)[:1]))) from None
        finally:
            self._release_all()

    def _next(self) -> Iterator[RunRequest]:
        """The runs to play, on all ranks."""
        free = self._free()

        def out() -> str | None:
            request = next(free, None)
            return None if request is None else str(request.out)

        while (found := self._shards.agreed(out)) is not None:
            yield self._waiting[Path(found)]

    def _free(self) -> Iterator[RunRequest]:
        """The runs that no other process holds; this process holds each from now on."""
        for path, request in list(self._waiting.items()):
            if not finished(path) and not self._take(path):
                continue
            if not finished(path):  # nor meanwhile, in another process
                yield request
                continue
            self._followers.look([request])  # also what it wrote since the last look
            self._release(path)
            del self._waiting[path]

    def _take(self, path: Path) -> bool:
        lease = self._leases.take(path.name)
        if lease is None:
            return False
        self._held[path] = lease, ExitStack()
        try:
            self._held[path][1].enter_context(locked(path))  # such as: homophily run --resume
        except InUseError:
            self._release(path)
            return False
        return True

    def _check(self) -> None:
        if self._shards.agreed(lambda: any(lease.lost for lease, _ in self._held.values())):
            raise _LeaseLostError

    def _release(self, path: Path) -> None:
        if path in self._held:
            lease, lock = self._held.pop(path)
            lock.close()
            self._leases.release(lease)

    def _release_all(self) -> None:
        for path in list(self._held):
            self._release(path)


class Followers:
    """Calls the callbacks of runs that other processes play, with the metrics that those write."""

    def __init__(self) -> None:
        self._followed: dict[Path, _FollowedRun] = {}

    def look(self, requests: Iterable[RunRequest]) -> None:
        """Report the rounds that are new."""
        for request in requests:
            if RunWriter(request.out).begun:
                if request.out not in self._followed:
                    callbacks = Callbacks(request.callbacks())
                    self._followed[request.out] = _FollowedRun(request.out, Run(request.out).config, callbacks)
                self._followed[request.out].look()


@dataclass(eq=False)
class _FollowedRun:
    """A run of another process, as callbacks see it."""

    path: Path
    config: Config
    callbacks: Callbacks
    round: int = 0
    _over: bool = field(default=False)  # whether the callbacks know that the run has finished
    _read: int = field(default=0)  # bytes
    _last: bytes = field(default=b"")  # the line that ends there

    def look(self) -> None:
        if self._over:
            return
        over = finished(self.path)  # before the metrics are read: then they are complete
        for metrics in self._new_lines():
            if not self.round:
                self.callbacks.start(self)
            self.round = metrics["round"]
            self.callbacks.follow(self, metrics)
        if over:
            self._over = True
            self.callbacks.end(self, Run(self.path).summary)

    def _new_lines(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._read - len(self._last))
            if file.read(len(self._last)) != self._last:  # a resumed run repeats the rounds after its checkpoint
                self._read, self._last = file.seek(0), b""
            *lines, _ = file.read().split(b"\n")  # the last may be incomplete
        try:
            found = [json.loads(line) for line in lines]
        except ValueError:  # the file was cut while it was read
            return []
        if lines:
            self._read += sum(len(line) + 1 for line in lines)
            self._last = lines[-1] + b"\n"
        return [metrics for metrics in found if metrics["round"] > self.round]

    def state_dict(self, peer: int) -> dict[str, Tensor]:
        if not finished(self.path):
            raise UserError(f"another process plays {self.path}: its models cannot be read before it has finished")
        return Run(self.path).state_dict(peer)

    def stop(self) -> None:
        raise UserError(f"another process plays {self.path}: it cannot be stopped from here")


def finished(path: Path) -> bool:
    """Whether a folder holds a finished run."""
    return RunWriter(path).begun and Run(path).finished
