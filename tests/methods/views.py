"""Small federations without models, for the tests of methods."""

import torch
from torch import Tensor

from homophily.methods import Method, RoundContext, View
from homophily.methods.dispatch import SharedTables, choose, meet
from homophily.randomness import uniform

NO = -torch.inf


def view_of(peers: int, cluster: list[int] | None = None, seed: int = 0) -> View:
    me = torch.arange(peers)
    contacts = me.expand(peers, peers)
    known = contacts != me[:, None]
    truth = None if cluster is None else torch.tensor(cluster)
    same = None if truth is None else (truth[:, None] == truth) & known
    return View(me, torch.full_like(me, seed), contacts, known, torch.ones_like(contacts), same)


def a_set(peers: int, *rows: tuple[int, ...]) -> Tensor:
    """Members by row."""
    out = torch.zeros(len(rows), peers, dtype=torch.bool)
    for row, members in enumerate(rows):
        out[row, list(members)] = True
    return out


def members(mask: Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in mask]


def similarities(met: Tensor, table: Tensor) -> Tensor:
    """The similarities of the peers met, as an evaluator returns them."""
    return torch.where(met, table.double(), -torch.inf)


def random_table(view: View, round: int) -> Tensor:
    """Similarities by id, the same for every row; peers of the same cluster, if known, are more similar."""
    noise = uniform(view.seed[:, None], view.me[:, None], 1000 + round, view.contacts)
    return noise + (0.0 if view.same is None else 1.5 * view.same)


def shared_tables(method: Method, view: View, memory: dict[str, Tensor]) -> SharedTables:
    """The tables that all peers share, as of the end of the last round."""
    tables = {name: memory[name] for name in method.shares if name in memory}
    return SharedTables(tables, view.contacts, local=lambda ids: ids.clamp(min=0))


def play(
    method: Method, view: View, rounds: int, table: Tensor | None = None
) -> list[tuple[Tensor, Tensor, RoundContext]]:
    """Whom peers meet and choose in each round, with the tables of all friends as of the round before."""
    played: list[tuple[Tensor, Tensor, RoundContext]] = []
    memory: dict[str, Tensor] = {}
    for round in range(1, rounds + 1):
        met = meet(method, view, round, memory)
        alike = similarities(met, random_table(view, round) if table is None else table)
        compared = method.compares(RoundContext(view, round, memory))
        shared = shared_tables(method, view, memory)
        chosen, memory = choose(method, view, round, memory, met, met, alike if compared else None, shared)
        played.append((met, chosen, RoundContext(view, round, memory)))
    return played
