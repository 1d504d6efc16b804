"""Memory grows with peers times contacts: with a number of contacts, no tensor has an entry for all pairs of peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import homophily
from homophily.errors import UserError
from homophily.methods import Method, methods

PEERS = 5000
PEER_METHODS = [name for name in methods if issubclass(methods.get(name), Method)]


class Refusing(TorchDispatchMode):
    """Fails if an operation makes a tensor whose memory has an entry for a quarter of all pairs of peers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                entries = tensor.untyped_storage().nbytes() // tensor.element_size()
                assert entries < PEERS * PEERS // 4, f"{func} made a tensor with {entries:,} entries"
        return out


@pytest.fixture
def refusing() -> Iterator[None]:
    with Refusing():
        yield


CLUSTERED = {
    "data": {"name": "linear", "samples": 4 * PEERS, "features": 2, "train": 2, "test": 2},
    "peers": PEERS,
    "model": "linear",
    "training": {"epochs": 1, "lr": 0.001},
}


@pytest.mark.usefixtures("here", "refusing")
@pytest.mark.parametrize("name", PEER_METHODS)
def test_no_table_has_an_entry_for_all_pairs_of_peers(name: str) -> None:
    """All decisions of a method, from the draw of contacts to the files of the run."""
    keys = {} if name in ("local", "kin") else {"k": 2}
    config = {**CLUSTERED, "method": {"name": name, **keys}, "contacts": 12, "rounds": 3, "evaluate": 3}
    run = homophily.run(config, out=Path("run"), device="cpu")
    counts = run.merge_counts()
    assert counts.shape == (PEERS, PEERS)
    assert (counts.nnz == 0) == (name == "local")
    assert counts.nnz <= 12 * PEERS
    assert run.neighbour_weights().nnz <= 12 * PEERS


@pytest.mark.usefixtures("here")
def test_the_guard_sees_a_table_of_all_pairs() -> None:
    """The test above can fail: without a number of contacts, every peer has a table entry for every other."""
    config = {**CLUSTERED, "method": {"name": "random", "k": 2}, "rounds": 1}
    with Refusing(), pytest.raises(AssertionError, match="made a tensor with"):
        homophily.run(config, out=Path("run"), device="cpu")


@pytest.mark.usefixtures("here")
def test_tables_that_do_not_fit_are_refused_with_the_memory_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homophily.simulation.setup.free_memory", lambda device: 2**27)
    config = {**CLUSTERED, "method": {"name": "random", "k": 2}, "rounds": 1}
    message = r"contacts: 5,000 peers that know up to 5,000 peers each take 762\.9 MiB .* contacts = 100"
    with pytest.raises(UserError, match=message):
        homophily.run(config, device="cpu")
    assert homophily.run({**config, "contacts": 100}, device="cpu").summary["rounds"] == 1
