"""Loading pre-trained weights from a .safetensors file, searched for in the same folders as data sets."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from homophily.atomic_io import read_tensors
from homophily.data.files import FOLDERS_VARIABLE, searched
from homophily.errors import UserError


def load_weights(network: nn.Module, name: str, file: str, replaced: str) -> None:
    """Load the file's tensors into ``network``, except those of the layer ``replaced``. name: of the network."""
    path = _found(file)
    given, own = _without(replaced, read_tensors(path)), _without(replaced, network.state_dict())
    for tensor in [*own, *given]:
        problem = _problem(given.get(tensor), own.get(tensor))
        if problem is not None:
            raise UserError(f"model.weights: {path} does not fit {name}: {tensor} {problem}")
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
        f"set {FOLDERS_VARIABLE} to the folder that contains weights/{file}, or give its absolute path"
    )


def _without(replaced: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without those of the replaced layer and num_batches_tracked, which older files lack."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(f"{replaced}.") and not name.endswith(".num_batches_tracked")
    }


def _problem(given: Tensor | None, own: Tensor | None) -> str | None:
    """Return what is wrong with a tensor of the file, for an error message; None if it fits the network."""
    if given is None:
        return "is missing"
    if own is None:
        return "is not in the network"
    if given.shape != own.shape:
        return f"has shape {list(given.shape)}, but the network has {list(own.shape)}"
    return None
