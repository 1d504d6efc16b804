"""Launches the kernels of a chain's stages: memory layout, block sizes, and division of the work among programs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from homophily.training.stacked import kernels
from homophily.training.stacked.chain import Chain, Convolution
from homophily.training.stacked.written_out import places
from homophily.training.task import Settings

_ALIGN = 16  # values: a stage's weights begin at a multiple of this, so that four are read at a time
_BUSY = 2048  # programs that keep a GPU busy


@dataclass(frozen=True)
class Learning:
    """The state that a training step updates, and which peers take it. S steps, P peers; rows are ordered by stages."""

    rows: Tensor  # [P, width]
    first: Tensor  # [P, width]: velocity, or Adam's mean
    second: Tensor  # [P, width]: Adam's mean of squares
    parts: Tensor  # buffer for gradients that are computed in several parts
    step: Tensor  # [1] int64: the index of the next step
    live: Tensor  # [S, P] int8: whether the peer takes the step
    rate: Tensor  # [S, P] int64: the row of rates for the peer's step
    rates: Tensor  # [P * steps in a round, 3]: learning rate, Adam's step size and root
    settings: Settings

    @property
    def optimiser(self) -> int:
        return optimiser_of(self.settings)


def optimiser_of(settings: Settings) -> int:
    if settings.optimizer != "sgd":
        return kernels.ADAMW if settings.optimizer == "adamw" else kernels.ADAM
    if settings.nesterov:
        return kernels.NESTEROV
    return kernels.MOMENTUM if settings.momentum else kernels.SGD


class StageKernels:
    """The kernels of a chain, stage by stage. precision: Triton's input_precision of products ("tf32x3", "tf32")."""

    def __init__(self, chain: Chain, precision: str) -> None:
        self.chain, self.precision = chain, precision
        self.places = places(chain, align=_ALIGN)
        self.width = -(-self.places[-1].stop // _ALIGN) * _ALIGN
        self.slots = torch.cat([torch.arange(place.start, place.stop) for place in self.places])

    def padding(self, i: int) -> tuple[int, int]:
        """Return the padding of the values that stage i reads; (0, 0) after the last stage."""
        stage = self.chain.stages[i] if i < len(self.chain.stages) else None
        return stage.padding if isinstance(stage, Convolution) else (0, 0)

    def shape(self, i: int) -> tuple[int, ...]:
        """Return the shape of a sample's values before stage i, with padding."""
        shape = self.chain.stages[i - 1].shape if i else self.chain.stages[0].taken
        if len(shape) == 1:
            return shape
        down, right = self.padding(i)
        return (shape[0] + 2 * down, shape[1] + 2 * right, shape[2])

    def padded(self, x: Tensor) -> Tensor:
        """Return samples with the padding that the first stage reads."""
        down, right = self.padding(0)
        return torch.nn.functional.pad(x, (0, 0, right, right, down, down)) if down or right else x.contiguous()

    def _geometry(self, i: int) -> tuple[int, ...]:
        """Return the shape arguments of the kernels: height and width with padding, channels, outputs, kernel size."""
        stage = self.chain.stages[i]
        if isinstance(stage, Convolution):
            return (*self.shape(i), stage.outputs, *stage.kernel)
        return (1, 1, stage.inputs, stage.outputs, 1, 1)

    def take(
        self, x: Tensor, y: Tensor, samples: Tensor, shares: Tensor, step: Tensor, out: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Copy the batch of a step into ``out``: values [P, B, ...], targets and shares [P, B]."""
        pairs = out[1].numel()
        taken = self.chain.stages[0].taken
        shape = (*((1, 1, *taken) if len(taken) == 1 else taken), *self.padding(0))
        block = power(prod(taken), 16, 1024)
        kernels.take[(pairs, triton.cdiv(prod(taken), block))](
            x, y, samples, shares, step, *out, pairs, *shape, BLOCK=block
        )

    def loss_gradient(self, out: Tensor, y: Tensor, share: Tensor, g: Tensor) -> None:
        """Compute g, the gradient of the mean cross-entropy with respect to the outputs."""
        rows, outputs = y.numel(), out.shape[-1]
        wide = power(outputs, 2, 1 << 16)
        block = power(2048 // wide, 1, 32)
        kernels.cross_entropy[(triton.cdiv(rows, block),)](out, y, share, g, rows, N=outputs, WIDE=wide, BLOCK=block)

    def forwards(
        self, i: int, rows: Tensor, x: Tensor, out: Tensor, largest: Tensor | None = None,
        data: Tensor | None = None, model: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Compute the output of stage i for x, with the padding of the next stage, and the indices of the maxima.

        out[p] is computed from x[data[p]] by the model rows[model[p]]; None: from x[p], by rows[p].
        """
        stage, place = self.chain.stages[i], self.places[i]
        peers, batch = out.shape[:2]
        pixels = batch * stage.pixels
        b = forward_blocks(pixels, stage.outputs, stage.inputs)
        tiles = triton.cdiv(pixels, b.m) * triton.cdiv(stage.outputs, b.n)
        kernels.forward[(peers * tiles,)](
            x, rows, out, largest, data, model, batch, self.width, place.start, place.bias,
            *self._geometry(i), *self.padding(i + 1), RELU=stage.relu, POOL=stage.pool, KEEP=largest is not None,
            DATA=data is not None, MODEL=model is not None, PRECISION=self.precision, **b.keys(),
        )  # fmt: skip

    def back(self, i: int, rows: Tensor, x: Tensor, g: Tensor, largest: Tensor | None, gx: Tensor) -> None:
        """Compute gx, the gradient of stage i's input x, from g, the gradient of its output."""
        stage, place, before = self.chain.stages[i], self.places[i], self.chain.stages[i - 1]
        peers, batch = x.shape[:2]
        channels = self._geometry(i)[2]
        pixels = batch * gx[0, 0].numel() // channels
        b = back_blocks(pixels, channels, stage.outputs)
        tiles = triton.cdiv(pixels, b.m) * triton.cdiv(channels, b.n)
        kernels.back[(peers * tiles,)](
            g, largest, rows, x, gx, self.width, place.start, batch, *self._geometry(i), *self.padding(i),
            AFTER_RELU=before.relu, POOL=stage.pool, PRECISION=self.precision, **b.keys(),
        )  # fmt: skip

    def _cut(self, i: int, peers: int, batch: int) -> tuple[Blocks, int, int]:
        """Return the block sizes for the gradient of stage i, tiles per peer, and programs per tile."""
        stage = self.chain.stages[i]
        pixels = batch * prod(stage.shape[:-1])
        b = learn_blocks(pixels, stage.outputs, stage.inputs, stage.pool)
        tiles = triton.cdiv(stage.outputs, b.n) * triton.cdiv(stage.inputs, b.k)
        return b, tiles, splits(peers * tiles, triton.cdiv(pixels, b.m))

    def parts(self, peers: int, batch: int) -> int:
        """Return the largest number of values of any gradient that is computed in several parts."""
        shared = [self._cut(i, peers, batch)[2] for i in range(len(self.places))]
        each = [peers * (place.stop - place.start) for place in self.places]
        return max(s * values if s > 1 else 0 for s, values in zip(shared, each, strict=True))

    def learn(self, i: int, x: Tensor, g: Tensor, largest: Tensor | None, at: Learning) -> None:
        """Compute the gradient of stage i's weights and bias, and take the optimiser's step."""
        stage, place = self.chain.stages[i], self.places[i]
        peers, batch = x.shape[:2]
        b, tiles, shared = self._cut(i, peers, batch)
        state = (at.rows, at.first, at.second, at.parts, at.step, at.rate, at.live, at.rates, peers,
                 at.settings.weight_decay, at.settings.momentum, self.width, place.start)  # fmt: skip
        kernels.learn[(peers * tiles * shared,)](
            g, largest, x, *state, place.bias, batch, *self._geometry(i), POOL=stage.pool, SPLITS=shared,
            OPTIMISER=at.optimiser, PRECISION=self.precision, **b.keys(),
        )  # fmt: skip
        if shared > 1:
            numbers = place.stop - place.start
            block = power(numbers, 16, 512)
            kernels.gather_parts[(peers * triton.cdiv(numbers, block),)](
                *state, NUMBERS=numbers, SPLITS=shared, OPTIMISER=at.optimiser, BLOCK=block
            )


class Blocks(NamedTuple):
    """The block of a matrix product that one program computes: m pixels, n outputs, k inputs at a time."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 3

    def keys(self) -> dict[str, int]:
        return {"BM": self.m, "BN": self.n, "BK": self.k, "num_warps": self.warps, "num_stages": self.stages}

    def within(self, pixels: int, outputs: int, inputs: int) -> Blocks:
        """Return blocks that are no larger than the product, rounded up to powers of two."""
        m, n, k = power(pixels, 16, self.m), power(outputs, 16, self.n), power(inputs, 16, self.k)
        return self._replace(m=m, n=n, k=k)


# These block sizes were the fastest of those tried on an H200 for the papers' networks.


def forward_blocks(pixels: int, outputs: int, inputs: int) -> Blocks:
    best = Blocks(32, 32, 32, 2) if pixels < 32 else Blocks(128, 64, 32, 8 if pixels < 1024 else 4)
    return best.within(pixels, outputs, inputs)


def back_blocks(pixels: int, channels: int, outputs: int) -> Blocks:
    best = Blocks(64, 32, 32, 2) if pixels <= 256 else Blocks(128, 64, 32, 4)
    return best.within(pixels, channels, outputs)


def learn_blocks(pixels: int, outputs: int, inputs: int, pool: bool) -> Blocks:
    if pixels <= 256 or inputs < 32:
        best = Blocks(32, 32, 32, 1)
    else:
        best = Blocks(64, 64, 64, 4, stages=1) if pool else Blocks(16, 64, 64, 2)
    return best.within(pixels, outputs, inputs)


def splits(programs: int, turns: int) -> int:
    """Return how many programs share a sum of ``turns`` iterations: enough to keep the GPU busy, at least two each."""
    return power(min(_BUSY // max(1, programs), turns // 2), 1, 16)


def power(value: int, least: int, most: int) -> int:
    """Return the next power of two, clamped to ``least`` and ``most``."""
    return min(most, max(least, 1 << max(0, value - 1).bit_length()))
