"""Creates the training engine of a given name, and reads a network as a chain of layers for the stacked engine."""

from __future__ import annotations

import torch
from torch import nn

from homophily.data.types import FederatedData
from homophily.federation.layout import Layout
from homophily.federation.rows import has_triton
from homophily.training.losses import Loss, cross_entropy, output_gradients
from homophily.training.one_by_one import OneByOne
from homophily.training.stacked.chain import Chain, UnsupportedLayer, chain_of
from homophily.training.stacked.cpu import Stacked
from homophily.training.task import Engine, Settings, Task
from homophily.training.torch_optimisers import EVERY_ENGINE
from homophily.training.vectorised import Vectorised


def read_chain(module: nn.Module, layout: Layout, loss: Loss, shares: FederatedData) -> Chain | str:
    """Return the network as a chain of layers, or the reason why the stacked engine cannot train it."""
    if loss not in output_gradients:
        return "its loss is not cross-entropy or mse"
    if not shares.train.x.is_floating_point():
        return "its inputs are whole numbers"
    try:
        return chain_of(module, layout, tuple(shares.train.x.shape[1:]))
    except UnsupportedLayer as error:
        return str(error)


def engine_limits(settings: Settings) -> dict[str, str]:
    """Return, for each engine that cannot train with these settings, why not."""
    if settings.optimizer in EVERY_ENGINE:
        return {}
    only = f"training.optimizer = {settings.optimizer!r} trains peers one by one; every engine has "
    return dict.fromkeys(("stacked", "vectorised"), only + ", ".join(EVERY_ENGINE))


def engine_of(task: Task, name: str, chain: Chain | str, chunk: int, workers: int, fast: bool) -> Engine:
    """Return the engine called ``name``. fast: matrix products on a GPU use TF32."""
    if name == "one-by-one":
        return OneByOne(task)
    if name == "vectorised" or isinstance(chain, str):
        return Vectorised(task, chunk)
    if _has_kernels(task):
        from homophily.training.stacked.gpu import StackedKernels  # needs Triton

        return StackedKernels(task, chain, chunk, fast)
    return Stacked(task, chain, chunk, workers)


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
