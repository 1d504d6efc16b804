"""Hand-written forward and backward passes of a chain's stages for all peers at once, as batched matrix products.

P peers with B samples each, on any device. Images are [P, B, height, width, channels]. Gradients g are with respect to
a stage's output before its ReLU: the ReLU's backward pass has already been applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from homophily.training.stacked.chain import Chain, Convolution, Dense, Stage

Part = Callable[[Tensor], Tensor]  # from rows [P, D] to a view of a stage's weights or bias


class Gradients(Protocol):
    """Receives the gradients of a chain's stages, each as soon as it is computed."""

    def product(self, part: Part, g: Tensor, x: Tensor) -> None:
        """The gradient of weights is the sum over samples of g [P, M, outputs] times x [P, M, inputs]."""

    def sum(self, part: Part, g: Tensor) -> None:
        """The gradient of a bias is the sum over samples of g [P, M, outputs]."""


@dataclass(frozen=True)
class Place:
    """The position of a stage's weights [outputs, inputs] and bias [outputs] in a row ordered by stages."""

    start: int
    outputs: int
    inputs: int

    @property
    def bias(self) -> int:
        return self.start + self.outputs * self.inputs

    @property
    def stop(self) -> int:
        return self.bias + self.outputs

    def weight_in(self, rows: Tensor) -> Tensor:
        """Return the weights [P, outputs, inputs] of rows [P, D]."""
        return rows[:, self.start : self.bias].view(len(rows), self.outputs, self.inputs)

    def bias_in(self, rows: Tensor) -> Tensor:
        """Return the biases [P, outputs] of rows [P, D]."""
        return rows[:, self.bias : self.stop]


