"""Reads the folder of a run, without an engine or a simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from homophily.atomic_io import plain, read_json, read_metadata, read_tensors, write_tensors
from homophily.config.overlay import as_tables, read
from homophily.config.schema import Config
from homophily.data.fields import Fields
from homophily.data.packing import tensors
from homophily.data.padding import padded
from homophily.data.preparation import Preparation
from homophily.errors import UserError
from homophily.federation.layout import Layout
from homophily.models.builder import Network
from homophily.models.lora import is_peft
from homophily.plugins.parameters import parsed
from homophily.runs.adapter import write_adapter
from homophily.runs.frame import run_frame
from homophily.runs.headline import Headline
from homophily.runs.history import History
from homophily.runs.stored_models import SUMMARY, StoredModels, stored_models

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 3  # of run folders; a folder of another format is refused
FROZEN = "frozen.safetensors"
INPUTS = "inputs.safetensors"
_NAMED = 12  # runs inside another folder that are named
_DENSE = 1 << 28  # the most entries of a dense table of all pairs of peers
_ABOUT = ("device", "format", "frozen", "inputs", "layout", "machine", "outputs", "plan", "versions")


class Run:
    """Reads a run's folder: ``summary``, ``scores``, ``metrics()``, ``history``, ``frame()``, ``model(i)``."""

    def __init__(self, path: Path | str, model: nn.Module | None = None) -> None:
        """path: the folder of a run; model: the network, if the run began with a model object."""
        self.path = Path(path)
        if (self.path / "comparison.json").is_file():
            runs = sorted(path.parent.name for path in self.path.glob("*/config.toml"))
            example = f", such as {self.path / runs[0]}" if runs else ""
            raise UserError(f"{self.path} is a comparison: name one of its runs{example}")
        if not (self.path / "config.toml").is_file():
            raise UserError(f"{self.path} is not a run: it has no config.toml{runs_inside(self.path)}")
        self._pattern = model

    @property
    def config(self) -> Config:
        """The config with every default filled in."""
        config: Config = parsed(Config, as_tables(read(self.path / "config.toml")))
        return config

    @property
    def about(self) -> dict[str, Any]:
        """Format, versions, machine, execution plan, layout."""
        path = self.path / "run.json"
        found = read_json(path)
        if not isinstance(found, dict):
            raise UserError(f"{path} is damaged: it is not a table")
        if found.get("format", FORMAT) != FORMAT:
            raise UserError(f"{path}: its format is {found['format']}, and this version reads format {FORMAT}")
        if missing := set(_ABOUT) - set(found):
            raise UserError(f"{path} is damaged: it has no {', '.join(sorted(missing))}")
        return found

    @property
    def device(self) -> str:
        """The type of the device on which the run began: cpu or cuda."""
        return str(self.about["device"]).partition(":")[0]

    @property
    def headline(self) -> Headline:
        """The headline metric: its ``name`` in the run's files, ``label``, ``percent``, and which is ``better``."""
        return Headline.read(self.about, self.summary if self.finished else {})

    @property
    def finished(self) -> bool:
        """Whether the run has finished; while it is extended, its results are those of the last finish."""
        return (self.path / SUMMARY).is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        self._need_end()
        return read_json(self.path / SUMMARY)  # type: ignore[no-any-return]

    @property
    def scores(self) -> dict[str, Any]:
        """Final scores, a list over peers under each name."""
        self._need_end()
        return read_json(self.path / "scores.json")  # type: ignore[no-any-return]

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per round."""
        path = self.path / "metrics.jsonl"
        *lines, _ = (
            path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
        )  # the last may be incomplete
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}") from error

    @property
    def recorded(self) -> bool:
        """Whether the run has a history: not with ``record = false``, and not before its first round has ended."""
        return (self.path / "history" / "peers.json").is_file()

    @property
    def history(self) -> History:
        """What was recorded by round: scores of each peer, merges, similarities and the method's diagnostics."""
        if not self.recorded:
            why = "no round has ended" if self.config.record else "record = false"
            raise UserError(f"{self.path} has no history: {why}")
        return History(self.path / "history")

    def frame(self) -> pd.DataFrame:
        """All metrics by round as a pandas DataFrame with the columns round, peer, cluster, metric and value.

        peer is missing in rows about several peers, and cluster in rows about all peers.
        """
        return run_frame(self.metrics(), self.history if self.recorded else None)

    def merges(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How often peer i merged peer j's model: [N, N]; all 0 if the method uses a server.

        Raises UserError if the table has more than 2^28 entries (2 GiB): use ``merge_counts``.
        """
        return self._dense("merges", self.merge_counts())

    def merge_counts(self) -> sparse.coo_array:
        """How often peer i merged peer j's model, as a sparse [N, N] array: only pairs that merged are stored."""
        return self._sparse("pairs", "counts", np.dtype(np.int64))

    def neighbours(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Which peers peer i considered similar at the end: [N, N], 1 for a neighbour, or the method's weights.

        Raises UserError if the table has more than 2^28 entries (2 GiB): use ``neighbour_weights``.
        """
        return self._dense("neighbours", self.neighbour_weights())

    def neighbour_weights(self) -> sparse.coo_array:
        """Which peers peer i considered similar at the end, as a sparse [N, N] array: only neighbours are stored."""
        return self._sparse("neighbours", "weights", np.dtype(np.float64))

    def _sparse(self, pairs: str, values: str, dtype: np.dtype[Any]) -> sparse.coo_array:
        self._need_end()
        stored, peers = read_tensors(self.path / "merges.safetensors"), int(self.config.peers or 0)
        if pairs not in stored:
            return sparse.coo_array((peers, peers), dtype=dtype)
        place = np.divmod(stored[pairs].numpy(), peers)
        return sparse.coo_array((stored[values].numpy().astype(dtype), place), shape=(peers, peers))

    def _dense(self, name: str, table: sparse.coo_array) -> np.ndarray[Any, Any]:
        peers = table.shape[0]
        if peers * peers > _DENSE:
            instead = {"merges": "merge_counts", "neighbours": "neighbour_weights"}[name]
            size = f"{peers:,} x {peers:,} entries, {8 * peers * peers / 2**30:,.1f} GiB"
            raise UserError(f"run.{name}() would have {size}; use run.{instead}(), which is sparse")
        found: np.ndarray[Any, Any] = table.toarray()
        return found

    def state_dict(self, peer: int | str) -> dict[str, Tensor]:
        """The model of ``peer``, a number or a name, under the names of its state dict.

        It is the final one; of a run that has not finished, it is the one of the newest checkpoint.
        """
        return self._state_dict(self._models(), peer)

    def _state_dict(self, models: StoredModels, peer: int | str) -> dict[str, Tensor]:
        row, kept = models.of(self._number(peer, models))
        return Layout.from_json(self.about["layout"]).state_dict(row, kept, frozen_tensors(self.path))

    def model(self, peer: int | str) -> nn.Module:
        """The model of ``peer``, in evaluation mode: the final one, or the one of the newest checkpoint."""
        return self._module(self.state_dict(peer))

    def _module(self, state: dict[str, Tensor]) -> nn.Module:
        about = self.about
        module = Network(self.config, self._pattern, tuple(about["inputs"]), about["outputs"]).common(0)
        module.load_state_dict(state)
        return module.eval()

    def prepared(self, peer: int | str, x: Any) -> Any:
        """Raw samples ``x`` [n, ...] as the model of ``peer`` takes them: scaled and filled in like its own samples.

        Lists are padded if the run's samples were. A model of transformers also needs a mask of the padding.
        If the run's inputs have named fields, ``x`` and the result are dicts.
        """
        peer = self._number(peer, self._models())
        about, preparation = self.about, self._preparation()
        dtype = Layout.from_json(about["layout"]).dtype
        if "fields" in about:
            fields = Fields.from_json(about["fields"])
            if not isinstance(x, Mapping):
                raise UserError(f"x: must be a dict with the fields {fields}")
            return fields.unpack(_cast(preparation(peer, fields.pack(tensors(x, "x"), "x")), dtype))
        length = self.config.data.length
        if length is not None and not isinstance(x, Tensor | np.ndarray) and len(x):
            x = padded(x, length, self.config.data.pad or 0)
        try:
            samples = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"x: cannot be made a tensor: {error}") from error
        shape = about["inputs"]
        if list(samples.shape[1:]) != shape:
            sizes = ", ".join(map(str, ["n", *shape]))
            raise UserError(f"x: must have the shape [{sizes}], not {list(samples.shape)}")
        return _cast(preparation(peer, samples), dtype)

    def export(self, peer: int | str, path: Path | str) -> Path:
        """Write the model of ``peer`` to ``path``, as safetensors with the names of its state dict.

        It is the final model; of a run that has not finished, it is the one of the newest checkpoint. The metadata of
        the file say after which round, how inputs are prepared, and the names of the classes if the targets were
        strings. Returns the path.
        """
        models = self._models()
        inputs = self._preparation().as_dict(self._number(peer, models))
        metadata = {"round": str(models.round), "inputs": json.dumps(plain(inputs))}
        if "class_names" in self.about:
            metadata["class_names"] = json.dumps(self.about["class_names"])
        write_tensors(Path(path), self._state_dict(models, peer), metadata)
        return Path(path)

    def export_adapter(self, peer: int | str, folder: Path | str) -> Path:
        """Write the LoRA adapters of ``peer``'s model, as of ``export``, to a folder that ``peft`` loads.

        Returns the folder.
        """
        lora, layout, folder = self.config.model.lora, Layout.from_json(self.about["layout"]), Path(folder)
        if lora is None and not is_peft(self._pattern):
            raise UserError(f"{self.path} has no LoRA adapters: its config has no table [model.lora]")
        models = self._models()
        state = self._state_dict(models, peer)
        if is_peft(self._pattern):
            module: Any = self._module(state)
            module.save_pretrained(folder, save_embedding_layers=False)
        else:
            assert lora is not None
            write_adapter(folder, lora, layout, state, models.round)
        return folder

    def _models(self) -> StoredModels:
        found = stored_models(self.path)
        if found is None:
            each = self.config.checkpoint
            when = "every round" if each == 1 else f"every {each} rounds (checkpoint = {each})"
            raise UserError(f"{self.path} holds no models yet: a checkpoint is written after {when}")
        return found

    def _preparation(self) -> Preparation:
        path = self.path / INPUTS
        if not self.finished and not path.is_file():
            raise UserError(
                f"{path} is missing: an older version of homophily wrote this folder; it is written with the next "
                "checkpoint of this version"
            )
        return Preparation.read(read_metadata(path).get("raw", "numbers"), read_tensors(path))

    @property
    def names(self) -> list[str | None]:
        """The names of the peers, None for one without; empty if no peer has a name."""
        found = self.about.get("peers") or (self.scores["peer"] if self.finished else None) or []
        status = self.path / "status.json"
        return list(found) or ([read_json(status)["peer"]] if status.is_file() else [])

    def _number(self, peer: int | str, models: StoredModels) -> int:
        """The number of a peer that is given by its number or its name."""
        peers, names = models.peers, self.names
        if peer in names:
            return int(names.index(str(peer)))
        if not isinstance(peer, int | np.integer) or not 0 <= peer < peers:
            known = f", named {', '.join(map(str, names[:8]))}{', ...' * (len(names) > 8)}" if any(names) else ""
            raise UserError(f"peer {peer!r}: this run has peers 0 to {peers - 1}{known}")
        return int(peer)

    def _need_end(self) -> None:
        if not self.finished:
            peer = (self.path / "status.json").is_file()
            how = "its peer must play all rounds first" if peer else f"go on with --resume {self.path}"
            raise UserError(f"the run in {self.path} has not finished: {how}")


def _cast(samples: Tensor, dtype: torch.dtype) -> Tensor:
    return samples.to(dtype) if samples.is_floating_point() else samples


def runs_inside(folder: Path) -> str:
    """The end of a message about a folder that is not a run: the runs inside, as ``homophily deploy`` leaves them."""
    names = sorted((path.parent.name for path in folder.glob("*/config.toml")), key=lambda name: (len(name), name))
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"; it holds {', '.join(names[:_NAMED])}{more}: name one of these, such as {folder / names[0]}"


def frozen_tensors(run: Path) -> dict[str, Tensor]:
    """The tensors that are the same for all peers, by name."""
    path = run / FROZEN
    return read_tensors(path) if path.is_file() else {}


def _below(stored: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names have this prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
