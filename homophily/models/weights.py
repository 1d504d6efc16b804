"""Pre-trained weights: a .safetensors file, found like the data, into a network whose tensors have the same names."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from homophily.atomic_io import read_tensors
from homophily.data.files import FOLDERS_VARIABLE, searched
from homophily.errors import UserError


def load_weights(network: nn.Module, name: str, file: str, replaced: str) -> None:
    """The file's tensors into ``network``, whose layer ``replaced`` stays as it was drawn. name: of the network."""
    path = _found(file)
    given, own = _without(replaced, read_tensors(path)), _without(replaced, network.state_dict())
    for tensor in [*own, *given]:
        experiment = _problem(given.get(tensor), own.get(tensor))
        if experiment is not None:
            raise UserError(f"model.weights: {path} is not for {name}: {tensor} {experiment}")
    network.load_state_dict(given, strict=False)


def _found(file: str) -> Path:
    folders = searched("weights")
    for folder in folders:
        if (folder / file).is_file():  # the path itself, if it is absolute
            return folder / file
    if Path(file).is_absolute():
        raise UserError(f"model.weights = {file!r}: there is no such file")
    raise UserError(
        f"model.weights = {file!r}: there is no such file in {', '.join(map(str, folders))}; "
        f"set {FOLDERS_VARIABLE} to the folder that holds weights/{file}, or give its absolute path"
    )


def _without(replaced: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All but the replaced layer's, and the counts of batches seen, which older files lack and nobody reads."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(f"{replaced}.") and not name.endswith(".num_batches_tracked")
    }


def _problem(given: Tensor | None, own: Tensor | None) -> str | None:
    if given is None:
        return "is missing"
    if own is None:
        return "is not in the network"
    if given.shape != own.shape:
        return f"has shape {list(given.shape)}, and the network has {list(own.shape)}"
    return None
