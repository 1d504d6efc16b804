"""Several methods on the same federations: a run per method, swept value and seed, in one folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from homophily.atomic_io import locked, write_json
from homophily.config.schema import Config
from homophily.config.schema import Method as MethodTable
from homophily.data.given import Peers, given_peers
from homophily.errors import UnsuitableError, UserError
from homophily.experiments.asked import Asked, Compared, asked_for
from homophily.experiments.callbacks import Callback
from homophily.experiments.growth import Wanted, entry, grown
from homophily.experiments.queue import RunRequest, execute, work
from homophily.experiments.runner import chosen_device, form, warn_of_diverged, with_start
from homophily.runs.comparison import Comparison, Contents, narrowed
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import over
from homophily.simulation.evaluation import ExtraMetric
from homophily.simulation.setup import prepare
from homophily.simulation.training_setup import SetupCache
from homophily.simulation.user_objects import UserObjects
from homophily.training.losses import Loss


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
    extra_metrics: Mapping[str, ExtraMetric] | None = None,
    callbacks: Callable[[str, int], Sequence[Callback]] | None = None,
    out: str | Path | None = None,
    device: str = "auto",
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
    model, data, loss, extra_metrics, device: as for ``run``, the same for all runs.
    callbacks: a function of a method's name and a seed that returns the callbacks of that run.
    out: a new folder, or the folder of a comparison: it takes more methods, seeds and swept values, and only runs that
    it does not have are run. The other settings must be those of its runs.
    Returns the asked runs as a ``Comparison``. Raises UserError for bad input; warns with DivergedWarning if models
    have diverged.
    """
    asked = asked_for(config, overrides or {}, methods, seeds, sweep)
    objects = UserObjects(model, given_peers(data), loss, None, extra_metrics or {})
    cache = SetupCache()
    wanted, left_out = _suitable(asked, objects, device, cache)
    folder = Path(out) if out else _folder(config)
    found = Contents.read(folder) if folder else None
    if folder is None or found is None:
        source = "own" if data is not None else Path(wanted[0].variant.config.data.name).name
        folder = RunWriter.create(folder, f"compare-{source}").path
    with locked(folder):
        contents = grown(folder, found, wanted, asked.seeds, asked.swept)
        begun = [path for one in contents.runs if RunWriter(path := folder / one.folder).begun]
        if begun:
            objects = with_start(RunWriter(begun[0]), objects)
            _refuse_other_objects(begun[0], objects, device, cache)
        contents.write(folder)
        by_key = {one.key: one for one in contents.runs}
        pairs = [(one, seed) for seed in asked.seeds for one in wanted]
        entries = [by_key[entry(one, seed, contents.swept).key] for one, seed in pairs]
        requests = []
        for (one, seed), run in zip(pairs, entries, strict=True):
            if not (folder / run.folder / "summary.json").is_file():
                requests.append(_request(one, seed, folder / run.folder, callbacks))
        first: dict[str, int] = {}  # runs that do the same work follow one another
        requests.sort(key=lambda request: first.setdefault(work(request.config), len(first)))
        for _ in execute(requests, objects, chosen_device(device), cache):
            pass
    everything = Comparison(folder, model)
    write_json(folder / "compare.json", everything.table())
    mine = narrowed(everything, entries, left_out)
    warn_of_diverged(run for runs in mine.runs.values() for run in runs)
    return mine


def _folder(config: object) -> Path | None:
    """The folder of a comparison that is passed as the config."""
    return Path(config) if isinstance(config, str | Path) and Path(config).is_dir() else None


def _suitable(
    asked: Asked, objects: UserObjects, device: str, cache: SetupCache
) -> tuple[list[Wanted], dict[str, str]]:
    """The variants that can work with this federation, and why others cannot: found before any run begins."""
    wanted, left_out = [], {}
    for one in asked.variants:
        try:
            _, complete, _ = prepare(
                one.config, replace(objects, method=one.object), chosen_device(device), cache=cache
            )
            wanted.append(Wanted(one, complete))
        except UnsuitableError as error:
            left_out[one.name] = str(error)
        cache.forget()
    if left_out and not asked.everyone:
        raise UserError(next(iter(left_out.values())))
    return wanted, left_out


def _refuse_other_objects(path: Path, objects: UserObjects, device: str, cache: SetupCache) -> None:
    """Refuse a network or data that differ from those with which a run began; its method does not matter."""
    config = Run(path).config.model_copy(update={"method": MethodTable(name="local")})
    experiment, complete, _ = prepare(config, objects, chosen_device(device), cache=cache)
    RunWriter(path).check(form(experiment.task), complete, experiment.task.data.digest)


def _request(
    one: Wanted, seed: int, folder: Path, callbacks: Callable[[str, int], Sequence[Callback]] | None
) -> RunRequest:
    watching = partial(callbacks, one.variant.name, seed) if callbacks is not None else tuple
    return RunRequest(over(one.variant.config, {"seed": seed}), folder, watching, one.variant.object)
