"""Checks that the tokens of all samples have a row in the network's embeddings, before training begins.

An index beyond an embedding raises an error that names no sample, and on a GPU it ends the whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from homophily.data.types import FederatedData
from homophily.errors import UserError
from homophily.models.copying import shallow


class _OutOfRangeError(Exception):
    pass


def check_tokens(module: nn.Module, data: FederatedData) -> None:
    """Raise a UserError that names the peer and the embedding if a token is out of range. data: on the CPU.

    The network is called on the samples with the highest and the lowest tokens only.
    """
    if data.train.x.is_floating_point() and data.fields is None:
        return
    copied = shallow(module).eval()
    layers = [(name, layer) for name, layer in copied.named_modules() if isinstance(layer, nn.Embedding)]
    for name, layer in layers:
        layer.register_forward_pre_hook(_check(name, layer.num_embeddings), with_kwargs=True)
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    splits = {"": data.train, "validation_": data.validation, "test_": data.test}
    for prefix, split in splits.items() if layers else ():
        for sample in sorted(_extremes(data, split.x)) if split is not None else ():
            assert split is not None
            one = split.x[sample : sample + 1]
            try:
                with torch.no_grad():
                    copied(one.to(dtype) if one.is_floating_point() else one)
            except _OutOfRangeError as error:
                raise UserError(f"{data.label(split.owner(sample))}: {prefix}x has {error}") from None
            except Exception:  # another mistake, which is reported when the network is probed
                return


def _check(name: str, rows: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    """Return a forward hook of an embedding that raises _OutOfRangeError."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        ids = inputs[0] if inputs else keywords.get("input")
        if isinstance(ids, Tensor) and len(wrong := ids[(ids < 0) | (ids >= rows)]):
            raise _OutOfRangeError(
                f"the token {int(wrong[0])}, and the network's embedding {name!r} has tokens 0 to {rows - 1:,}"
            )

    return hook


def _extremes(data: FederatedData, x: Tensor) -> Iterator[int]:
    """Yield the row indices of the samples with the highest and the lowest whole number of every field."""
    parts = {"x": x} if data.fields is None else data.fields.unpack(x)
    for part in parts.values():
        if not part.is_floating_point():
            rows = part.reshape(len(part), -1)
            yield int(rows.amax(1).argmax())
            yield int(rows.amin(1).argmin())
