"""Networks and data for the tests of the engines."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homophily.data.task_kinds import kind_of
from homophily.data.types import FederatedData, Split
from homophily.federation.layout import Kept, Layout
from homophily.models.keyed_dropout import with_keyed_dropout
from homophily.training.losses import Loss, cross_entropy
from homophily.training.probe import probe
from homophily.training.task import Engine, Settings, Task


class Everything(nn.Module):
    """BatchNorm, both kinds of dropout and attention. Layers whose bias would have a zero gradient have no bias:
    Adam would turn its rounding errors into whole steps."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.channels = nn.Dropout2d(0.2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, bias=False)
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.channels(F.relu(self.bn(self.conv(x)))).mean(2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.drop(self.norm(x)).flatten(1))


class Drawing(nn.Module):
    """Draws random numbers with torch's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(x.flatten(1), 0.5, training=self.training))


def shares(counts: Sequence[int], inputs: Sequence[int], outputs: int = 10, regression: bool = False) -> FederatedData:
    """Random samples, ``counts[i]`` of them for peer i."""
    chance = torch.Generator().manual_seed(0)
    count = torch.tensor(list(counts))
    total = int(count.sum())
    x = torch.randn(total, *inputs, generator=chance)
    y = (
        torch.randn(total, outputs, generator=chance)
        if regression
        else torch.randint(outputs, (total,), generator=chance)
    )
    split = Split(x, y, count.cumsum(0) - count, count)
    return FederatedData(split, split, None, None if regression else outputs, outputs, None, kind=kind_of(y))


def task(
    net: nn.Module,
    data: FederatedData,
    dtype: torch.dtype = torch.float64,
    loss: Loss = cross_entropy,
    **settings: object,
) -> Task:
    module = with_keyed_dropout(net).to(dtype)
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in (data.train.x, data.train.y))
    found = probe(module, loss, x, y)
    ids = torch.arange(data.peers)
    chosen = Settings(**{"batch": 4, "epochs": 2, "lr": 0.05, **settings})  # type: ignore[arg-type]
    layout = Layout.of(module, unused=found.unused)
    return Task(module, layout, loss, data, torch.full_like(ids, 7), ids, chosen, found.coupled, found.draws)


def trained(engine: Engine, problem: Task, rounds: int = 3, peers: Tensor | None = None) -> tuple[Tensor, Kept]:
    """All rows, from the same initial weights, after some rounds of training without merging."""
    row, kept = problem.layout.read(problem.module)
    count = problem.data.peers
    rows = row.expand(count, -1).clone()
    tables = {name: buffer.expand(count, *buffer.shape).clone() for name, buffer in kept.items()}
    for round in range(1, rounds + 1):
        engine.train(rows, tables, torch.arange(count) if peers is None else peers, round)
    return rows, tables
