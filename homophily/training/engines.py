"""Creates the training engine of a given name, and reads a network as a chain of layers for the stacked engine."""

from __future__ import annotations

import torch
from torch import nn

from homophily.data.types import FederatedData
from homophily.federation.layout import Layout
from homophily.federation.rows import has_triton
from homophily.training.in_threads import OneByOneInThreads
from homophily.training.losses import Loss, cross_entropy, output_gradients
from homophily.training.objectives import Objective, vmap_obstacle
from homophily.training.one_by_one import OneByOne
from homophily.training.resources import ExecutionPlan
from homophily.training.stacked.chain import Chain, UnsupportedLayer, chain_of
from homophily.training.stacked.cpu import Stacked
from homophily.training.task import Engine, Task
from homophily.training.torch_optimisers import EVERY_ENGINE
from homophily.training.vectorised import Vectorised

_STACKED_PRIVATE = "[privacy] needs the gradient of every sample, and the stacked engine on a GPU sums them"
_STACKED_LOSS = "the stacked engine has no training.objective but 'loss'"


def read_chain(module: nn.Module, layout: Layout, loss: Loss, shares: FederatedData) -> Chain | str:
    """Return the network as a chain of layers, or the reason why the stacked engine cannot train it."""
    if loss not in output_gradients:
        return "its loss is not cross-entropy, binary cross-entropy or mse"
    if not shares.train.x.is_floating_point():
        return "its inputs are whole numbers"
    try:
        return chain_of(module, layout, tuple(shares.train.x.shape[1:]))
    except UnsupportedLayer as error:
        return str(error)


def engine_limits(task: Task) -> dict[str, str]:
    """Return, for each engine that cannot train with the task's settings, why not."""
    optimizer, objective = task.settings.optimizer, task.objective
    limits = {"stacked": _STACKED_PRIVATE} if task.private is not None and task.ids.is_cuda else {}
    plain = type(objective) is Objective
    obstacle = None if plain else vmap_obstacle(objective, task.trained_weights)
    if optimizer not in EVERY_ENGINE:
        only = f"training.optimizer = {optimizer!r} trains peers one by one; every engine has "
        return dict.fromkeys(("stacked", "vectorised"), only + ", ".join(EVERY_ENGINE))
    if not plain:
        return dict.fromkeys(("stacked", "vectorised"), obstacle) if obstacle else {"stacked": _STACKED_LOSS}
    if task.precision == "bf16" and not _has_kernels(task):
        return {"stacked": "precision = 'bf16' needs its kernels, and they cannot train this on this device"}
    if task.transform is not None and task.ids.is_cuda:
        return {"stacked": "its kernels on a GPU do not apply data.transform"}
    return limits


def engine_of(task: Task, plan: ExecutionPlan, chain: Chain | str) -> Engine:
    """Return the engine of the plan. chain: the network as a chain of layers, which the stacked engine needs."""
    if plan.engine == "one-by-one":
        return OneByOne(task) if plan.workers == 1 else OneByOneInThreads(task, plan.workers)
    if plan.engine == "vectorised" or isinstance(chain, str):
        return Vectorised(task, plan.chunk, plan.step)
    if _has_kernels(task):
        from homophily.training.stacked.gpu import StackedKernels  # needs Triton

        return StackedKernels(task, chain, plan.chunk)
    return Stacked(task, chain, plan.chunk, plan.workers)


def _has_kernels(task: Task) -> bool:
    """Whether the Triton kernels can train it: a GPU with Triton, float32, cross-entropy with one class per sample.

    They update weights as soon as a layer's gradient is known, so they cannot clip the norm of all gradients.
    """
    known = (
        task.settings.clip is None
        and task.layout.dtype == torch.float32
        and task.loss is cross_entropy
        and task.data.train.y.dim() == 1
    )
    return known and task.ids.is_cuda and has_triton()
