"""The reference engine: an ordinary PyTorch loop, one peer after the other, for any nn.Module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from homophily.federation.layout import Kept
from homophily.models.copying import copied
from homophily.models.keyed_dropout import dropout_keys
from homophily.randomness import Purpose, word
from homophily.training.cross_evaluation import CrossEvaluation
from homophily.training.objectives import Objective
from homophily.training.private import Private, clipped_sum
from homophily.training.schedule import batch_sizes, batches, shuffled, transform_keys
from homophily.training.task import Task
from homophily.training.torch_optimisers import Stepping, torch_optimiser

_TO_SIGNED = 1 << 63
_AT_ONCE = 1 << 16  # sample positions that are shuffled together: more epochs of few samples


class OneByOne(CrossEvaluation):
    """Trains and evaluates each peer with one module and torch's own optimisers."""

    name = "one-by-one"

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module = copied(task.module)
        parameters = dict(self.module.named_parameters())
        self.parameters = [*parameters.values()]  # module.zero_grad() would walk through all layers to find them
        self.weights = {column.name: parameters[column.name] for column in task.trains("all")}
        torch_optimiser([*self.weights.values()], task.settings, task.settings.lr)  # a class may refuse some parameters
        self.keys = [dict(self.module.named_buffers())[name] for name in dropout_keys(self.module)]

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        for peer in peers.tolist():
            mine = {name: table[peer] for name, table in kept.items()}
            self.task.layout.write(rows[peer], mine, self.module)
            self._train(peer, round)
            self.task.layout.read_into(rows[peer], mine, self.module)

    def _train(self, peer: int, round: int) -> None:
        task, me = self.task, torch.tensor([peer])
        lr, uses_reference = float(task.lr_in(round, me)), task.objective.uses_reference
        reference = {n: p.detach().clone() for n, p in self.weights.items()} if uses_reference else {}
        step = 0
        self.module.train()
        for epochs, trains in task.phases(me):
            parameters = [self.weights[column.name] for column in task.trains(trains)]
            optimiser = torch_optimiser(parameters, task.settings, lr)
            if task.private is not None:
                self._train_privately(task.private, peer, round, epochs, parameters, optimiser, reference)
                continue
            for batch in self._batches(peer, round, epochs):
                self._set_dropout_keys(peer, round, step)
                self._forget_gradients()
                keys = None if task.transform is None else self._transform_keys(peer, batch, round, step)
                self._loss(*task.batch(batch, keys), reference, peer, round, step).backward()
                for parameter in parameters:
                    if parameter.grad is not None and parameter.grad.is_sparse:  # few optimisers take those
                        parameter.grad = parameter.grad.to_dense()
                if task.settings.clip is not None:
                    clip_grad_norm_(parameters, task.settings.clip)
                optimiser.step()
                step += 1

    def _train_privately(
        self,
        private: Private,
        peer: int,
        round: int,
        epochs: range,
        parameters: Sequence[nn.Parameter],
        optimiser: Stepping,
        reference: Mapping[str, Tensor],
    ) -> None:
        """A phase of private training, one sample after the other."""
        task, me = self.task, torch.tensor([peer])
        weights = list(self.weights.values())
        for step in batches(task, me, round, epochs):
            number = int(step.before)
            self._set_dropout_keys(peer, round, number)
            inside = step.share[0].bool()
            keys = None if step.keys is None else step.keys[0, inside]
            x, y = task.batch(step.samples[0, inside], keys)
            total = torch.zeros(1, task.layout.trainable, dtype=torch.float64, device=x.device)
            for i in range(len(x)):
                with task.autocast():
                    outputs = self._forward(x[i : i + 1], peer, round, number)
                loss = task.loss(task.cast(outputs), y[i : i + 1]).sum()
                each = _flat_gradient(loss, weights)
                total[0] += clipped_sum(each[None], torch.ones(1, device=x.device), private.clip)
            own = me.to(x.device)
            flat = private.noised(total, task.seed[own], task.ids[own], me, round, step.before)[0].to(task.layout.dtype)
            self._forget_gradients()
            penalty = task.objective.penalty(self.weights, reference)
            if isinstance(penalty, Tensor) and penalty.requires_grad:
                penalty.backward()
            for weight, part in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
                gradient = part.view_as(weight)
                weight.grad = gradient.clone() if weight.grad is None else weight.grad + gradient
            if task.settings.clip is not None:
                clip_grad_norm_(parameters, task.settings.clip)
            optimiser.step()

    def _forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _batches(self, peer: int, round: int, epochs: range) -> Iterator[Tensor]:
        """Yield the sample indices of each batch of some epochs."""
        task, data, one = self.task, self.task.data.train, slice(peer, peer + 1)
        count = int(data.count[peer])
        sizes = batch_sizes(count, task.settings.batch, task.coupled)
        every = torch.arange(epochs.start, epochs.stop, device=task.ids.device)[:, None, None]
        for some in every.split(max(1, _AT_ONCE // count)):
            for order in shuffled(task.seed[one], task.ids[one], data.count[one], count, round, some)[:, 0]:
                yield from (data.start[peer] + order).split(sizes)

    def _loss(self, x: Tensor, y: Tensor, reference: Mapping[str, Tensor], peer: int, round: int, step: int) -> Tensor:
        """Return the mean loss of a batch with the penalty of the objective."""
        task = self.task
        with task.autocast():
            outputs = self._forward(x, peer, round, step)
        loss = task.loss(task.cast(outputs), y).mean()
        return loss if type(task.objective) is Objective else loss + task.objective.penalty(self.weights, reference)

    def _forward(self, x: Tensor, peer: int, round: int, step: int) -> Tensor:
        if not self.task.draws:
            return self.module(x)  # type: ignore[no-any-return]
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(
                word(int(self.task.seed[peer]), int(self.task.ids[peer]), round, Purpose.MODULE, step) >> 1
            )
            return self.module(x)  # type: ignore[no-any-return]

    def _transform_keys(self, peer: int, samples: Tensor, round: int, step: int) -> Tensor | None:
        own = torch.tensor([peer], device=samples.device)
        keys = transform_keys(self.task, own, samples[None], round, torch.full_like(own, step))
        return None if keys is None else keys[0]

    def _set_dropout_keys(self, peer: int, round: int, step: int) -> None:
        for layer, key in enumerate(self.keys):
            drawn = word(int(self.task.seed[peer]), int(self.task.ids[peer]), round, Purpose.DROPOUT, step, layer)
            key.fill_((drawn + _TO_SIGNED) % (2 * _TO_SIGNED) - _TO_SIGNED)

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        self.module.eval()
        out = []
        with torch.no_grad():
            for peer in range(len(rows)):
                self.task.layout.write(rows[peer], {name: table[peer] for name, table in kept.items()}, self.module)
                # A copy: matrix products on a CPU round by where in memory their inputs begin.
                inputs = self.task.cast(x[peer].clone())
                with self.task.autocast():
                    out.append(self.task.cast(self.module(inputs)))
        return torch.stack(out)


def _flat_gradient(loss: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return the gradient [T] of a sample's loss; 0 for weights that this sample does not use."""
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    dense = (g.to_dense() if g is not None and g.is_sparse else g for g in found)
    return torch.cat(
        [
            weight.new_zeros(weight.numel()) if g is None else g.flatten()
            for g, weight in zip(dense, weights, strict=True)
        ]
    )
