"""What trackers have written, read with the tools' own readers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.patience import until

Points = list[tuple[int, float]]  # round and value
KINDS = ["csv", "mlflow", "parquet", "tensorboard", "wandb"]


def points(kind: str, run: Path, name: str) -> Points:
    """All that was logged of one metric, in the order in which it was logged."""
    return _POINTS[kind](run, name)


def _table(read: Callable[[Path], pd.DataFrame], ending: str) -> Callable[[Path, str], Points]:
    def found(run: Path, name: str) -> Points:
        frame = read(run / ending / f"metrics.{ending}").dropna(subset=[name])
        return list(zip(frame["round"].tolist(), frame[name].tolist(), strict=True))

    return found


def scalars(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


def _tensorboard(run: Path, name: str) -> Points:
    return [(event.step, event.value) for event in scalars(run / "tensorboard").Scalars(name)]


def mlflow_client(store: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(store.absolute().as_uri())


def mlflow_runs(store: Path) -> list[Any]:
    client = mlflow_client(store)
    return list(client.search_runs([one.experiment_id for one in client.search_experiments()]))


def _mlflow(run: Path, name: str) -> Points:
    (found,) = mlflow_runs(run / "mlflow")
    history = mlflow_client(run / "mlflow").get_metric_history(found.info.run_id, name)
    return [(metric.step, metric.value) for metric in history]


def wandb_records(run: Path) -> Iterator[Any]:
    """The records of the offline runs below a folder, in the order in which these were begun."""
    paths = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    # W&B's own process writes the last block a little later than a run is finished.
    until(lambda: any(one.WhichOneof("record_type") == "exit" for one in _wandb_records(paths[-1])), "W&B writes")
    for path in paths:
        yield from _wandb_records(path)


def _wandb_records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2 as messages

    for chunk in _leveldb_records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(chunk)
        yield record


def _leveldb_records(content: bytes, block: int = 32768) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, after W&B's header of 7 bytes."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:  # no place for another header in this block
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        if at + 7 + length > len(content):
            return
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def _wandb(run: Path, name: str) -> Points:
    found = []
    for record in wandb_records(run):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if name in items:
                found.append((int(items["_step"]), items[name]))
    return found


_POINTS: dict[str, Callable[[Path, str], Points]] = {
    "csv": _table(pd.read_csv, "csv"),
    "parquet": _table(pd.read_parquet, "parquet"),
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


def approximately(expected: Points) -> Any:
    """TensorBoard stores 32 bits of a number."""
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
