"""The registry of networks, each a function of the input shape and the number of outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field
from torch import nn

from homophily.errors import UserError
from homophily.plugins.registry import Registry

Weights = Annotated[
    str | None,
    Field(description="a .safetensors file of weights to start from, all but the last layer. Left out: random weights"),
]
models: Registry[Callable[..., nn.Module]] = Registry("model", passed=("inputs", "outputs"))


def image_shape(inputs: tuple[int, ...], name: str, least: int) -> tuple[int, int, int]:
    """Return channels, height and width of a sample; raise a UserError if it is not an image of the ``least`` size."""
    if len(inputs) != 3 or min(inputs[1:]) < least:
        raise UserError(
            f"model.name = {name!r} needs images [channels, height, width] of at least {least}x{least}, "
            f"but a sample of this data has shape {list(inputs)}"
        )
    return inputs[0], inputs[1], inputs[2]
