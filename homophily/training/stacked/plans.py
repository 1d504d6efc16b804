"""The plan of a training round: which samples each peer uses in each step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.training.schedule import shuffled
from homophily.training.task import Task


@dataclass(frozen=True)
class StepPlan:
    """The S steps of a round for P peers with batches of B. Peers with fewer samples skip steps."""

    samples: Tensor  # [S, P, B] int64: sample indices; padding repeats one of the peer's samples
    shares: Tensor  # [S, P, B] float32: weight of each sample in the loss; 0 for padding
    live: Tensor  # [S, P] bool: whether the peer takes the step
    before: Tensor  # [S, P] int64: steps that the peer took earlier in this round


def plan(task: Task, peers: Tensor, most: int, epochs: int, round: int) -> StepPlan:
    """Return the plan of a round for ``peers`` [P], who have at most ``most`` samples each."""
    data, batch = task.data.train, task.settings.batch
    count, per_epoch = data.count[peers], -(-most // batch)
    epoch = torch.arange(epochs, device=peers.device)[:, None, None]
    order = shuffled(task.seed[peers], task.ids[peers], count, most, round, epoch)
    order = torch.nn.functional.pad(order, (0, per_epoch * batch - most))
    sample = data.start[peers, None] + order.minimum(count[:, None] - 1)
    mask = (torch.arange(per_epoch * batch, device=peers.device) < count[:, None]).expand_as(sample)
    sample, mask = (table.unflatten(2, (per_epoch, batch)).transpose(1, 2) for table in (sample, mask))
    in_batch = mask.sum(3)
    number = torch.arange(per_epoch, device=peers.device)[:, None] + epoch * -(-count // batch)
    tables = sample, mask / in_batch.clamp(min=1)[..., None], in_batch > 0, number
    return StepPlan(*(table.flatten(0, 1) for table in tables))
