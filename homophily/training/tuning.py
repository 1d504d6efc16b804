"""Measures, on the device of a run, how the vectorised engine computes a training step fastest."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Literal

import torch
from torch import nn

from homophily.training.resources import ExecutionPlan
from homophily.training.task import Task
from homophily.training.vectorised import StepKind, Vectorised

_WORTH_COMPILING = 600.0  # seconds of training from which compiling, which takes up to 3 minutes, is tried
_CLEARLY = 0.95  # a way that takes this share of the time is faster


def with_fastest_step(
    plan: ExecutionPlan, task: Task, compiling: Literal["auto", "always", "never"], rounds: int
) -> ExecutionPlan:
    """Return the plan with the fastest kind of step. Only a GPU has more than one, and private
    training has one.

    compiling: whether to compile; "auto": if the training of all rounds takes so long that it is worth trying.
    """
    if plan.engine != "vectorised" or task.ids.device.type != "cuda" or task.private is not None:
        return plan
    plain, recorded = (_seconds(task, plan.chunk, kind) for kind in ("plain", "recorded"))
    step: StepKind = "recorded" if recorded < plain else "plain"
    best = min(plain, recorded)
    chunks = ceil(task.data.peers / plan.chunk)
    steps = task.settings.epochs * ceil(int(task.counts.max()) / task.settings.batch)
    long = rounds * chunks * steps * best > _WORTH_COMPILING
    plain_rows = not task.layout.kept and all(column.parameter for column in task.layout.columns)
    if plain_rows and (compiling == "always" or (compiling == "auto" and long)):
        compiled = _seconds(task, plan.chunk, "compiled")
        if compiled < (float("inf") if compiling == "always" else _CLEARLY * best):
            step, best = "compiled", compiled
        convolves = any(isinstance(layer, nn.Conv2d) for layer in task.module.modules())
        if convolves and _seconds(task, plan.chunk, "patched") < _CLEARLY * best:
            step = "patched"
    return replace(plan, step=step)


def _seconds(task: Task, chunk: int, kind: StepKind) -> float:
    """Return the seconds of a step of ``chunk`` peers; infinity if it cannot be computed in this way."""
    try:
        return Vectorised(task, chunk, kind).seconds_per_step()
    except RuntimeError:  # what CUDA and the compiler raise, also if memory runs out
        if kind == "plain":
            raise
        torch.cuda.synchronize()
        return float("inf")
    finally:
        torch.cuda.empty_cache()
