"""The stacked engine on a GPU: a training step is a few Triton kernels, replayed as one CUDA graph."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from homophily.federation.layout import Kept
from homophily.federation.similarity import LossSamples
from homophily.training.cross_evaluation import most_samples, with_personal
from homophily.training.optimisers import RowAdam
from homophily.training.schedule import chunks
from homophily.training.stacked import kernels
from homophily.training.stacked.chain import Chain
from homophily.training.stacked.plans import StepPlan, plan
from homophily.training.stacked.stage_kernels import Learning, StageKernels, optimiser_of, power
from homophily.training.stacked.written_out import arranged
from homophily.training.task import Task

_KEPT_BYTES = 4 << 30  # largest size of the prepared training samples that are kept in GPU memory
# Three TF32 products together have about float32 precision.
_PRODUCTS = {"full": "tf32x3", "fast": "tf32", "bf16": "bf16"}


class StackedKernels:
    """Trains ``chunk`` peers at a time."""

    name = "stacked"

    def __init__(self, task: Task, chain: Chain, chunk: int) -> None:
        self.task, self.chunk = task, chunk
        self.stages = StageKernels(chain, _PRODUCTS[task.precision])
        self.columns = chain.columns.to(task.ids.device)
        self.slots = self.stages.slots.to(task.ids.device)
        self.back = self.slots[self.columns.argsort()]
        self.trainers: dict[int, Trainer] = {}
        self.ahead: tuple[int, Tensor, StepPlan] | None = None  # the plan of the next round: round, peers, plan
        self.kept_samples: dict[LossSamples, Tensor] = {}  # [N, n, ...] each: of all peers, for cross-evaluation

    def on(self, task: Task, chunk: int) -> StackedKernels:
        return StackedKernels(task, self.stages.chain, chunk)

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        for chunk in chunks(self.task, peers, self.chunk):
            trainer, mask = self._trainer(len(chunk)), chunk.to(rows.device)
            trainer.rows[: len(chunk)].index_copy_(1, self.slots, rows[mask][:, self.columns])
            trainer.train(self._plan(chunk, mask, round), self.task.lr_in(round, mask))
            rows[mask] = trainer.rows[: len(chunk)][:, self.back]
            # The next round is planned while the GPU computes this one, so nothing here may synchronise with the GPU.
            self.ahead = (round + 1, chunk, self._plan(chunk, mask, round + 1)) if len(peers) == len(chunk) else None

    def _plan(self, chunk: Tensor, mask: Tensor, round: int) -> StepPlan:
        """Return the plan of a round. chunk: the peers' rows on the CPU; mask: the same on the GPU."""
        if self.ahead is not None and self.ahead[0] == round and torch.equal(self.ahead[1], chunk):
            return self.ahead[2]
        return plan(self.task, mask, int(self.task.counts[chunk[0]]), self.task.epochs_of(chunk), round)

    def _trainer(self, peers: int) -> Trainer:
        """Return a trainer for at least this many peers; sizes are rounded up, so that few CUDA graphs are captured."""
        room = self.chunk if 2 * peers > self.chunk else power(peers, 1, self.chunk)
        if room not in self.trainers:
            self.trainers[room] = Trainer(self.task, self.stages, room)
        return self.trainers[room]

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        return self._outputs(self._sorted(rows), self._taken(x), len(rows))

    def cross_evaluate(
        self, rows: Tensor, kept: Kept, model: Tensor, data: Tensor, samples: LossSamples = "train"
    ) -> Tensor:
        """As Engine.cross_evaluate; the kernels look up models and data, so neither is copied for each pair."""
        task, most = self.task, most_samples(self.task, data, samples)
        personal = task.layout.has_personal
        work = self._sorted(with_personal(task, rows, model, data) if personal else rows)
        return self._outputs(work, *self._samples_of(data, most, samples), None if personal else model)

    def _sorted(self, rows: Tensor) -> Tensor:
        """Return the rows [P, D] in the order and alignment that the kernels read."""
        work = rows.new_empty(len(rows), self.stages.width)
        return work.index_copy_(1, self.slots, rows[:, self.columns])

    def _taken(self, x: Tensor) -> Tensor:
        """Return samples [P, n, ...] in the form that the first stage reads."""
        return self.stages.padded(arranged(self.stages.chain, self.task.cast(x)))

    def _samples_of(self, peers: Tensor, most: int, samples: LossSamples) -> tuple[Tensor, int, Tensor | None]:
        """Return samples, M, and the index [M] of each peer's samples among them (None: in order)."""
        split = self.task.split(samples)
        if samples not in self.kept_samples and self._room_for_all(most):
            everyone = torch.arange(self.task.data.peers, device=peers.device)
            self.kept_samples[samples] = self._taken(split.x[split.samples(everyone, most)])
        kept = self.kept_samples.get(samples)
        if kept is not None and kept.shape[1] == most:
            return kept, len(peers), peers
        return self._taken(split.x[split.samples(peers, most)]), len(peers), None

    def _room_for_all(self, most: int) -> bool:
        """Whether all peers' samples are small enough to be kept in the form that the kernels read."""
        values = self.task.data.peers * most * prod(self.stages.shape(0))
        return 4 * values < _KEPT_BYTES

    def _outputs(
        self, rows: Tensor, x: Tensor, pairs: int, data: Tensor | None = None, model: Tensor | None = None
    ) -> Tensor:
        value = x
        for i in range(len(self.stages.places)):
            out = rows.new_zeros(pairs, x.shape[1], *self.stages.shape(i + 1))
            self.stages.forwards(i, rows, value, out, data=data if i == 0 else None, model=model)
            value = out
        return value


