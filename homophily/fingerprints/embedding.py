"""The embedding of samples for fingerprints: one function for all peers maps an input and its target to a vector.

The function depends on the shape of the data, the number of classes, the agreed constants and the federation's seed. It
does not depend on the network or on the data of any peer, so that fingerprints of different peers can be compared.

    e(x, y) = S1 wide(x) + S2 vec(t(y) few(x)')

wide(x) are many nonlinear features, which show how the inputs are distributed. few(x) are few features. Their products
with those of the target, t(y), show how the targets depend on the inputs. S1 and S2 are count sketches: they add
coordinates with random signs into ``BUCKETS`` buckets. S2 is never formed: the sketch of the products is the circular
convolution of a sketch of t(y) and one of few(x) (TensorSketch; Pham and Pagh, 2013).

If each token of an input has a class of its own, the sum over positions of a random vector for each pair of token and
class is added: it shows which class a token has, which the sums over a sample show less clearly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from homophily.data.task_kinds import counted
from homophily.fingerprints.image_features import ImageFeatures, is_image
from homophily.randomness import Purpose, bits, normal

BUCKETS = 512  # length of an embedded sample
WIDTH = 128  # random rectified features of the inputs
FEW = 64  # inputs with more values than this are projected to so many linear features
ONE_HOT = 128  # up to so many classes are one-hot; more get random vectors
CONSTANT = 2.0  # a constant feature of the input: its product with the target is the target itself
COMPACT_CONSTANT = 0.3  # a constant feature of the target: its product with the input shows the input itself
_LINEAR = 3.0  # larger values are compressed logarithmically: one outlier must not hide a peer's other samples
_CENTRE = 0.416  # mean of relu(z + b) for standard normal z and b of standard deviation 0.3
_BIAS = 0.3
# Keys of the random draws, one per random matrix.
_KEY_WEIGHT, _KEY_BIAS, _KEY_FEW, _KEY_TOKEN, _KEY_PAIR, _KEY_CLASS, _KEY_OUTPUT = range(7)
_KEY_WIDE_SKETCH, _KEY_FEW_SKETCH, _KEY_TARGET_SKETCH, _KEY_TAGGED, _KEY_TAGGED_SKETCH = range(7, 12)
_KEY_COMPACT_INPUT, _KEY_COMPACT_TARGET = range(12, 14)


@dataclass(frozen=True)
class Targets:
    """The type of the targets: classes, or numbers with the constants by which all peers standardise them."""

    classes: int | None  # None: numbers
    mean: Tensor | None = None  # [outputs]
    std: Tensor | None = None  # [outputs]


class Embedding:
    """Embeds samples of one shape."""

    def __init__(self, x: Tensor, y: Tensor, targets: Targets, seed: int, device: torch.device) -> None:
        """x, y: samples [n, ...] of the shapes and types to come."""
        keyed = _Keyed(seed, device)
        self._inputs = _input_features(x, keyed)
        self._targets = _target_features(y, targets, keyed)
        wide, few = self._inputs(x[:1].to(device))
        self._wide = keyed.sketch(_KEY_WIDE_SKETCH, wide.shape[1])
        self._few = keyed.sketch(_KEY_FEW_SKETCH, few.shape[1])
        self._target = keyed.sketch(_KEY_TARGET_SKETCH, self._targets(y[:1].to(device)).shape[1])
        self._tagged = _tagged(keyed) if targets.classes is not None and _aligned(x, y) else None
        # A rough count of the input, the sketches and temporaries. Callers compute from it how many samples fit into
        # memory.
        self.values_per_sample = 4 * (x[0].numel() + 4 * BUCKETS)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """[n, BUCKETS] float32 of inputs x [n, ...], as the network gets them, and targets y [n, ...]."""
        wide, few = self._inputs(x)
        product = torch.fft.rfft(self._targets(y) @ self._target) * torch.fft.rfft(few @ self._few)
        out: Tensor = wide @ self._wide + torch.fft.irfft(product, n=BUCKETS)
        return out if self._tagged is None else out + self._tagged(x, y)


class CompactEmbedding:
    """Embeds samples of one shape in few numbers of nearly constant norm, for fingerprints with noise.

        e(x, y) = S vec([u, t(y) / |t(y)|] (f(x) / |f(x)|)')

    f(x) are the rectified features of the input, t(y) those of the target; S is a count sketch. Noise is added to a sum
    of these vectors in proportion to the largest norm, so that features that vary little between peers cost as much as
    those that tell them apart: there are fewer than in ``Embedding``.
    """

    def __init__(self, x: Tensor, y: Tensor, targets: Targets, seed: int, device: torch.device, size: int) -> None:
        """x, y: samples [n, ...] of the shapes and types to come; size: numbers of an embedded sample."""
        keyed = _Keyed(seed, device)
        self._size = size
        self._inputs = _input_features(x, keyed)
        self._targets = _target_features(y, targets, keyed)
        self._input = keyed.sketch(_KEY_COMPACT_INPUT, WIDTH, size)
        self._target = keyed.sketch(_KEY_COMPACT_TARGET, 1 + self._targets(y[:1].to(device)).shape[1], size)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """[n, size] float32 of inputs x [n, ...], as the network gets them, and targets y [n, ...]."""
        inputs = F.normalize(self._inputs(x)[0][:, :WIDTH])
        targets = F.normalize(self._targets(y))
        targets = torch.cat([torch.full_like(targets[:, :1], COMPACT_CONSTANT), targets], 1)
        product = torch.fft.rfft(targets @ self._target) * torch.fft.rfft(inputs @ self._input)
        out: Tensor = torch.fft.irfft(product, n=self._size)
        return out


@dataclass(frozen=True)
class _Keyed:
    """Random matrices that are the same at every peer."""

    seed: int
    device: torch.device

    def normal(self, what: int, *shape: int) -> Tensor:
        """Standard normal [*shape] float32."""
        index = torch.arange(math.prod(shape), device=self.device)
        return normal(self.seed, Purpose.SKETCH, what, index).float().view(shape)

    def vectors(self, what: int, ids: Tensor, size: int) -> Tensor:
        """[*ids.shape, size] float32: a standard normal vector for each id."""
        different, where = ids.unique(return_inverse=True)
        index = torch.arange(size, device=ids.device)
        return normal(self.seed, Purpose.SKETCH, what, different[:, None], index).float()[where]

    def sketch(self, what: int, size: int, buckets: int = BUCKETS) -> Tensor:
        """[size, buckets] float32: the bucket, one of a power of two, and the sign of each coordinate."""
        drawn = bits(self.seed, Purpose.SKETCH, what, torch.arange(size, device=self.device))
        sign = 1.0 - 2.0 * ((drawn >> 32) & 1).float()
        return torch.zeros(size, buckets, device=self.device).scatter_(1, drawn[:, None] & (buckets - 1), sign[:, None])


Features = Callable[[Tensor], tuple[Tensor, Tensor]]  # inputs [n, ...] -> wide [n, W] and few [n, P]


def compressed(x: Tensor) -> Tensor:
    """Return values up to 3 in magnitude as they are, larger ones as 3 + log(|x| / 3) with their sign, in float32."""
    x = x.float()
    size = x.abs()
    return x.sign() * torch.where(size <= _LINEAR, size, _LINEAR + torch.log(size.clamp(min=_LINEAR) / _LINEAR))


def _input_features(x: Tensor, keyed: _Keyed) -> Features:
    if not x.is_floating_point():
        return _tokens(keyed)
    if not is_image(tuple(x.shape[1:])):
        return _vectors(x[0].numel(), keyed)
    rectified = _rectified(ImageFeatures.reduced(x[:1])[0].numel(), keyed)
    image = ImageFeatures(x.shape[1:], keyed.device)

    def features(x: Tensor) -> tuple[Tensor, Tensor]:
        x = ImageFeatures.reduced(compressed(x))
        low, bands = image(x)
        return torch.cat([rectified(x.flatten(1)), bands / 2], 1), _with_constant(torch.cat([low, 2 * bands], 1))

    return features


def _vectors(size: int, keyed: _Keyed) -> Features:
    """Features of floats of any shape: the values themselves, or FEW random projections."""
    rectified, projected = _rectified(size, keyed), _projected(_KEY_FEW, size, keyed)

    def features(x: Tensor) -> tuple[Tensor, Tensor]:
        x = compressed(x).flatten(1)
        return rectified(x), _with_constant(projected(x))

    return features


def _tokens(keyed: _Keyed) -> Features:
    """Features of integers: random vectors of the tokens and of adjacent pairs, summed over the sequence.

    Negative numbers are padding and do not count.
    """
    vectors = _vectors(2 * FEW, keyed)

    def features(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(1).long()
        pairs = bits(keyed.seed, Purpose.SKETCH, x[:, :-1], x[:, 1:])
        there = x >= 0
        sums = [
            (keyed.vectors(what, ids, FEW) * mask[..., None]).sum(1)
            for what, ids, mask in ((_KEY_TOKEN, x, there), (_KEY_PAIR, pairs, there[:, :-1] & there[:, 1:]))
        ]
        return vectors(torch.cat(sums, 1) / there.sum(1, keepdim=True).clamp(min=1).double().sqrt().float())

    return features


def _aligned(x: Tensor, y: Tensor) -> bool:
    """Whether inputs are tokens, and targets have a class for each of them."""
    return not x.is_floating_point() and y.dim() > 1 and x.shape[1:] == y.shape[1:]


def _tagged(keyed: _Keyed) -> Callable[[Tensor, Tensor], Tensor]:
    """Tokens and their classes [n, ...] -> [n, BUCKETS]: random vectors of the pairs that count, added up."""
    sketch = keyed.sketch(_KEY_TAGGED_SKETCH, FEW)

    def features(x: Tensor, y: Tensor) -> Tensor:
        x, y, there = x.flatten(1).long(), y.flatten(1).long(), counted(y).flatten(1)
        vectors = keyed.vectors(_KEY_TAGGED, bits(keyed.seed, Purpose.SKETCH, x, y), FEW)
        return (vectors * there[..., None]).sum(1) / there.sum(1, keepdim=True).clamp(min=1).sqrt() @ sketch

    return features


def _rectified(size: int, keyed: _Keyed) -> Callable[[Tensor], Tensor]:
    """[n, size] -> [n, WIDTH]: relu(R x / sqrt(size) + b), centred for standard normal inputs."""
    weight, bias = keyed.normal(_KEY_WEIGHT, size, WIDTH) / math.sqrt(size), _BIAS * keyed.normal(_KEY_BIAS, WIDTH)
    return lambda x: torch.relu(x @ weight + bias) - _CENTRE


def _projected(what: int, size: int, keyed: _Keyed) -> Callable[[Tensor], Tensor]:
    """[n, size] -> the same, or FEW random projections if it has more values."""
    if size <= FEW:
        return lambda x: x
    projection = keyed.normal(what, size, FEW) / math.sqrt(size)
    return lambda x: x @ projection


def _with_constant(few: Tensor) -> Tensor:
    return torch.cat([torch.full_like(few[:, :1], CONSTANT), few], 1)


def _target_features(y: Tensor, targets: Targets, keyed: _Keyed) -> Callable[[Tensor], Tensor]:
    """Map targets [n, ...] to features [n, T], each with variance about one."""
    classes = targets.classes
    if classes is not None and classes <= ONE_HOT:
        root = math.sqrt(classes)
        return lambda y: _over_positions(y, lambda y: root * F.one_hot(y, classes).float() - 1.0 / root)
    if classes is not None:
        return lambda y: _over_positions(y, lambda y: keyed.vectors(_KEY_CLASS, y, FEW))
    projected = _projected(_KEY_OUTPUT, y[0].numel(), keyed)

    def numbers(y: Tensor) -> Tensor:
        y = y.flatten(1).float()
        if targets.mean is not None and targets.std is not None:
            y = (y - targets.mean.flatten().to(y)) / targets.std.flatten().to(y)
        y = compressed(projected(y))
        return torch.cat([y, (y.square() - 1.0) / math.sqrt(2.0)], 1)

    return numbers


def _over_positions(y: Tensor, features: Callable[[Tensor], Tensor]) -> Tensor:
    """Features of classes y [n, ...] -> [n, T]: of a sample's class, or the mean over its positions that count."""
    if y.dim() == 1:
        return features(y.long())
    there = counted(y).flatten(1)
    each = features(y.flatten(1).long().clamp(min=0)) * there[..., None]
    return each.sum(1) / there.sum(1).clamp(min=1)[:, None]
