"""How the peers of a run are divided among processes, and what the processes tell each other.

Every process computes the same run for its own peers, its shard. In most runs one process has all peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from homophily.errors import UserError

Tensors = dict[str, Tensor]
WHOLE = "whole/"  # names of tensors in a checkpoint that do not have one row per peer begin so


class Shards(Protocol):
    """The processes of a run. All of them call each function but ``mine``, in the same order.

    R processes; P peers in this process, N in all, ids 0 to N - 1 in the order of the processes.
    """

    rank: int  # the number of this process; process 0 decides, writes and prints
    size: int  # R
    bytes: int  # that this process has sent to others in ``swapped``

    def mine(self, peers: int, rank: int | None = None) -> slice:
        """The ids of the peers in this process, or in the process ``rank``, of ``peers`` in all."""

    def gathered(self, table: Tensor) -> Tensor:
        """The rows [P, ...] of all processes, in their order: [N, ...]. Each may have any number of rows."""

    def swapped(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """What each process has for this one. parts: R tables, one for each process, which differ in rows only."""

    def in_turn(self, value: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
        """The value after the steps of all processes, one after the other; the same in all of them."""

    def agreed(self, make: Callable[[], Any]) -> Any:
        """What ``make`` returns in process 0, as JSON."""

    def collected(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensors]:
        """In process 0 the tensors of each process, one process at a time; nothing in the others."""

    def handed_out(self, make: Callable[[int], Tensors]) -> Tensors:
        """The tensors that process 0 makes for this process, from its number."""


class OneProcess:
    """All peers are in this process."""

    rank, size, bytes = 0, 1, 0

    def mine(self, peers: int, rank: int | None = None) -> slice:
        return slice(0, peers)

    def gathered(self, table: Tensor) -> Tensor:
        return table

    def swapped(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return list(parts)

    def in_turn(self, value: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
        return step(value)

    def agreed(self, make: Callable[[], Any]) -> Any:
        return make()

    def collected(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensors]:
        yield dict(tensors)

    def handed_out(self, make: Callable[[int], Tensors]) -> Tensors:
        return make(0)


ONE_PROCESS = OneProcess()


def total(shards: Shards, counts: Tensor) -> Tensor:
    """The sums of whole numbers [C] over all processes."""
    return shards.gathered(counts[None]).sum(0)


def largest(shards: Shards, number: int) -> int:
    """The largest number of all processes."""
    return int(shards.gathered(torch.tensor([number])).max())


def same(shards: Shards, answer: bool, what: str) -> bool:
    """The answer, if all processes have the same; else an error: ``what`` must say the same of all peers."""
    if len(shards.gathered(torch.tensor([answer])).unique()) > 1:
        raise UserError(f"{what} must say the same of all peers of a round")
    return answer


def check_alike(shards: Shards, tables: Mapping[str, Tensor], where: str, widths: bool = True) -> None:
    """Refuse tables [P, ...] of a user's method that differ between processes in more than their numbers of rows.

    where: the method's function that stores them; widths: whether their other sizes must be equal, too.
    """
    if shards.size == 1:
        return
    forms = [f"memory[{name!r}] {_form(table, widths)}" for name, table in tables.items()]
    said = torch.frombuffer(bytearray((", ".join(forms) or "nothing").encode()), dtype=torch.uint8)
    lengths = shards.gathered(torch.tensor([len(said)])).tolist()
    found = [bytes(part.tolist()).decode() for part in shards.gathered(said).split(lengths)]
    for rank, forms_there in enumerate(found):
        if forms_there != found[0]:
            what = "names, types and widths" if widths else "names, types and axes"
            raise UserError(
                f"method: {where} must store tables of the same {what} on all ranks, but rank 0 has {found[0]}, "
                f"and rank {rank} has {forms_there}"
            )


def _form(table: Tensor, widths: bool) -> str:
    """The type and the sizes of a table, such as "float32 [P, 4]"; without widths: "float32 [P, -]"."""
    sizes = [str(size) if widths else "-" for size in table.shape[1:]]
    return f"{str(table.dtype).removeprefix('torch.')} [{', '.join(['P', *sizes])}]"


def of_one_shape(shards: Shards, tables: Mapping[str, Tensor]) -> Tensors:
    """Tables [P, ...], filled up with zeros so that only their numbers of rows differ between processes."""
    if shards.size == 1:
        return dict(tables)
    found = {}
    for name, table in tables.items():
        widths = [largest(shards, width) for width in table.shape[1:]]
        missing = [wanted - width for wanted, width in zip(widths, table.shape[1:], strict=True)]
        found[name] = pad(table, [side for more in reversed(missing) for side in (0, more)]) if any(missing) else table
    return found


def rows_of(shards: Shards, table: Tensor, ids: Tensor, peers: int) -> Tensor:
    """The rows of the peers ``ids`` [W], in this order, in every process. table: [P, ...]."""
    mine = shards.mine(peers)
    ids = ids.to(table.device)
    here = (ids >= mine.start) & (ids < mine.stop)
    found = shards.gathered(table[ids[here] - mine.start])
    out = torch.empty_like(found)
    out[shards.gathered(here.nonzero()[:, 0])] = found
    return out
