"""Several methods on the same federations: a run per method, swept value and seed, in one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from homophily.atomic_io import write_json
from homophily.cluster.joining import joined
from homophily.config.schema import Config
from homophily.config.schema import Method as MethodTable
from homophily.data.given import Peers, given_peers
from homophily.data.transforms import Transform
from homophily.errors import UnsuitableError, UserError
from homophily.experiments.asked import Asked, Compared, asked_for
from homophily.experiments.callbacks import Callback
from homophily.experiments.growth import Wanted, entry, grown
from homophily.experiments.leases import Leases
from homophily.experiments.queue import RunRequest, work
from homophily.experiments.runner import chosen_device, form, warn_of_diverged, with_start
from homophily.experiments.sharing import Followers, SharedPlay, finished
from homophily.experiments.workers import play_in_processes
from homophily.runs.comparison import Comparison, Contents, narrowed
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import over
from homophily.simulation.setup import prepare
from homophily.simulation.shards import Shards
from homophily.simulation.training_setup import SetupCache
from homophily.simulation.user_objects import UserObjects
from homophily.training.losses import Loss
from homophily.training.score_metrics import PeerMetric

_LEASES = "leases"
_WHOLE = "comparison"  # the lease that is held while the list of runs or their table is written


def compare(
    config: Config | str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    methods: Compared | Sequence[Compared] | Mapping[str, Compared] | None = None,
    seeds: Sequence[int] | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    model: nn.Module | None = None,
    data: Peers | None = None,
    loss: Loss | None = None,
    transform: Transform | Sequence[Transform] | None = None,
    extra_metrics: Mapping[str, PeerMetric] | None = None,
    callbacks: Callable[[str, int], Sequence[Callback]] | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    workers: int | None = None,
) -> Comparison:
    """Run every method with every seed on the same federation.

    config: as for ``run``; it may also have the keys ``methods``, ``seeds`` and ``sweep``. The ``method.name`` of a
    file made for ``run`` is ignored if methods are given on top. Or the folder of a comparison, which is then extended.
    overrides: nested keys that override the config. A key of [method] goes to the methods that have it, a key of
    [method.NAME] to that method.
    methods: names, ``Method`` objects or classes; a mapping gives each the name it has in tables. "all" or None: all
    registered methods that can work with the data.
    seeds: one run per method and seed; None: the seed of the config.
    sweep: lists of values by dotted key, such as {"method.k": [1, 2, 4]}: all combinations are run. A key of [method]
    goes to the methods that have it; the others run once.
    model, data, loss, transform, extra_metrics, device: as for ``run``, the same for all runs.
    callbacks: a function of a method's name and a seed that returns the callbacks of that run.
    out: a new folder, or the folder of a comparison: it takes more methods, seeds and swept values, and only runs that
    it does not have are run. The other settings must be those of its runs. Several processes can share it: each plays
    runs that no other plays, and returns when all have finished.
    workers: the number of processes that play one run at a time each; a number above 1 starts new processes, which get
    a copy of all arguments but callbacks. None: this process plays all runs, on a GPU side by side. The ranks of a
    torchrun play one run after the other, each together.
    Returns the asked runs as a ``Comparison``. Raises UserError for bad input; warns with DivergedWarning if models
    have diverged.
    """
    arguments = {
        "config": config, "overrides": overrides, "methods": methods, "seeds": seeds, "sweep": sweep, "model": model,
        "data": data, "loss": loss, "transform": transform, "extra_metrics": extra_metrics, "device": device,
    }  # fmt: skip
    if workers is not None and (type(workers) is not int or workers < 1):
        raise UserError(f"workers = {workers!r}: must be a whole number of at least 1")
    asked, shards = asked_for(config, overrides or {}, methods, seeds, sweep), joined(chosen_device(device))
    if workers is not None and shards.size > 1:
        raise UserError(f"workers = {workers}: the processes of torchrun play each run together; leave workers out")
    objects = UserObjects(model, given_peers(data), loss, None, extra_metrics or {}, transform).agreed(shards)
    cache = SetupCache()
    wanted, left_out = _suitable(asked, objects, device, cache, shards)
    asked_folder = Path(out) if out else _folder(config)
    folder = Path(shards.agreed(lambda: str(_opened(asked_folder, wanted[0], data is not None))))
    leases = Leases(folder / _LEASES)
    with leases.kept():
        with _held(leases, shards):
            contents, objects = _extended(folder, wanted, asked, objects, device, cache, shards)
        by_key = {one.key: one for one in contents.runs}
        pairs = [(one, seed) for seed in asked.seeds for one in wanted]
        entries = [by_key[entry(one, seed, contents.swept).key] for one, seed in pairs]
        paths = [folder / run.folder for run in entries]
        requests = [_request(*pair, path, callbacks) for pair, path in zip(pairs, paths, strict=True)]
        done = shards.agreed(lambda: [finished(request.out) for request in requests])
        requests = _in_order([request for request, over in zip(requests, done, strict=True) if not over])
        followers = Followers()
        if workers is not None and workers > 1 and requests:
            play_in_processes(workers, compare, {**arguments, "out": folder, "workers": 1}, requests, followers)
        SharedPlay(requests, leases, workers is not None, followers).play(objects, chosen_device(device), cache)
        everything = Comparison(folder, model)
        with _held(leases, shards):
            if shards.rank == 0:
                write_json(folder / "compare.json", everything.table())
    mine = narrowed(everything, entries, left_out)
    warn_of_diverged(run for runs in mine.runs.values() for run in runs)
    return mine


@contextmanager
def _held(leases: Leases, shards: Shards) -> Iterator[None]:
    """Hold the list of runs and their table, in process 0."""
    if shards.rank:
        yield
        return
    with leases.exclusive(_WHOLE):
        yield


def _opened(folder: Path | None, first: Wanted, own_data: bool) -> Path:
    """The folder of a comparison, made if it does not exist."""
    if folder is not None and ((folder / _LEASES).is_dir() or Contents.read(folder) is not None):
        return folder
    source = "own" if own_data else Path(first.variant.config.data.name).name
    try:
        return RunWriter.create(folder, f"compare-{source}").path
    except UserError:
        if folder is not None and (folder / _LEASES).is_dir():  # another process has begun it meanwhile
            return folder
        raise


def _extended(
    folder: Path,
    wanted: Sequence[Wanted],
    asked: Asked,
    objects: UserObjects,
    device: str,
    cache: SetupCache,
    shards: Shards,
) -> tuple[Contents, UserObjects]:
    """Add the wanted runs to a folder. Returns its contents, and the objects with the weights that all runs start from.

    Raises UserError, and leaves the folder as it is, if settings, network or data contradict its runs.
    """
    contents = grown(folder, Contents.read(folder), wanted, asked.seeds, asked.swept) if shards.rank == 0 else None
    begun = shards.agreed(lambda: [] if contents is None else _begun(folder, contents))
    start = RunWriter(folder)
    if not start.has_start and begun:
        start = RunWriter(Path(begun[0]))
    objects = with_start(start, objects).agreed(shards)
    if begun:
        _refuse_other_objects(Path(begun[0]), objects, device, cache, shards)
    if contents is not None:
        if not begun and not start.has_start:
            start.keep_start(objects.model, {})
        contents.write(folder)
    shards.agreed(lambda: None)  # now it is written
    return contents or _contents(folder), objects


def _begun(folder: Path, contents: Contents) -> list[str]:
    """The folders of the runs that have begun."""
    return [str(path) for one in contents.runs if RunWriter(path := folder / one.folder).begun]


def _contents(folder: Path) -> Contents:
    """The contents of a folder that process 0 has written."""
    found = Contents.read(folder)
    assert found is not None
    return found


def _in_order(requests: Sequence[RunRequest]) -> list[RunRequest]:
    """Runs that do the same work follow one another, so that they can be played side by side."""
    first: dict[str, int] = {}
    return sorted(requests, key=lambda request: first.setdefault(work(request.config), len(first)))


def _folder(config: object) -> Path | None:
    """The folder of a comparison that is passed as the config."""
    return Path(config) if isinstance(config, str | Path) and Path(config).is_dir() else None


def _suitable(
    asked: Asked, objects: UserObjects, device: str, cache: SetupCache, shards: Shards
) -> tuple[list[Wanted], dict[str, str]]:
    """The variants that can work with this federation, and why others cannot: found before any run begins."""
    wanted, left_out = [], {}
    for one in asked.variants:
        try:
            with_method = replace(objects, method=one.object)
            _, complete, _ = prepare(one.config, with_method, chosen_device(device), cache=cache, shards=shards)
            wanted.append(Wanted(one, complete))
        except UnsuitableError as error:
            left_out[one.name] = str(error)
        cache.forget()
    if left_out and not (asked.everyone and wanted):
        raise UserError(next(iter(left_out.values())))
    return wanted, left_out


def _refuse_other_objects(path: Path, objects: UserObjects, device: str, cache: SetupCache, shards: Shards) -> None:
    """Refuse a network or data that differ from those with which a run began; method and merge do not matter."""
    config = Run(path).config.model_copy(update={"method": MethodTable(name="local"), "merge": "uniform"})
    experiment, complete, _ = prepare(config, objects, chosen_device(device), cache=cache, shards=shards)
    RunWriter(path).check(form(experiment.task), complete, experiment.digest)


def _request(
    one: Wanted, seed: int, folder: Path, callbacks: Callable[[str, int], Sequence[Callback]] | None
) -> RunRequest:
    watching = partial(callbacks, one.variant.name, seed) if callbacks is not None else tuple
    return RunRequest(over(one.variant.config, {"seed": seed}), folder, watching, one.variant.object)
