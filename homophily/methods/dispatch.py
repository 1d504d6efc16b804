"""The decisions of a method for all peers of a simulation, in chunks of rows that fit into the cache.

A row that is decided alone equals the same row decided among all, so chunks do not change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.federation.view import View
from homophily.methods.base import Memory, Method, RoundContext, nothing_shared
from homophily.plugins.validation import answer

_ON_CPU, _ON_GPU = 1 << 17, 1 << 26  # entries of the contacts decided on at a time


def meets(method: Method, now: RoundContext) -> Tensor:
    """Whom the rows of ``now`` ask, among their contacts: [P, B] bool. A real peer may not reach all of them now."""
    asked = _a_set("meet", method.meet(now), now)
    if not is_bundled(method):
        contacts = (now.view.contacts >= 0) & (now.view.contacts != now.view.me[:, None])
        _refuse_outside(f"{type(method).__name__}.meet", asked, contacts, now, "are not among its contacts")
    return asked


def chooses(method: Method, now: RoundContext, asked: Tensor, met: Tensor, similarity: Tensor | None) -> Tensor:
    """With whom the rows of ``now`` merge: [P, B] bool, a subset of ``met``. Updates ``now.memory``.

    asked: [P, B] bool, the result of ``meets``; met: [P, B] bool, those of them whose models have arrived.
    """
    chosen = _a_set("choose", method.choose(now, met, similarity), now)
    if not is_bundled(method):
        # A row that met fewer peers than it asked (it stopped, or a model did not arrive) may choose among those asked.
        allowed = met | (asked != met).any(1, keepdim=True)
        _refuse_outside(f"{type(method).__name__}.choose", chosen, allowed, now, "it did not meet")
    remembered(now.memory, len(now.view.me))
    for name in set(method.shares) & set(now.memory):
        wanted = f"method: memory[{name!r}], which peers share, must have a number for everyone in the contacts"
        answer(now.memory[name], now.known.shape, wanted)
    return chosen & met


def compares(method: Method, now: RoundContext) -> bool:
    """Whether the method needs similarities in this round."""
    found = method.compares(now)
    if not isinstance(found, bool):
        raise UserError(f"method: compares must return True or False, not {type(found).__name__}")
    return found


def remembered(memory: object, peers: int) -> Memory:
    """Return the memory of a method, or raise a UserError: it must be tables with a row for each of ``peers`` peers."""
    if not isinstance(memory, dict):
        raise UserError(f"method: what is remembered must be tables by name, not {type(memory).__name__}")
    for name, table in memory.items():
        if not isinstance(name, str):
            raise UserError(f"method: memory[{name!r}] must have a string as its name, not {type(name).__name__}")
        shape = table.shape if isinstance(table, Tensor) else ()
        answer(table, (peers, *shape[1:]), f"method: memory[{name!r}] must have a row for each peer that decides")
    return memory


def _a_set(name: str, found: object, now: RoundContext) -> Tensor:
    wanted = f"method: {name} must return a set of peers"
    chosen = answer(found, now.known.shape, wanted)
    if chosen.dtype != torch.bool:
        raise UserError(f"{wanted}, of torch.bool, not {chosen.dtype}")
    return chosen


def is_bundled(method: Method) -> bool:
    """Whether the method is part of the package: its tests check it, and a check here would have to wait for a GPU."""
    return type(method).__module__.startswith("homophily.")


def _refuse_outside(decision: str, chosen: Tensor, allowed: Tensor, now: RoundContext, what: str) -> None:
    """Raise a UserError that names the first chosen peer outside the allowed set [P, B]."""
    outside = (chosen & ~allowed).nonzero()
    if not len(outside):
        return
    row, column = outside[0].tolist()
    me, other = int(now.view.me[row]), int(now.view.contacts[row, column])
    named = "itself" if other == me else f"place {column} of its contacts, which is empty" if other < 0 else None
    raise UserError(f"method: {decision} chose peers that {what} (peer {me} chose {named or f'peer {other}'})")


def meet(method: Method, view: View, round: int, memory: Memory) -> Tensor:
    """Whom all peers of ``view`` ask, among their contacts: [P, B] bool."""
    out = torch.empty_like(view.known)
    for rows in _chunks(view):
        out[rows] = meets(method, RoundContext(view.rows(rows), round, _rows_of(memory, rows)))
    return out


def choose(
    method: Method,
    view: View,
    round: int,
    memory: Memory,
    asked: Tensor,
    met: Tensor,
    similarity: Tensor | None,
    shared: SharedTables,
) -> tuple[Tensor, Memory]:
    """With whom all peers of ``view`` merge [P, B] bool, and the new memory; ``memory`` itself does not change.

    asked: the result of ``meet``; met: those of them whose models have arrived; shared: the tables that they share.
    """
    out = torch.empty_like(view.known)
    after: Memory = {}
    for rows in _chunks(view):
        heard = shared.about(view.contacts[rows]) if method.shares else nothing_shared
        now = RoundContext(view.rows(rows), round, _rows_of(memory, rows), heard)
        alike = None if similarity is None else similarity[rows]
        out[rows] = chooses(method, now, asked[rows], met[rows], alike)
        for name, table in now.memory.items():
            if len(table) == len(view.me):
                after[name] = table
            else:
                after.setdefault(name, table.new_empty((len(view.me), *table.shape[1:])))[rows] = table
    return out, after


def diagnostics(
    method: Method, view: View, rows: Tensor, round: int, memory: Memory, met: Tensor, similarity: Tensor | None
) -> Mapping[str, Tensor]:
    """What the method reports of the choices of the peers in ``rows`` [W]: tables [W, ...]. memory: after them."""
    now = RoundContext(view.rows(rows), round, {name: table[rows] for name, table in memory.items()})
    found = method.diagnostics(now, met[rows], None if similarity is None else similarity[rows])
    return reported(found, len(rows), "diagnostics")


def reported(tables: object, rows: int | None, name: str) -> Mapping[str, Tensor]:
    """Return diagnostics of a method, or raise a UserError: they must be tensors by name, with this many ``rows``."""
    if not isinstance(tables, Mapping) or not all(isinstance(key, str) for key in tables):
        raise UserError(f"method: {name} must be tables by name, not {tables!r}")
    for key, table in tables.items():
        shape = table.shape if isinstance(table, Tensor) else ()
        wanted = f"method: {name}[{key!r}] must be a tensor" + ("" if rows is None else f" with {rows} rows")
        answer(table, tuple(shape) if rows is None else (rows, *shape[1:]), wanted)
    return tables


def neighbours(method: Method, view: View, round: int, memory: Memory, partners: Tensor) -> Tensor:
    """Whom all peers of ``view`` hold to be alike: [P, B] bool, or weights."""
    parts = [
        _alike(method, RoundContext(view.rows(rows), round, _rows_of(memory, rows)), partners[rows])
        for rows in _chunks(view)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _alike(method: Method, now: RoundContext, partners: Tensor) -> Tensor:
    """Whom the rows of ``now`` hold to be alike, among the peers they know: [P, B] bool, or weights."""
    wanted = "method: neighbours must return a set of peers, or weights"
    found = answer(method.neighbours(now, partners), now.known.shape, wanted).masked_fill(~now.known, 0)
    if found.dtype != torch.bool and bool((wrong := ~((found >= 0) & (found < torch.inf))).any()):
        raise UserError(f"{wanted} that are finite and at least 0, not {float(found[wrong][0]):g}")
    return found


def _chunks(view: View) -> Iterator[slice]:
    peers, width = view.known.shape
    step = max(1, (_ON_GPU if view.known.is_cuda else _ON_CPU) // max(1, width))
    return (slice(first, first + step) for first in range(0, peers, step))


def _rows_of(memory: Memory, rows: slice) -> Memory:
    return {name: table[rows] for name, table in memory.items()}


@dataclass(frozen=True)
class SharedTables:
    """The tables that M peers send with their models, as of the end of the last round."""

    tables: Mapping[str, Tensor]  # [M, B] float64; NaN: no entry
    contacts: Tensor  # [M, B] int64: the peers that the entries are about, ascending, padded with -1
    local: Callable[[Tensor], Tensor]  # ids to rows

    def about(self, mine: Tensor) -> Callable[[str, Tensor], Tensor]:
        """The function ``RoundContext.shared`` for peers with the contacts ``mine`` [P, B]."""

        def shared(name: str, friends: Tensor) -> Tensor:
            if name not in self.tables or not self.contacts.shape[1]:
                return torch.full(mine.shape, torch.nan, dtype=torch.float64, device=mine.device)
            if self.contacts.stride(0) == 0 and self.contacts.shape[1] == mine.shape[1]:
                return self._of_one_list(self.tables[name], friends)
            return self._searched(self.tables[name], friends, mine)

        return shared

    def _of_one_list(self, table: Tensor, friends: Tensor) -> Tensor:
        """The entries, if all peers have the same list of contacts, which includes themselves."""
        said = table.new_full((len(friends), table.shape[1]), torch.nan)
        for friend in friends.unbind(1)[::-1]:  # in reverse: the first friend overwrites the others
            values, itself = table[self.local(friend)], torch.searchsorted(self.contacts[0], friend.clamp(min=0))
            values.scatter_(1, itself[:, None], torch.nan)  # nobody is its own contact
            said = torch.where(values.isnan() | (friend < 0)[:, None], said, values)
        return said

    def _searched(self, table: Tensor, friends: Tensor, mine: Tensor) -> Tensor:
        """The entries, if contacts differ: each contact of ``mine`` is searched in the contacts of the friend."""
        said = table.new_full(mine.shape, torch.nan)
        for friend in friends.unbind(1)[::-1]:
            row = self.local(friend)
            about = torch.where(self.contacts[row] < 0, torch.iinfo(torch.int64).max, self.contacts[row])
            place = torch.searchsorted(about, mine).clamp_(max=about.shape[1] - 1)
            values = table[row].gather(1, place).masked_fill_(about.gather(1, place) != mine, torch.nan)
            said = torch.where(values.isnan() | (friend < 0)[:, None], said, values)
        return said