class Trainer:
    """The buffers for training a number of peers, at fixed addresses, and the CUDA graph of one step on them."""

    def __init__(self, task: Task, stages: StageKernels, peers: int) -> None:
        self.task, self.stages = task, stages
        data, settings, device = task.data.train, task.settings, task.ids.device
        batch, chain = settings.batch, stages.chain.stages
        epochs = settings.epochs if task.epochs_by_peer is None else int(task.epochs_by_peer.max())
        steps = epochs * -(-int(task.counts.max()) // batch)

        def memory(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        optimiser = optimiser_of(settings)
        self.rows = memory(peers, stages.width)
        self.state = [torch.zeros_like(self.rows) for _ in range(_STATES[optimiser])]
        first, second = [*self.state, self.rows, self.rows][:2]  # rows stand in for state that the optimiser lacks
        self.samples, self.shares = memory(steps, peers, batch, dtype=torch.int64), memory(steps, peers, batch)
        self.learning = Learning(
            self.rows,
            first,
            second,
            parts=memory(stages.parts(peers, batch)),
            step=memory(1, dtype=torch.int64),
            live=memory(steps, peers, dtype=torch.int8),
            rate=memory(steps, peers, dtype=torch.int64),
            rates=_bias_corrections(steps).repeat(peers, 1).to(device),
            settings=settings,
        )
        self.corrections = self.learning.rates[:steps, :2].clone()
        self.first_rate = steps * torch.arange(peers, device=device)  # [P]: where a peer's rates begin
        self.values = [memory(peers, batch, *stages.shape(i)) for i in range(len(chain) + 1)]
        self.output_grads = [memory(peers, batch, *stage.shape) for stage in chain]
        self.largest = [memory(peers, batch, *stage.shape, dtype=torch.int8) if stage.pool else None for stage in chain]
        self.y, self.share = memory(peers, batch, dtype=data.y.dtype), memory(peers, batch)
        self.graph: torch.cuda.CUDAGraph | None = None

    def train(self, plan: StepPlan, lr: Tensor) -> None:
        """Train the peers of the plan, whose rows are the first ones here, for one round. lr: [P, 1]."""
        at, steps, those = self.learning, len(plan.live), slice(0, plan.live.shape[1])
        for table in (*self.state, at.live):
            table.zero_()
        at.rates.unflatten(0, (len(self.rows), -1))[those, :, :2] = self.corrections * lr.float()[..., None]
        self.samples[:steps, those], self.shares[:steps, those] = plan.samples, plan.shares
        at.live[:steps, those] = plan.live
        at.rate[:steps, those] = plan.before.clamp(max=len(self.corrections) - 1) + self.first_rate[those]
        at.step.zero_()
        for _ in range(steps):
            self._next()

    def _next(self) -> None:
        if not self.rows.is_cuda:  # Triton's interpreter
            self.take_step()
            return
        if self.graph is None:
            self.graph = self._captured()
        self.graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Capture the CUDA graph of a step; before, a step that no peer takes compiles the kernels."""
        live = self.learning.live.clone()
        self.learning.live.zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.take_step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.take_step()
        self.learning.live.copy_(live)
        self.learning.step.zero_()
        return graph

    def take_step(self) -> None:
        """Launch one training step of all peers that take it."""
        stages, data, at = self.stages, self.task.data.train, self.learning
        stages.take(data.x, data.y, self.samples, self.shares, at.step, (self.values[0], self.y, self.share))
        for i in range(len(self.output_grads)):
            stages.forwards(i, self.rows, self.values[i], self.values[i + 1], self.largest[i])
        stages.loss_gradient(self.values[-1], self.y, self.share, self.output_grads[-1])
        for i in reversed(range(len(self.output_grads))):
            if i:  # before the weights are updated
                stages.back(
                    i, self.rows, self.values[i], self.output_grads[i], self.largest[i], self.output_grads[i - 1]
                )
            stages.learn(i, self.values[i], self.output_grads[i], self.largest[i], at)
        at.step.add_(1)


_STATES = {kernels.SGD: 0, kernels.MOMENTUM: 1, kernels.NESTEROV: 1, kernels.ADAM: 2, kernels.ADAMW: 2}


def _bias_corrections(steps: int) -> Tensor:
    """Return [steps, 3], for each step: 1, and Adam's bias corrections (step size for a learning rate of 1, root)."""
    step = torch.arange(1, steps + 1, dtype=torch.float64)
    size, root = 1 / (1 - RowAdam.beta1**step), (1 - RowAdam.beta2**step).sqrt()
    return torch.stack([torch.ones_like(step), size, root], dim=1).float()
