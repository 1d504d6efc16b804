"""Canaries: samples that are added to peers' data by coin, and how well an attacker finds them in what peers release.

The attacker is the one against whom the account of [privacy] protects: it knows every sample of a peer but the canary,
the signs of a fingerprint, and the model before and after every step of training. Each canary belongs to another
*copy* of a peer, with random numbers of its own, so that guesses about canaries are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from homophily.data.types import FederatedData, Split
from homophily.federation.rows import Federation
from homophily.fingerprints.private import Draw, keyed_draws
from homophily.privacy.draws import KeyedDraws
from homophily.randomness import Purpose, generator, uniform, word
from homophily.simulation.training_setup import task_fingerprints, task_private_fingerprints
from homophily.training.objectives import PLAIN
from homophily.training.private import Private
from homophily.training.task import Engine, Task

_FAR = 3.0  # standard deviations of the inputs of a canary: far from the data, so that its gradient is long
_BYTES = 1 << 28  # of the inputs of the copies that are computed at once
_CANDIDATES = 4  # for each canary, of which fingerprints get the one with the longest embedding

MakeEngine = Callable[[Task], Engine]
Draws = Callable[[int], tuple[Draw, Draw]]  # by the id of a peer: its signs and its noise


@dataclass(frozen=True)
class Scores:
    """How sure the attacker is that each of m canaries was in the data."""

    score: Tensor  # [m]; if noise was added, its mean is 1 for canaries in the data and about 0 for others
    inside: Tensor  # [m] bool: which were


@dataclass(frozen=True)
class Copies:
    """Some copies of peers of a task, each with one canary: ``group`` equal samples that are in the data or not."""

    task: Task  # without canaries
    peers: Tensor  # [P]: of whom there are copies
    number: Tensor  # [V] of each copy, from 0
    seed: int
    group: int

    @property
    def peer(self) -> Tensor:
        """[V]: whose copy it is."""
        return self.peers[self.number % len(self.peers)]

    @property
    def inside(self) -> Tensor:
        """[V] bool: a coin for each canary."""
        return uniform(self.seed, Purpose.AUDIT, 0, self.number) < 0.5

    def canaries(self, which: int = 0) -> tuple[Tensor, Tensor]:
        """One of several canaries for each copy: x [V, ...], y [V, ...]."""
        train = self.task.data.train
        chance = generator(self.seed, Purpose.AUDIT, 1, which, int(self.number[0]))
        row = torch.randint(len(train.x), (2, len(self.number)), generator=chance).to(train.x.device)
        x, y = train.x[row[0]], train.y[row[1]]
        if train.x.is_floating_point() and self.task.data.fields is None:
            some = train.x[:10000]
            noise = torch.randn(x.shape, generator=chance).to(x)
            x = some.mean() + _FAR * some.std().clamp(min=1e-6) * noise
        return x, y

    def data(self, x: Tensor, y: Tensor, inside: Tensor) -> FederatedData:
        """The data of the copies: that of their peers, and after it the canary of those ``inside`` [V]."""
        parts = [self.task.data.train.peer(int(peer)) for peer in self.peer]
        added = (inside.long() * self.group).tolist()

        def followed(which: int, canary: Tensor) -> Tensor:
            own = ((part[which], canary[i : i + 1].repeat_interleave(added[i], 0)) for i, part in enumerate(parts))
            return torch.cat([piece for pieces in own for piece in pieces])

        count = torch.tensor([len(part[0]) + more for part, more in zip(parts, added, strict=True)], device=x.device)
        return replace(
            self.task.data, train=Split(followed(0, x), followed(1, y), count.cumsum(0) - count, count), missing=None
        )

    def only(self, x: Tensor, y: Tensor, times: int = 1) -> FederatedData:
        """The canaries alone, each so many times, as the data of copies that have nothing else."""
        count = torch.full((len(x),), times, device=x.device)
        split = Split(x.repeat_interleave(times, 0), y.repeat_interleave(times, 0), count.cumsum(0) - count, count)
        return replace(self.task.data, train=split, missing=None)

    def with_data(self, data: FederatedData, private: Private | None) -> Task:
        """The task of the copies."""
        ids = self.number.to(self.task.ids.device)
        seed = torch.full_like(ids, word(self.seed, Purpose.AUDIT, 2) >> 1)
        rates, epochs = self.task.lr_by_peer, self.task.epochs_by_peer
        return replace(
            self.task, data=data, ids=ids, seed=seed, private=private,
            lr_by_peer=None if rates is None else rates[self.peer.to(rates.device)],
            epochs_by_peer=None if epochs is None else epochs[self.peer],
        )  # fmt: skip


def copies(task: Task, peers: Tensor, canaries: int, seed: int, group: int = 1) -> Iterator[Copies]:
    """So many copies of the peers [P], in pieces that fit into memory."""
    train = task.data.train
    each = (int(train.count.max()) + group) * max(1, train.x[0].numel() * train.x.element_size())
    for number in torch.arange(canaries).split(max(1, _BYTES // each)):
        yield Copies(task, peers, number, seed, group)


def joined(parts: list[Scores]) -> Scores:
    return Scores(torch.cat([part.score for part in parts]), torch.cat([part.inside for part in parts]))


def in_fingerprints(some: Copies, seed: int) -> Scores:
    """The attack on fingerprints without noise, which are functions of the data: the attacker computes both cases."""

    def mean(inside: Tensor) -> Tensor:
        task = some.with_data(some.data(x, y, inside), None)
        return task_fingerprints(task, seed, some.task.data.peers).mean.double().cpu()

    (x, y), inside = some.canaries(), some.inside
    released = mean(inside)
    far, near = mean(torch.zeros_like(inside)), mean(torch.ones_like(inside))
    return Scores((released - far).norm(dim=1) - (released - near).norm(dim=1), inside)


def in_private_fingerprints(some: Copies, seed: int, noise: float, releases: int) -> Scores:
    """The attack on so many private fingerprints of each copy. noise: over the sensitivity."""
    (x, y), inside = _longest(some, seed), some.inside
    rest, both = some.data(x, y, torch.zeros_like(inside)), some.data(x, y, inside)
    first, known = int(some.number[0]), rest.train.count.tolist()
    score = torch.zeros(len(inside), dtype=torch.float64)
    for release in range(releases):
        draws = keyed_draws(word(some.seed, Purpose.AUDIT, 3, release) >> 1)

        def draws_of_canary(id: int, draws: Draws = draws) -> tuple[Draw, Draw]:
            signs, chance = draws(id)
            return lambda n: signs(known[id - first] + n)[-n:], chance

        def vectors(data: FederatedData, noise: float, draws: Draws) -> Tensor:
            return task_private_fingerprints(some.with_data(data, None), seed, noise, draws).vectors

        canary = vectors(some.only(x, y, some.group), 0.0, draws_of_canary)
        released = vectors(both, noise, draws) - vectors(rest, 0.0, draws)
        score += (released * canary).sum(1) / canary.square().sum(1) / releases
    return Scores(score, inside)


def _longest(some: Copies, seed: int) -> tuple[Tensor, Tensor]:
    """Of several canaries for each copy the one with the longest embedding."""
    best = None
    for which in range(_CANDIDATES):
        x, y = some.canaries(which)
        task = some.with_data(some.only(x, y), None)
        length = task_private_fingerprints(task, seed, 0.0, keyed_draws(0)).vectors.norm(dim=1)
        if best is None:
            best = x, y, length
            continue
        longer = length > best[2]
        best[0][longer], best[1][longer], best[2][longer] = x[longer], y[longer], length[longer]
    assert best is not None
    return best[0], best[1]


def in_models(some: Copies, start: Federation, make: MakeEngine, rounds: int) -> Scores:
    """The attack on models that are trained without privacy: a low loss of the canary tells that it was there."""
    (x, y), inside = some.canaries(), some.inside
    task = some.with_data(some.data(x, y, inside), None)
    engine, rows, kept, everyone = _started(some, start, make, task)
    for round in range(1, rounds + 1):
        engine.train(rows, kept, everyone, round)
    outputs = engine.predict(rows, kept, x[:, None])
    loss = torch.stack([task.loss(task.cast(out), one[None]).sum() for out, one in zip(outputs, y, strict=True)])
    return Scores(-loss.double().nan_to_num(nan=1e30).cpu(), inside)


def in_private_models(some: Copies, start: Federation, make: MakeEngine, steps: int) -> Scores:
    """The attack on so many steps of private training.

    The attacker compares every noised gradient with the canary's own, which it gets from a step without noise on the
    canary alone. It sees each step, as the account assumes, so the copies take plain steps of gradient descent.
    """
    (x, y), inside = some.canaries(), some.inside
    private, peer = some.task.private, some.peer
    assert private is not None
    settings = replace(
        some.task.settings, optimizer="sgd", momentum=0.0, nesterov=False, weight_decay=0.0, clip=None,
        schedule="constant", warmup=0, epochs=1,
    )  # fmt: skip
    task = replace(some.task, settings=settings, objective=PLAIN, epochs_by_peer=None, transform=None)
    ones, some = torch.ones(len(peer), dtype=torch.float64), replace(some, task=task)
    rate, expected = private.rate[peer], private.expected[peer]
    taken = replace(
        private, noise=private.noise[peer], rate=rate, expected=expected, steps=ones.long(), draws=KeyedDraws()
    )
    known = replace(taken, noise=0 * ones, rate=ones, expected=ones, room=1)
    task = some.with_data(some.data(x, y, inside), taken)
    engine, rows, kept, everyone = _started(some, start, make, task)
    alone = make(some.with_data(some.only(x, y), known))
    found, most = torch.zeros(2, len(peer), dtype=torch.float64)
    lr = task.lr_in(1, everyone).cpu()
    for step in range(1, steps + 1):
        before, after_canary = rows.clone(), rows.clone()
        alone.train(after_canary, kept, everyone, step)
        engine.train(rows, kept, everyone, step)
        released, canary = ((before - new).double().cpu() / lr for new in (rows, after_canary))
        found += expected * (released * canary).sum(1)
        most += some.group * rate * canary.square().sum(1)
    return Scores(found / most, inside)


def _started(
    some: Copies, start: Federation, make: MakeEngine, task: Task
) -> tuple[Engine, Tensor, dict[str, Tensor], Tensor]:
    """The engine, the models of the copies before training, and the numbers of their rows."""
    peer = some.peer.to(start.rows.device)
    kept = {name: table[peer].clone() for name, table in start.kept.items()}
    return make(task), start.rows[peer].clone(), kept, torch.arange(len(peer), device=start.rows.device)