def places(chain: Chain, align: int = 1) -> list[Place]:
    """Return the place of every stage; each begins at a multiple of ``align``."""
    found: list[Place] = []
    for stage in chain.stages:
        at = found[-1].stop if found else 0
        found.append(Place(-(-at // align) * align, stage.outputs, stage.inputs))
    return found


class StageOrder:
    """Reorders the columns of rows for the stages, and back; without convolutions the order is the same."""

    def __init__(self, chain: Chain, device: torch.device) -> None:
        in_order = torch.equal(chain.columns, torch.arange(len(chain.columns)))
        self.columns = None if in_order else chain.columns.to(device)
        self.back = None if in_order else chain.columns.argsort().to(device)

    def sorted(self, rows: Tensor) -> Tensor:
        """Return rows [P, D] in the order of the stages; the rows themselves if they have that order."""
        return rows if self.columns is None else rows[:, self.columns]

    def restored(self, rows: Tensor) -> Tensor:
        return rows if self.back is None else rows[:, self.back]


def arranged(chain: Chain, x: Tensor) -> Tensor:
    """Return samples [P, B, *inputs] in the shape that the first stage takes."""
    if chain.images:
        return x.permute(0, 1, 3, 4, 2).contiguous()
    return x.flatten(2) if chain.flat else x


@dataclass
class Tape:
    """What one stage saves for the backward pass."""

    x: Tensor  # its input
    seen: Tensor  # [P, M, K]: the matrix that its weights were multiplied with (for a convolution, the patches)
    largest: Tensor | None  # indices of the maxima, with pooling


def forward_backward(
    chain: Chain, where: list[Place], rows: Tensor, x: Tensor, output_grad: Callable[[Tensor], Tensor], taker: Gradients
) -> None:
    """Run all stages forwards and backwards and pass every stage's gradient to ``taker``.

    output_grad: maps outputs to the gradient of the loss with respect to them.
    """
    tapes = []
    for stage, place in zip(chain.stages, where, strict=True):
        x, tape = forwards(stage, place, rows, x)
        tapes.append(tape)
    g: Tensor | None = output_grad(x)
    for i in reversed(range(len(tapes))):
        assert g is not None
        after_relu = chain.stages[i - 1].relu if i else None
        g = backwards(chain.stages[i], where[i], rows, tapes[i], g, taker, after_relu)


def forwards(stage: Stage, place: Place, rows: Tensor, x: Tensor) -> tuple[Tensor, Tape]:
    """Return the stage's output for x [P, B, ...], and its tape."""
    seen = x.flatten(2) if isinstance(stage, Dense) else _patches(stage, x)
    out = torch.baddbmm(place.bias_in(rows)[:, None], seen, place.weight_in(rows).mT)
    if stage.relu:
        out = out.relu_()
    if isinstance(stage, Dense):
        return out, Tape(x, seen, None)
    out = out.view(*x.shape[:2], *stage.convolved, stage.outputs)
    if not stage.pool:
        return out, Tape(x, seen, None)
    pooled, largest = F.max_pool2d(_merged(out), 2, return_indices=True)
    return _parted(pooled, x.shape[0]), Tape(x, seen, largest)


def backwards(
    stage: Stage, place: Place, rows: Tensor, tape: Tape, g: Tensor, taker: Gradients, after_relu: bool | None
) -> Tensor | None:
    """Pass the gradient of the stage's weights to ``taker``; return that of its input, before the previous ReLU.

    after_relu: whether the input is the output of a ReLU; None: the gradient of the input is not needed.
    """
    before = None
    if isinstance(stage, Convolution):
        g = _unpooled(stage, tape, g)
    if after_relu is not None:
        before = torch.bmm(g, place.weight_in(rows))
        before = before if isinstance(stage, Dense) else _overlapped(stage, tape.x, before)
        before = before.view(tape.x.shape)
        if after_relu:
            before = torch.ops.aten.threshold_backward(before, tape.x, 0.0)
    taker.product(place.weight_in, g, tape.seen)
    taker.sum(place.bias_in, g)
    return before


def _patches(stage: Convolution, x: Tensor) -> Tensor:
    """Return the input patch of each output pixel: [P, B * pixels, inputs]. A kernel row reads contiguous values."""
    (kh, kw), (ph, pw) = stage.kernel, stage.padding
    x = F.pad(x, (0, 0, pw, pw, ph, ph)) if ph or pw else x.contiguous()
    peers, batch, *_, channels = x.shape
    high, wide = stage.convolved
    s = x.stride()
    rows = x.as_strided((peers, batch, high, wide, kh, kw * channels), (s[0], s[1], s[2], s[3], s[2], 1))
    return rows.reshape(peers, batch * high * wide, stage.inputs)


def _overlapped(stage: Convolution, x: Tensor, patches: Tensor) -> Tensor:
    """Sum the patches into images, the transpose of ``_patches``."""
    (kh, kw), (ph, pw) = stage.kernel, stage.padding
    high, wide = stage.convolved
    peers, batch, height, width, channels = x.shape
    parts = patches.view(peers, batch, high, wide, kh, kw, channels)
    total = x.new_zeros(peers, batch, height + 2 * ph, width + 2 * pw, channels)
    for down in range(kh):
        for right in range(kw):
            total[:, :, down : down + high, right : right + wide] += parts[:, :, :, :, down, right]
    return total[:, :, ph : ph + height, pw : pw + width].contiguous()


def _unpooled(stage: Convolution, tape: Tape, g: Tensor) -> Tensor:
    """Return the gradient before pooling, [P, B * pixels, outputs], which is 0 except at the maxima."""
    if tape.largest is not None:
        peers, batch = g.shape[:2]
        like = _merged(g.new_empty(peers, batch, *stage.convolved, stage.outputs))
        two, none, one = [2, 2], [0, 0], [1, 1]
        merged = torch.ops.aten.max_pool2d_with_indices_backward(
            _merged(g.contiguous()), like, two, two, none, one, False, tape.largest
        )
        g = _parted(merged, peers)
    return g.reshape(len(g), -1, stage.outputs)


def _merged(images: Tensor) -> Tensor:
    """Return [P, B, h, w, c] as one batch of images [P * B, c, h, w], as a view (channels last)."""
    return images.flatten(0, 1).permute(0, 3, 1, 2)


def _parted(images: Tensor, peers: int) -> Tensor:
    """Return a batch of images [P * B, c, h, w] as [P, B, h, w, c], the inverse of ``_merged``."""
    images = images.permute(0, 2, 3, 1).contiguous()
    return images.view(peers, -1, *images.shape[1:])
