"""Pre-trained weights: the folders searched for a file, and errors for a file that does not fit."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from homophily.errors import UserError
from homophily.models.weights import load_weights

Tensors = dict[str, Tensor]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two data folders, and a cache; files go to the second folder."""
    monkeypatch.setenv("HOMOPHILY_DATA", f"{tmp_path / 'none'}:{tmp_path}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "weights").mkdir()
    return tmp_path


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 4))  # the last one is replaced


def fitting() -> Tensors:
    """Of the same network for 1,000 classes."""
    made = {name: torch.full_like(tensor, 5) for name, tensor in network().state_dict().items()}
    return made | {"2.weight": torch.ones(1000, 3), "2.bias": torch.ones(1000)}


def loaded(file: str | Path) -> Tensors:
    made = network()
    load_weights(made, "small", str(file), replaced="2")
    return made.state_dict()


def test_all_but_the_replaced_layer_comes_from_the_file(home: Path) -> None:
    save_file(fitting(), home / "weights" / "small.safetensors")
    torch.manual_seed(1)
    before = network().state_dict()
    torch.manual_seed(1)
    after = loaded("small.safetensors")
    assert all(bool((after[name] == 5).all()) for name in ("0.weight", "0.bias", "1.weight", "1.running_var"))
    assert all(torch.equal(after[name], before[name]) for name in ("2.weight", "2.bias"))


def test_num_batches_tracked_may_be_missing(home: Path) -> None:
    without = {name: tensor for name, tensor in fitting().items() if not name.endswith("num_batches_tracked")}
    save_file(without, home / "weights" / "old.safetensors")
    assert bool((loaded("old.safetensors")["0.weight"] == 5).all())


def test_a_file_is_found_in_the_cache_or_by_absolute_path(home: Path) -> None:
    cache = home / "cache" / "homophily" / "data" / "weights"
    cache.mkdir(parents=True)
    save_file(fitting(), cache / "cached.safetensors")
    save_file(fitting(), home / "elsewhere.safetensors")
    assert bool((loaded("cached.safetensors")["0.weight"] == 5).all())
    assert bool((loaded(home / "elsewhere.safetensors")["0.weight"] == 5).all())


def test_a_missing_file_is_reported_with_the_searched_folders(home: Path) -> None:
    message = (
        f"model.weights = 'no.safetensors': there is no such file in {home}/none/weights, {home}/weights, "
        f"{home}/cache/homophily/data/weights; set HOMOPHILY_DATA to the folder that contains weights/no.safetensors, "
        "or give its absolute path"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        loaded("no.safetensors")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"0.bias": None}, "0.bias is missing"),
        ({"0.bias": None, "1.bias": None}, "0.bias is missing"),
        ({"3.weight": torch.ones(2)}, "3.weight is not in the network"),
        ({"0.weight": torch.ones(3, 7)}, "0.weight has shape [3, 7], but the network has [3, 2]"),
    ],
)
def test_a_file_of_another_network_is_refused(change: dict[str, Tensor | None], said: str, home: Path) -> None:
    path = home / "weights" / "other.safetensors"
    save_file({name: tensor for name, tensor in (fitting() | change).items() if tensor is not None}, path)
    with pytest.raises(UserError, match=f"^{re.escape(f'model.weights: {path} does not fit small: {said}')}$"):
        loaded("other.safetensors")


def test_a_file_that_is_not_safetensors_is_refused(home: Path) -> None:
    path = home / "weights" / "pickle.pth"
    path.write_bytes(b"\x80\x02}q\x00." * 9)
    with pytest.raises(UserError, match=f"^{re.escape(str(path))} is damaged: "):
        loaded("pickle.pth")
