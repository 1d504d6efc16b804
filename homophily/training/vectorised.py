"""The vectorised engine: trains many peers in one computation, with torch.vmap over the peers' models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad
from torch.fx.experimental.proxy_tensor import make_fx

from homophily.federation.layout import Column, Kept
from homophily.models.copying import shallow
from homophily.models.keyed_dropout import dropout_keys
from homophily.randomness import Purpose, bits
from homophily.training.batching import PatchConvolutions, WrittenOutAttention, over_peers
from homophily.training.cross_evaluation import CrossEvaluation
from homophily.training.graphs import RecordedStep
from homophily.training.objectives import Objective, Trains
from homophily.training.optimisers import row_optimiser
from homophily.training.private import Private, clipped_sum
from homophily.training.schedule import Step, batches, chunks
from homophily.training.task import Task

StepKind = Literal["plain", "recorded", "compiled", "patched"]
"""How a step is computed: operation by operation; as a CUDA graph; compiled, and then as a CUDA graph; or the same with
convolutions as products of patches."""

_MOST_GRAPHS = 8  # CUDA graphs that are recorded for one chunk size
COMPILED: tuple[StepKind, ...] = ("compiled", "patched")
_TIMED = 5  # steps of a measurement


class _Chunk:
    """The state of up to ``room`` peers in training, at fixed addresses; the first axis of each tensor is the peer."""

    def __init__(self, task: Task, room: int, kept: Kept, device: torch.device) -> None:
        self.rows = torch.zeros(room, task.layout.width, dtype=task.layout.dtype, device=device)
        self.kept = {name: table.new_zeros(room, *table.shape[1:]) for name, table in kept.items()}
        lr = torch.zeros(room, 1, dtype=torch.float64, device=device)
        self.optimiser = row_optimiser(self.rows[:, : task.layout.trainable], task.settings, lr)
        self.recorded: dict[tuple[int, int, int, bool], RecordedStep] = {}
        trainable = task.layout.trainable
        # [P, T]: the weights at the start of the round; [P, 0] if the objective does not use them
        self.reference = self.rows[:, : trainable if task.objective.uses_reference else 0].clone()
        # [T]: the columns that the phase trains; None: every phase trains all
        self.active = torch.ones(trainable, dtype=torch.bool, device=device) if task.trains_parts else None

    def load(self, rows: Tensor, kept: Kept) -> None:
        """Start a round with these models: rows [P, D], kept [P, ...] each."""
        self.rows[: len(rows)] = rows
        for name, table in self.kept.items():
            table[: len(rows)] = kept[name]
        self.reference.copy_(self.rows[:, : self.reference.shape[1]])

    def begin_phase(self, lr: Tensor, columns: Sequence[Column]) -> None:
        """Start a phase that trains these columns. lr: [P, 1]."""
        self.optimiser.restart(F.pad(lr, (0, 0, 0, len(self.rows) - len(lr))))
        if self.active is not None:
            self.active.zero_()
            for column in columns:
                self.active[column.start : column.stop] = True

    @property
    def changed(self) -> list[Tensor]:
        """Everything that a training step changes."""
        return [self.rows, *self.kept.values(), *self.optimiser.state]


class Vectorised(CrossEvaluation):
    """Trains ``chunk`` peers at a time. step: how a training step is computed; all but "plain" need a GPU."""

    name = "vectorised"

    def __init__(self, task: Task, chunk: int, step: StepKind = "plain") -> None:
        self.task, self.chunk, self.step = task, chunk, step
        self.training, self.evaluating = shallow(task.module).train(), shallow(task.module).eval()
        self.keys = dropout_keys(task.module)
        self.trained = [c.name for c in task.layout.columns if c.trainable]
        self.buffers = [c.name for c in task.layout.columns if not c.parameter]
        self.rooms: dict[int, _Chunk] = {}
        self.compiled: dict[tuple[int, int], Callable[..., Tensor]] = {}

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        for chunk in chunks(self.task, peers, self.chunk):
            self._train(rows, kept, chunk.to(rows.device), self.task.phases(chunk), round)

    def _train(
        self, rows: Tensor, kept: Kept, peers: Tensor, phases: Iterable[tuple[range, Trains]], round: int
    ) -> None:
        chunk, lr = self._room_for(len(peers), kept, rows.device), self.task.lr_in(round, peers)
        chunk.load(rows[peers], {name: table[peers] for name, table in kept.items()})
        for epochs, trains in phases:
            chunk.begin_phase(lr, self.task.trains(trains))
            for step in batches(self.task, peers, round, epochs):
                self._step(chunk, step, peers, round)
        rows[peers] = chunk.rows[: len(peers)]
        for name, table in kept.items():
            table[peers] = chunk.kept[name][: len(peers)]

    def _step(self, chunk: _Chunk, step: Step, peers: Tensor, round: int) -> None:
        """Take a step of the peers [P] in the chunk."""
        keys = self._dropout_keys(peers[step.which], round, step.before)
        if self.task.private is not None:
            self._take_private_step(self.task.private, chunk, step, peers[step.which], round, keys)
        elif self.step == "plain":
            x, y = self.task.batch(step.samples, step.keys)
            self._take_step(chunk, step.which, x, y, step.share, step.number, *keys)
        else:
            self._replay(chunk, *self._padded(step, keys))

    def seconds_per_step(self) -> float:
        """Measure a step of the first chunk of peers, on a GPU; nothing of it is kept."""
        device, (peers, *_) = self.task.ids.device, chunks(self.task, torch.arange(self.task.data.peers), self.chunk)
        row, kept = self.task.layout.read(self.task.module)
        tables = {name: buffer.expand(len(peers), *buffer.shape) for name, buffer in kept.items()}
        peers = peers.to(device)
        chunk = self._room_for(len(peers), tables, device)
        chunk.load(row.expand(len(peers), -1), tables)
        chunk.begin_phase(self.task.lr_in(1, peers), self.task.trains("all"))
        step = next(iter(batches(self.task, peers, 1, range(1))))
        self._step(chunk, step, peers, 1)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(_TIMED):
            self._step(chunk, step, peers, 1)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / _TIMED

    def _room_for(self, peers: int, kept: Kept, device: torch.device) -> _Chunk:
        """Return a workspace; those with graphs are kept: in few sizes, or for a whole chunk and the last other number.

        The number of peers that train may change in every round.
        """
        if self.step == "plain":
            return _Chunk(self.task, peers, kept, device)
        room = min(size for size in self._sizes if size >= peers) if self._pads else peers
        if room not in self.rooms:
            if not self._pads:
                self.rooms = {size: found for size, found in self.rooms.items() if size == self.chunk}
            if not self.rooms:
                vars(self).pop("_pool", None)  # memory whose last graph is gone cannot be shared again
            self.rooms[room] = _Chunk(self.task, room, kept, device)
        return self.rooms[room]

    @cached_property
    def _pads(self) -> bool:
        """Whether peers without a batch can take part in a step: nothing but their rows would have to be restored."""
        return not self.task.coupled and not self.task.layout.kept

    @cached_property
    def _sizes(self) -> list[int]:
        """The numbers of peers for which a step is recorded: few, since each takes time and memory."""
        return [self.chunk] if self.step in COMPILED else sorted({-(-self.chunk // part) for part in (1, 2, 4)})

    def _padded(self, step: Step, keys: Sequence[Tensor]) -> tuple[Step, Tensor | None, Sequence[Tensor]]:
        """Return the step with full batches for one of few numbers of peers, who takes it, and dropout keys.

        Who takes it is [P] bool; None: all.
        """
        if not self._pads:
            return step, None, keys
        peers, samples = step.samples.shape
        size = min(size for size in self._sizes if size >= peers)
        rest, more = size - peers, self.task.settings.batch - samples
        own = torch.cat([step.samples, step.samples[:, -1:].expand(-1, more)], dim=1)
        share = F.pad(step.share, (0, more, 0, rest))
        before, number = F.pad(step.before, (0, rest)), F.pad(step.number, (0, rest))
        live = torch.arange(size, device=own.device) < peers if rest else None
        drawn = None if step.keys is None else F.pad(step.keys, (0, more, 0, rest))
        padded = Step(slice(0, size), F.pad(own, (0, 0, 0, rest)), share, before, number, drawn)
        return padded, live, [F.pad(key, (0, rest)) for key in keys]

    def _replay(self, chunk: _Chunk, step: Step, live: Tensor | None, keys: Sequence[Tensor]) -> None:
        """Take a step as a CUDA graph, which is recorded if it is new."""
        inputs = [*self.task.batch(step.samples, step.keys), step.share, step.number, *keys]
        shape = step.which.start, step.which.stop, step.samples.shape[1], live is None
        take = partial(self._take_step, chunk, step.which)
        if live is not None:
            take, inputs = partial(self._take_step_of_some, chunk, step.which), [live, *inputs]
        if shape not in chunk.recorded:
            if len(chunk.recorded) == _MOST_GRAPHS:
                take(*inputs)
                return
            chunk.recorded[shape] = RecordedStep(take, inputs, chunk.changed, self._pool)
        chunk.recorded[shape](*inputs)

    @cached_property
    def _pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def _take_step(
        self,
        chunk: _Chunk,
        which: slice,
        x: Tensor,
        y: Tensor,
        share: Tensor,
        number: Tensor,
        *keys: Tensor,
    ) -> None:
        """Change the chunk's rows ``which`` by one step on a batch. number: [P], as of a Step."""
        rows, reference, kept = chunk.rows[which], chunk.reference[which], {n: t[which] for n, t in chunk.kept.items()}
        buffers: dict[str, Tensor] = {}
        if self.step in COMPILED:
            flat = self._compiled(rows, reference, x, y, share, *keys)
        else:
            flat, buffers = self._gradients(rows, reference, kept, x, y, share, *keys)
        with torch.no_grad():
            self._move(chunk, which, flat, number)
            views = self.task.layout.views(rows)
            for name, value in buffers.items():
                views[name].copy_(value)

    def _move(self, chunk: _Chunk, which: slice, flat: Tensor, number: Tensor) -> None:
        """Change the columns that the phase trains by the gradients [P, T]."""
        trainable, active = chunk.rows[which, : self.task.layout.trainable], chunk.active
        if active is None:
            chunk.optimiser.step(trainable, flat, which, number[:, None])
            return
        old = trainable.clone()
        chunk.optimiser.step(trainable, flat.where(active, 0.0), which, number[:, None])
        trainable.copy_(trainable.where(active, old))  # weight decay moves columns without a gradient, too

    def _take_step_of_some(self, chunk: _Chunk, which: slice, live: Tensor, *inputs: Tensor) -> None:
        """Take the step of the rows that are ``live`` [P] bool; the others stay as they are."""
        tables = [table[which] for table in chunk.changed]
        old = [table.clone() for table in tables]
        self._take_step(chunk, which, *inputs)
        for table, before in zip(tables, old, strict=True):
            table.copy_(torch.where(live[:, None], table, before))

    def _gradients(
        self, rows: Tensor, reference: Tensor, kept: Kept, x: Tensor, y: Tensor, share: Tensor, *keys: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradients [P, T] of the trained columns, and the buffers in the rows as the step leaves them."""
        views = self.task.layout.views(rows)
        # Buffers are copied: they share storage with parameters that autograd has saved.
        fixed = {n: v.clone() if n in self.buffers else v for n, v in views.items() if n not in self.trained}
        fixed |= kept | dict(zip(self.keys, keys, strict=True))
        trained = {name: views[name].detach().requires_grad_() for name in self.trained}
        loss = over_peers(self._loss, trained, self._named(reference), fixed, x, y, share)
        grads = torch.autograd.grad(loss.sum(), list(trained.values()))
        flat = torch.cat([grad.reshape(len(rows), -1) for grad in grads], dim=1)
        return flat, {name: fixed[name] for name in self.buffers}

    def _take_private_step(
        self, private: Private, chunk: _Chunk, step: Step, peers: Tensor, round: int, keys: Sequence[Tensor]
    ) -> None:
        """Change the chunk's rows by the noised sum of clipped gradients of single samples."""
        task, rows = self.task, chunk.rows[step.which]
        views, reference = task.layout.views(rows), self._named(chunk.reference[step.which])
        trained = {name: views[name] for name in self.trained}
        fixed = {name: value for name, value in views.items() if name not in self.trained}
        fixed |= {name: table[step.which] for name, table in chunk.kept.items()}
        fixed |= dict(zip(self.keys, keys, strict=True))

        def of_sample(trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            with self._in_precision():
                outputs = functional_call(self.training, (trained, fixed), (x[None],))
            return task.loss(task.cast(outputs), y[None]).sum()

        def of_peer(
            trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor, inside: Tensor
        ) -> Tensor:
            each = torch.vmap(grad(of_sample), in_dims=(None, None, 0, 0))(trained, fixed, x, y)
            flat = torch.cat([each[name].flatten(1) for name in self.trained], dim=1)
            return clipped_sum(flat, inside, private.clip)

        def of_penalty(trained: dict[str, Tensor], reference: dict[str, Tensor]) -> Tensor:
            found = grad(lambda weights: torch.as_tensor(task.objective.penalty(weights, reference)))(trained)
            return torch.cat([found[name].flatten() for name in self.trained])

        total = over_peers(of_peer, trained, fixed, *task.batch(step.samples, step.keys), step.share)
        flat = private.noised(total, task.seed[peers], task.ids[peers], peers.cpu(), round, step.before)
        flat = flat.to(task.layout.dtype)
        if type(task.objective) is not Objective:
            flat += over_peers(of_penalty, trained, reference)
        with torch.no_grad():
            self._move(chunk, step.which, flat, step.number)

    def _named(self, reference: Tensor) -> dict[str, Tensor]:
        """Return the reference weights [P, T] by the names of the parameters; [P, 0]: none."""
        columns = self.task.trains("all") if reference.shape[1] else []
        return {c.name: reference[:, c.start : c.stop].view(len(reference), *c.shape) for c in columns}

    def _compiled(self, *inputs: Tensor) -> Tensor:
        """Return the gradients [P, T] by compiled code. inputs: those of _gradients, without kept buffers."""
        shape = inputs[2].shape[0], inputs[2].shape[1]
        if shape not in self.compiled:

            def gradients(rows: Tensor, reference: Tensor, *rest: Tensor) -> Tensor:
                return self._gradients(rows, reference, {}, *rest)[0]

            # Tracing to operations first means that the compiler never sees the network's Python code.
            self.compiled[shape] = torch.compile(make_fx(gradients)(*inputs))
        return self.compiled[shape](*inputs)

    def _loss(
        self,
        trained: dict[str, Tensor],
        reference: dict[str, Tensor],
        fixed: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        share: Tensor,
    ) -> Tensor:
        """Return one peer's mean loss over its batch, with the penalty of the objective."""
        with self._in_precision(), PatchConvolutions() if self.step == "patched" else nullcontext():
            outputs = functional_call(self.training, (trained, fixed), (x,))
        losses = self.task.loss(self.task.cast(outputs), y)
        return (losses * share).sum() + self.task.objective.penalty(trained, reference)

    @contextmanager
    def _in_precision(self) -> Iterator[None]:
        with self.task.autocast(), WrittenOutAttention() if self.task.precision == "bf16" else nullcontext():
            yield

    def _dropout_keys(self, peers: Tensor, round: int, step: Tensor) -> list[Tensor]:
        """Return the key of each dropout layer: [P] each."""
        seed, ids = self.task.seed[peers], self.task.ids[peers]
        return [bits(seed, ids, round, Purpose.DROPOUT, step, layer) for layer in range(len(self.keys))]

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        def one(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
            with self._in_precision():
                return functional_call(self.evaluating, tensors, (x,))  # type: ignore[no-any-return]

        with torch.no_grad():
            return self.task.cast(over_peers(one, self.task.layout.views(rows) | kept, self.task.cast(x)))
