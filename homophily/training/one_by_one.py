"""The reference engine: an ordinary PyTorch loop, one peer after the other, for any nn.Module."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from homophily.federation.layout import Kept
from homophily.models.copying import copied
from homophily.models.keyed_dropout import dropout_keys
from homophily.randomness import Purpose, word
from homophily.training.cross_evaluation import CrossEvaluation
from homophily.training.schedule import batch_sizes, shuffled
from homophily.training.task import Task
from homophily.training.torch_optimisers import torch_optimiser

_TO_SIGNED = 1 << 63


class OneByOne(CrossEvaluation):
    """Trains and evaluates each peer with one module and torch's own optimisers."""

    name = "one-by-one"

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module = copied(task.module)
        torch_optimiser(self._trained(), task.settings, task.settings.lr)  # a class may refuse some parameters
        self.keys = [dict(self.module.named_buffers())[name] for name in dropout_keys(self.module)]

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        for peer in peers.tolist():
            mine = {name: table[peer] for name, table in kept.items()}
            self.task.layout.write(rows[peer], mine, self.module)
            self._train(peer, round)
            row, mine = self.task.layout.read(self.module)
            rows[peer] = row
            for name, table in kept.items():
                table[peer] = mine[name]

    def _train(self, peer: int, round: int) -> None:
        task, data = self.task, self.task.data.train
        parameters = self._trained()
        optimiser = torch_optimiser(parameters, task.settings, float(task.lr_in(round, torch.tensor([peer]))))
        count = int(data.count[peer])
        sizes = batch_sizes(count, task.settings.batch, task.coupled)
        step = 0
        self.module.train()
        for epoch in range(task.epochs_of(torch.tensor([peer]))):
            one = slice(peer, peer + 1)
            order = shuffled(task.seed[one], task.ids[one], data.count[one], count, round, epoch)[0]
            for batch in order.split(sizes):
                x, y = task.batch(data.start[peer] + batch)
                self._set_dropout_keys(peer, round, step)
                optimiser.zero_grad()
                with task.autocast():
                    outputs = self._forward(x, peer, round, step)
                task.loss(task.cast(outputs), y).mean().backward()
                if task.settings.clip is not None:
                    clip_grad_norm_(parameters, task.settings.clip)
                optimiser.step()
                step += 1

    def _trained(self) -> list[nn.Parameter]:
        names = {c.name for c in self.task.layout.columns if c.trainable}
        return [p for n, p in self.module.named_parameters() if n in names]

    def _forward(self, x: Tensor, peer: int, round: int, step: int) -> Tensor:
        if not self.task.draws:
            return self.module(x)  # type: ignore[no-any-return]
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(
                word(int(self.task.seed[peer]), int(self.task.ids[peer]), round, Purpose.MODULE, step) >> 1
            )
            return self.module(x)  # type: ignore[no-any-return]

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
                with self.task.autocast():
                    out.append(self.task.cast(self.module(self.task.cast(x[peer]))))
        return torch.stack(out)
