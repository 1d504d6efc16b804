"""What a real peer has released under [privacy]: written down and stored before it leaves, and sent again as it was.

A model that is trained or a fingerprint that is made anew would have fresh noise: a second release, which shows more.
So after a restart a peer continues with what it has released, and its account is the ledger on disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from homophily.atomic_io import read_tensors, sync, write_tensors, writing
from homophily.errors import UserError
from homophily.federation.layout import Kept
from homophily.federation.similarity import LossSamples
from homophily.peer.manifest import BlobKind
from homophily.privacy.accountant import Noise
from homophily.privacy.ledger import LEDGER, Ledger, releases_in
from homophily.privacy.loss_distribution import Release
from homophily.simulation.privacy import PrivacyAccount
from homophily.training.task import Engine, Task

_KEPT_ROUNDS = 2  # as many as stay published
_ROW = "row"
_MODEL = re.compile(r"model-(\d{6,})\.safetensors")

Blobs = dict[BlobKind, bytes]


class Releases:
    """The releases of one peer, in its state folder."""

    def __init__(self, state: Path, account: PrivacyAccount, begun: bool) -> None:
        """begun: the peer has played rounds, so its ledger must be there."""
        ledger = state / LEDGER
        self._folder = ledger.parent
        if begun and not ledger.exists():
            raise UserError(
                f"{ledger} is missing, so what this peer has released is unknown: set peer.state to a new folder, "
                "whose promise adds to the one before"
            )
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        sync(state)
        (self._peer,) = account.peers
        self._ledger = Ledger(ledger, account.promise.epsilon, self._peer.budget.delta)
        self.account = replace(account, ledger=self._ledger)
        planned = {self._peer.of_round, self._peer.of_fingerprint}
        if not set(self._ledger.releases.values()) <= planned:
            raise UserError(
                f"{ledger}: this peer had another number of samples when its noise was computed; restore its data, "
                "agree on privacy.samples, or set peer.state to a new folder, whose promise adds to the one before"
            )

    def fingerprint(self, number: int, make: Callable[[], bytes]) -> bytes:
        """The fingerprint with this number: as it was released, or made now."""
        path = self._folder / f"fingerprint-{number}.safetensors"
        release = self._peer.of_fingerprint
        assert release is not None
        return self._released(f"fingerprint {number}", release, path, lambda: {"print": _tensor(make())})["print"]

    def models(self, round: int, row: Tensor, blobs: Blobs) -> Blobs:
        """The blobs of a round: as they were released, or those that are given, made of the model ``row`` [D]."""

        def made() -> dict[str, Tensor]:
            return {_ROW: row, **{kind: _tensor(data) for kind, data in blobs.items()}}

        found = self._released(f"round {round}", self._peer.of_round, self._model(round), made)
        for old in sorted(self._rounds())[:-_KEPT_ROUNDS]:
            self._model(old).unlink()
        return {kind: data for kind, data in found.items() if kind != _ROW}

    def row(self, round: int) -> Tensor | None:
        """The model [D] of a round that was released; None: it was not."""
        path = self._model(round)
        if path.exists():
            return read_tensors(path)[_ROW]
        if f"round {round}" in self._ledger.releases:
            raise UserError(f"{path} is missing: the model of round {round} was released and must not be made anew")
        return None

    def published(self) -> dict[int, Blobs]:
        """The blobs of the last rounds that were released, by round."""
        return {round: self.models(round, torch.empty(0), {}) for round in sorted(self._rounds())}

    def _released(
        self, name: str, release: Release, path: Path, make: Callable[[], dict[str, Tensor]]
    ) -> dict[Any, bytes]:
        """The tensors of a release as bytes: stored first, then charged, so that a charged one can be sent again."""
        if not path.exists():
            if name in self._ledger.releases:
                raise UserError(f"{path} is missing: {name} was released and must not be made anew")
            write_tensors(path, make())
            sync(path.parent)
        self._ledger.charge(name, release)
        return {key: bytes(tensor.numpy().tobytes()) for key, tensor in read_tensors(path).items()}

    def _model(self, round: int) -> Path:
        return self._folder / f"model-{round:06d}.safetensors"

    def _rounds(self) -> list[int]:
        return [int(found[1]) for path in self._folder.iterdir() if (found := _MODEL.fullmatch(path.name))]


def released_noise(state: Path) -> Noise:
    """The noise of what a peer has released, by the ledger in its state folder."""
    last: dict[str, float] = {}
    for name, release in releases_in(state / LEDGER).items():
        last[name.split()[0]] = release.noise
    return Noise(last.get("fingerprint"), last.get("round"))


class TrainedOnce:
    """An engine that trains each round once: a model that was released is restored instead."""

    def __init__(self, engine: Engine, releases: Releases) -> None:
        self._engine, self._releases = engine, releases
        self.name: str = engine.name
        self.task: Task = engine.task

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        stored = self._releases.row(round)
        if stored is None:
            self._engine.train(rows, kept, peers, round)
        else:
            rows[0] = stored.to(rows.device)

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        return self._engine.predict(rows, kept, x)

    def cross_evaluate(
        self, rows: Tensor, kept: Kept, model: Tensor, data: Tensor, samples: LossSamples = "train"
    ) -> Tensor:
        return self._engine.cross_evaluate(rows, kept, model, data, samples)


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
