"""The processes of a run that torchrun started, as ``Shards``: every message between them is sent here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from homophily.atomic_io import DTYPES, raw_bytes
from homophily.cluster.faults import Faults
from homophily.simulation.shards import Tensors


class Ranks:
    """The ranks of torch.distributed's default group, which must be gloo's. Rank 0 has the first peers."""

    def __init__(self, faults: Faults, on_gpus: dist.ProcessGroup | None) -> None:
        """on_gpus: a group of the same ranks with NCCL, if each has a GPU of its own."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._faults, self._on_gpus = faults, on_gpus
        self.bytes = 0  # that this rank has sent to other ranks in ``swapped``
        self._interrupted = False

    def close(self) -> None:
        """End torch's threads before Python ends, which aborts the process if they still run.

        After a message that was interrupted they wait for an answer, and the launcher ends the process.
        """
        if not self._interrupted and not self._faults.noticed and dist.is_initialized():
            dist.destroy_process_group()

    def mine(self, peers: int, rank: int | None = None) -> slice:
        rank = self.rank if rank is None else rank
        return slice(-(-rank * peers // self.size), -(-(rank + 1) * peers // self.size))

    def swapped(self, parts: Sequence[Tensor]) -> list[Tensor]:
        sizes = torch.tensor([len(part) for part in parts])
        incoming = torch.empty_like(sizes)
        with self._answers():
            dist.all_to_all_single(incoming, sizes)
        received = self._all_to_all(torch.cat(list(parts)), sizes.tolist(), incoming.tolist())
        self.bytes += sum(part.nbytes for rank, part in enumerate(parts) if rank != self.rank)
        return list(received.split(incoming.tolist()))

    def _all_to_all(self, rows: Tensor, out_of: list[int], into: list[int]) -> Tensor:
        """Rows [S, ...] in the order of the ranks that they go to; returns those that come, in the order of ranks."""
        raw = _as_bytes(rows if self._on_gpus is not None else rows.cpu())
        found = raw.new_empty((sum(into), raw.shape[1]))
        with self._answers():
            dist.all_to_all_single(found, raw, into, out_of, group=self._on_gpus if raw.is_cuda else None)
        return _from_bytes(found, rows)

    def gathered(self, table: Tensor) -> Tensor:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._answers():
            dist.all_gather(sizes, torch.tensor([len(table)]))
        counts = [int(size) for size in sizes]
        raw = _as_bytes(table.cpu())
        padded = raw.new_zeros((max(counts), raw.shape[1]))
        padded[: len(raw)] = raw
        found = [torch.empty_like(padded) for _ in counts]
        if padded.numel():
            with self._answers():
                dist.all_gather(found, padded)
        return _from_bytes(torch.cat([one[:count] for one, count in zip(found, counts, strict=True)]), table)

    def in_turn(self, value: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
        device, passed = value.device, value.cpu().contiguous()
        with self._answers():
            if self.rank:
                dist.recv(passed, self.rank - 1)
        passed = step(passed.to(device)).cpu().contiguous()
        with self._answers():
            if self.rank + 1 < self.size:
                dist.send(passed, self.rank + 1)
            dist.broadcast(passed, self.size - 1)
        return passed.to(device)

    def agreed(self, make: Callable[[], Any]) -> Any:
        said = json.dumps(make()).encode() if self.rank == 0 else b""
        length = torch.tensor([len(said)])
        with self._answers():
            dist.broadcast(length, 0)
            content = torch.frombuffer(bytearray(said), dtype=torch.uint8) if said else torch.empty(int(length)).byte()
            dist.broadcast(content, 0)
        return json.loads(content.numpy().tobytes())

    def collected(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensors]:
        if self.rank:
            self._send(tensors, 0)
            return
        yield dict(tensors)
        for rank in range(1, self.size):
            yield self._received(rank)

    def handed_out(self, make: Callable[[int], Tensors]) -> Tensors:
        if self.rank:
            return self._received(0)
        for rank in range(1, self.size):
            self._send(make(rank), rank)
        return make(0)

    def _send(self, tensors: Mapping[str, Tensor], to: int) -> None:
        """Tensors by name: first what they are, then each of them."""
        forms = {name: [DTYPES.index(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
        said = json.dumps(forms).encode()
        with self._answers():
            dist.send(torch.tensor([len(said)]), to)
            dist.send(torch.frombuffer(bytearray(said), dtype=torch.uint8), to)
            for tensor in tensors.values():
                if tensor.numel():
                    dist.send(raw_bytes(tensor.detach().cpu()), to)

    def _received(self, source: int) -> Tensors:
        length, found = torch.zeros(1, dtype=torch.int64), {}
        with self._answers():
            dist.recv(length, source)
            said = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(said, source)
            for name, (kind, shape) in json.loads(said.numpy().tobytes()).items():
                tensor = torch.empty(shape, dtype=DTYPES[kind])
                if tensor.numel():
                    dist.recv(tensor.flatten().view(torch.uint8), source)
                found[name] = tensor
        return found

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Raise an error that names the rank that does not answer."""
        try:
            yield
        except BaseException as error:
            self._interrupted = True
            if isinstance(error, RuntimeError):
                raise self._faults.lost(error) from error
            raise


def _as_bytes(table: Tensor) -> Tensor:
    """A table [P, ...] of any type as [P, bytes of a row], since gloo does not send all types."""
    return raw_bytes(table).view(len(table), math.prod(table.shape[1:]) * table.element_size())


def _from_bytes(raw: Tensor, like: Tensor) -> Tensor:
    """The table behind the bytes, with the type, the shape of rows and the device of another table."""
    shape = (len(raw), *like.shape[1:])
    return raw.view(like.dtype).view(shape).to(like.device) if raw.numel() else like.new_empty(shape)
