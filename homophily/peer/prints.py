"""The two forms of fingerprints that real peers send: kin's own, and private ones under [privacy]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from homophily.fingerprints.fingerprint import Fingerprints, Format, checked
from homophily.fingerprints.private import BYTES, PrivateFingerprints, unpacked
from homophily.peer.releases import Releases
from homophily.peer.wire import pack_print, pack_released, unpack_print, unpack_released


class PrintForm(Protocol):
    """How fingerprints are made, sent and compared. One fingerprint is whatever ``unpack`` returns."""

    def make(self, number: int) -> bytes:
        """This peer's fingerprint, packed; it was made so many times before."""

    def unpack(self, data: bytes) -> Any:
        """Raises Refused."""

    def size(self, one: Any) -> int:
        """Bytes of a fingerprint as a simulation counts them."""

    def largest(self, one: Any) -> float | None:
        """The largest value of a fingerprint; None: it says nothing."""

    def together(self, prints: Sequence[Any]) -> Fingerprints | PrivateFingerprints:
        """Fingerprints that can be compared."""


Print = tuple[Tensor, Tensor, int]  # mean [d], factor [F, d] and count of a fingerprint


@dataclass(frozen=True)
class PlainPrints:
    """Mean and noise factor of the embedded samples."""

    compute: Callable[[], Fingerprints]
    form: Format
    network: int

    def make(self, number: int) -> bytes:
        own = self.compute()
        return pack_print(own.mean[0], own.factor[0], int(own.count[0]), self.network)

    def unpack(self, data: bytes) -> Print:
        return unpack_print(data, self.form, self.network)

    def size(self, one: Print) -> int:
        return int(self.form.bytes(torch.tensor(one[2])))

    def largest(self, one: Print) -> float | None:
        mean, factor, count = one
        return float(torch.cat([mean[None], factor]).abs().max()) if count >= 2 else None

    def together(self, prints: Sequence[Print]) -> Fingerprints:
        most = max(len(factor) for _, factor, _ in prints)
        return checked(
            torch.stack([mean for mean, _, _ in prints]),
            torch.stack([pad(factor, (0, 0, 0, most - len(factor))) for _, factor, _ in prints]),
            torch.tensor([count for _, _, count in prints]),
            self.form,
        )


@dataclass(frozen=True)
class PrivatePrints:
    """Noised sums of the embedded samples, each released once. One fingerprint is its vector."""

    compute: Callable[[], Tensor]  # the vector of this peer, with fresh noise
    noise: float  # over the sensitivity
    network: int
    releases: Releases

    def make(self, number: int) -> bytes:
        return self.releases.fingerprint(number, lambda: pack_released(self.compute(), self.noise, self.network))

    def unpack(self, data: bytes) -> Tensor:
        return unpack_released(data, self.noise, self.network)

    def size(self, one: Tensor) -> int:
        return BYTES

    def largest(self, one: Tensor) -> float | None:
        return float(one.abs().max())

    def together(self, prints: Sequence[Tensor]) -> PrivateFingerprints:
        return unpacked(torch.stack(list(prints)), self.noise)
