"""Sketches of gradients, sample by sample: each coordinate is added, with a random sign, into one of a few buckets.

Buckets and signs are the same for everyone, so that sketches of different peers can be compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from homophily.federation.layout import Layout
from homophily.fingerprints.fingerprint import buckets
from homophily.randomness import Purpose, bits
from homophily.training.batching import over_peers
from homophily.training.losses import Loss, output_gradients
from homophily.training.stacked.chain import Chain, UnsupportedLayer, chain_of
from homophily.training.stacked.written_out import Part, StageOrder, arranged, forward_backward, places

_BLOCK = 1 << 14  # coordinates sketched at a time by a matrix product


class Sketch:
    """Signed hashing of a network's trainable coordinates into buckets, keyed by the federation's seed.

    Each layer is divided by the root of its size: a large one, mostly pixels, would drown the one that knows labels.
    """

    def __init__(self, shapes: dict[str, torch.Size], seed: int, device: torch.device) -> None:
        sizes = Counter[str]()
        for name, shape in shapes.items():
            sizes[_layer(name)] += shape.numel()
        self.width = sum(sizes.values())
        self.buckets = buckets(self.width)
        drawn = bits(seed, Purpose.SKETCH, torch.arange(self.width, device=device))
        scale = [torch.full((shape.numel(),), math.sqrt(sizes[_layer(name)])) for name, shape in shapes.items()]
        self.bucket = drawn & (self.buckets - 1)  # [D]
        self.sign = (1.0 - 2.0 * ((drawn >> 32) & 1)) / torch.cat(scale).to(device)  # [D]

    def empty(self, samples: int) -> Tensor:
        """[n, d] float32, nothing added yet."""
        return torch.zeros(samples, self.buckets, device=self.sign.device)

    def of(self, gradients: dict[str, Tensor]) -> Tensor:
        """[n, d] of per-sample gradients [n, *shape] each, in the order of the shapes."""
        out, at = self.empty(len(next(iter(gradients.values())))), 0
        for values in map(_flat, gradients.values()):
            part = slice(at, at + values.shape[1])
            add(out, values, self.bucket[part], self.sign[part])
            at = part.stop
        return out


def _layer(name: str) -> str:
    """The module a parameter belongs to."""
    return name.rpartition(".")[0]


def _flat(values: Tensor) -> Tensor:
    return values.flatten(1).float()


def add(out: Tensor, values: Tensor, bucket: Tensor, sign: Tensor) -> None:
    """Adds signed coordinates [n, D], which are used up, into their buckets [n, d]."""
    (_add_by_products if out.is_cuda else _add_by_index)(out, values, bucket, sign)


def _add_by_index(out: Tensor, values: Tensor, bucket: Tensor, sign: Tensor) -> None:
    out.index_add_(1, bucket, values.mul_(sign))


def _add_by_products(out: Tensor, values: Tensor, bucket: Tensor, sign: Tensor) -> None:
    """As products with blocks of the sketching matrix: on a GPU fast, and unlike atomic sums repeatable."""
    for first in range(0, len(bucket), _BLOCK):
        block = slice(first, first + _BLOCK)
        matrix = torch.zeros(len(bucket[block]), out.shape[1], device=out.device)
        out.addmm_(values[:, block], matrix.scatter_(1, bucket[block, None], sign[block, None]))


class Sketcher(Protocol):
    """Sketches samples at a network's weights."""

    held: int  # values held for each sample

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """[n, d] of samples x [n, ...], y [n, ...]."""


def sketcher(module: nn.Module, loss: Loss, inputs: tuple[int, ...], sketch: Sketch) -> Sketcher:
    """For samples of shape ``inputs`` at the weights of ``module``, which is in evaluation mode."""
    layout = Layout.of(module)
    try:
        chain = chain_of(module, layout, inputs) if loss in output_gradients else None
    except UnsupportedLayer:
        chain = None
    if chain is None:
        return OfAny(module, loss, sketch)
    return OfChain(chain, layout.read(module)[0], output_gradients[loss], sketch)


class OfChain:
    """Of a chain of layers: one pass there and back for all samples, whose gradients are products of small matrices.

    They are sketched stage by stage, so that only one stage's are ever held.
    """

    def __init__(self, chain: Chain, row: Tensor, gradient: Callable[[Tensor, Tensor], Tensor], sketch: Sketch) -> None:
        order = StageOrder(chain, row.device)
        self.chain, self.places = chain, places(chain)
        self.row, self.bucket, self.sign = (order.sorted(r[None]) for r in (row, sketch.bucket, sketch.sign))
        self.gradient, self.sketch = gradient, sketch
        self.held = chain.held + 3 * max(stage.inputs * stage.outputs for stage in chain.stages)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        out = self.sketch.empty(len(x))
        taker = _EachSample(out, self.bucket, self.sign)
        samples = arranged(self.chain, x[None])  # of one peer

        def slope(outputs: Tensor) -> Tensor:
            return self.gradient(outputs, y[None])

        forward_backward(self.chain, self.places, self.row, samples, slope, taker)
        return out


@dataclass(frozen=True)
class _EachSample:
    """Takes the gradients of one peer's samples, each sample's apart."""

    out: Tensor  # [n, d]
    bucket: Tensor  # [1, D], as the stages are sorted
    sign: Tensor  # [1, D]

    def product(self, part: Part, g: Tensor, x: Tensor) -> None:
        g, x = self._each(g), self._each(x)
        self._add(part, g.mT * x if g.shape[1] == 1 else torch.bmm(g.mT, x))  # bmm is slow for outer products

    def sum(self, part: Part, g: Tensor) -> None:
        self._add(part, self._each(g).sum(1))

    def _each(self, values: Tensor) -> Tensor:
        """[n, pixels, ...] of [1, n * pixels, ...]."""
        return values.view(len(self.out), -1, values.shape[-1])

    def _add(self, part: Part, values: Tensor) -> None:
        add(self.out, _flat(values), part(self.bucket).flatten(), part(self.sign).flatten())


class OfAny:
    """Of any network, vectorised over samples; one by one if torch.vmap cannot run it."""

    def __init__(self, module: nn.Module, loss: Loss, sketch: Sketch) -> None:
        self.module, self.loss, self.sketch = module, loss, sketch
        self.parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        self.held = 4 * sketch.width
        self.vectorises: bool | None = None  # not known yet

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.vectorises is None:
            try:
                found = self._vectorised(x, y)
                self.vectorises = True
                return self.sketch.of(found)
            except Exception:  # whatever anyone's module does under vmap, the plain loop can still differentiate it
                self.vectorises = False
        return self.sketch.of((self._vectorised if self.vectorises else self._one_by_one)(x, y))

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.loss(functional_call(self.module, parameters, (x[None],)), y[None])[0]

    def _vectorised(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return over_peers(lambda x, y: grad(self._loss)(self.parameters, x, y), x, y)  # type: ignore[return-value]

    def _one_by_one(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        found = []
        leaves = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
        for sample in zip(x, y, strict=True):
            grads = torch.autograd.grad(self._loss(leaves, *sample), list(leaves.values()), allow_unused=True)
            found.append([torch.zeros_like(p) if g is None else g for p, g in zip(leaves.values(), grads, strict=True)])
        return {name: torch.stack(values) for name, values in zip(leaves, zip(*found, strict=True), strict=True)}
