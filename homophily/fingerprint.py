"""A peer's fingerprint: mean and noise of its samples' gradients at one common model, sketched to a few numbers.

Nothing is trained. A sketch adds the coordinates of a gradient, each with a random sign, into buckets that are the
same for everyone, so that sketches of different peers can be compared.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from homophily.data.types import Split
from homophily.introductions import ROWS, Fingerprints, buckets, checked
from homophily.losses import Loss
from homophily.randomness import Purpose, bits
from homophily.training.batching import over_peers

SAMPLES = 500  # of a peer, at most
_BYTES = 64 << 20  # of gradients held at a time: about what a CPU's caches take
_BLOCK = 1 << 14  # coordinates sketched at a time by a matrix product


class Sketch:
    """Signed hashing of a network's trainable coordinates into buckets, keyed by the federation's seed.

    Each layer is divided by the root of its size: a large one, mostly pixels, would drown the one that knows labels.
    """

    def __init__(self, shapes: dict[str, torch.Size], seed: int, device: torch.device) -> None:
        self._columns: dict[str, tuple[Tensor, Tensor]] = {}
        self.buckets = buckets(sum(shape.numel() for shape in shapes.values()))
        sizes = Counter[str]()
        for name, shape in shapes.items():
            sizes[_layer(name)] += shape.numel()
        at = 0
        for name, shape in shapes.items():
            drawn = bits(seed, Purpose.SKETCH, torch.arange(at, at + shape.numel(), device=device))
            sign = (1.0 - 2.0 * ((drawn >> 32) & 1)) / math.sqrt(sizes[_layer(name)])
            self._columns[name] = (drawn & (self.buckets - 1), sign.float())
            at += shape.numel()

    def of(self, gradients: dict[str, Tensor]) -> Tensor:
        """[n, d] float32 of per-sample gradients [n, *shape] each, tensor by tensor."""
        first = next(iter(gradients.values()))
        out = torch.zeros(len(first), self.buckets, dtype=torch.float32, device=first.device)
        for name, values in gradients.items():
            bucket, sign = self._columns[name]
            add = _add_by_products if out.is_cuda else _add_by_index
            add(out, values.flatten(1).float(), bucket, sign)
        return out


def _layer(name: str) -> str:
    """The module a parameter belongs to."""
    return name.rpartition(".")[0]


def _add_by_index(out: Tensor, values: Tensor, bucket: Tensor, sign: Tensor) -> None:
    """Adds signed coordinates [n, D] into their buckets [n, d]."""
    out.index_add_(1, bucket, values * sign)


def _add_by_products(out: Tensor, values: Tensor, bucket: Tensor, sign: Tensor) -> None:
    """The same as products with blocks of the sketching matrix: on a GPU fast, and unlike atomic sums repeatable."""
    for first in range(0, len(bucket), _BLOCK):
        block = slice(first, first + _BLOCK)
        matrix = torch.zeros(len(bucket[block]), out.shape[1], device=out.device)
        out.addmm_(values[:, block], matrix.scatter_(1, bucket[block, None], sign[block, None]))


def fingerprints(
    module: nn.Module, loss: Loss, data: Split, ids: Tensor, seed: int, cast: Callable[[Tensor], Tensor]
) -> Fingerprints:
    """Of every peer [N] on its training data, at the weights of ``module``. cast: to the network's precision."""
    module = copy.deepcopy(module).eval()
    parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    sketch = Sketch({name: p.shape for name, p in parameters.items()}, seed, data.x.device)
    per_sample = _gradients(module, parameters, loss)
    width = sum(p.numel() * p.element_size() for p in parameters.values())
    chunk = max(1, _bytes(data.x.device) // max(1, 4 * width))

    def sketches(samples: Tensor) -> Tensor:
        parts = [sketch.of(per_sample(cast(data.x[some]), cast(data.y[some]))) for some in samples.split(chunk)]
        return torch.cat(parts).cpu()

    drawn = _drawn(data, ids, seed)
    count = [len(samples) for samples in drawn]
    # On a CPU everyone's are computed apart, with the very numbers of a peer on its own; a GPU wants many samples.
    of_each = sketches(torch.cat(drawn)).split(count) if data.x.is_cuda else [sketches(samples) for samples in drawn]
    made = [_summed_up(of_one) for of_one in of_each]
    most = max(len(factor) for _, factor in made)
    factor = torch.stack([nn.functional.pad(f, (0, 0, 0, most - len(f))) for _, f in made])
    mean = torch.stack([m for m, _ in made])
    return checked(mean.to(ids.device), factor.to(ids.device), torch.tensor(count, device=ids.device))


def _bytes(device: torch.device) -> int:
    """How many bytes of gradients to hold at a time."""
    return _BYTES if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory // 16


def _drawn(data: Split, ids: Tensor, seed: int) -> list[Tensor]:
    """The samples each fingerprint is made of: all, or a keyed draw; in keyed order where not all make the factor."""
    drawn = []
    for id, first, count in zip(ids.tolist(), data.start.tolist(), data.count.tolist(), strict=True):
        index = torch.arange(count, device=data.x.device)
        if count > ROWS:
            index = bits(seed, id, Purpose.FINGERPRINT, index).argsort(stable=True)[:SAMPLES]
        drawn.append(first + index)
    return drawn


def _gradients(
    module: nn.Module, parameters: dict[str, Tensor], loss: Loss
) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """Per-sample gradients, vectorised over samples; one by one for a network that torch.vmap cannot run."""

    def of_one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(module, parameters, (x[None],)), y[None])[0]

    def vectorised(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return over_peers(lambda x, y: grad(of_one)(parameters, x, y), x, y)  # type: ignore[return-value]

    def one_by_one(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        found = []
        leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        for sample in zip(x, y, strict=True):
            grads = torch.autograd.grad(of_one(leaves, *sample), list(leaves.values()), allow_unused=True)
            found.append([torch.zeros_like(p) if g is None else g for p, g in zip(leaves.values(), grads, strict=True)])
        return {name: torch.stack(values) for name, values in zip(leaves, zip(*found, strict=True), strict=True)}

    works: bool | None = None

    def gradients(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        nonlocal works
        if works is None:
            try:
                found = vectorised(x, y)
                works = True
                return found
            except Exception:  # whatever anyone's module does under vmap, the plain loop can still differentiate it
                works = False
        return vectorised(x, y) if works else one_by_one(x, y)

    return gradients


def _summed_up(sketches: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [d] and triangular factor [min(n, 64) - 1, d] of a peer's sketches [n, d], rounded to what travels.

    The factor is no more telling than the covariance. On the CPU, where triangulating so small a matrix takes a
    millisecond and on a GPU many.
    """
    mean = sketches.double().mean(0)
    if len(sketches) < 2 or not bool(sketches.isfinite().all()):
        return mean.float(), sketches.new_zeros(0, sketches.shape[1])
    factor = torch.linalg.qr(contrasts(sketches[:ROWS].double()), mode="r").R
    return _rounded(mean), _rounded(factor)


def contrasts(rows: Tensor) -> Tensor:
    """n - 1 orthonormal differences of n rows [..., n, d]: their scatter about their mean (Helmert's).

    The first k are those of the first k + 1 rows.
    """
    k = torch.arange(1, rows.shape[-2], dtype=rows.dtype, device=rows.device)[:, None]
    return (rows.cumsum(-2)[..., :-1, :] - k * rows[..., 1:, :]) / (k * (k + 1)).sqrt()


def _rounded(values: Tensor) -> Tensor:
    """As float16 with one power of two as scale: the largest number is near 1, so that small gradients keep digits."""
    largest = values.abs().max() if values.numel() else values.new_zeros(())
    scale = torch.where(largest > 0, torch.exp2(torch.ceil(torch.log2(largest.clamp(min=1e-300)))), 1.0)
    return (values / scale).half().double().mul(scale).float()
