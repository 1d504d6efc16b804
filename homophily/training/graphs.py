"""A training step as a CUDA graph: recorded once, then replayed without launching its kernels one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM_UP = 2  # steps before the recording, in which libraries allocate their workspaces


class RecordedStep:
    """A function of tensors that changes other tensors in place, recorded as a CUDA graph.

    The shapes of the inputs are fixed. ``changed`` lists every tensor that the function changes: recording runs the
    function, and restores them.
    """

    def __init__(
        self, step: Callable[..., None], inputs: Sequence[Tensor], changed: Sequence[Tensor], pool: Any
    ) -> None:
        """pool: a handle of memory that graphs share, of which only one is replayed at a time."""
        self.inputs = [value.clone() for value in inputs]
        before = [value.clone() for value in changed]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                step(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            step(*self.inputs)
        for value, old in zip(changed, before, strict=True):
            value.copy_(old)

    def __call__(self, *inputs: Tensor) -> None:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
