"""Training speed of homophily, a tuned PyTorch loop, gossipy, pfl and Flower: one table, one machine, the same data.

    python benchmarks/side_by_side.py --setup --quick                            # about a minute, once it is installed
    python benchmarks/side_by_side.py --setup --out results/side-by-side.md

--setup makes the frameworks' environments (some 4 GB, versions in side_by_side/versions.toml) where they are missing.
Everyone trains the same two networks on the same shares of the same images with the same batches, steps and SGD, on
the same cores, and is shown with the fastest of its settings: 1 thread or one a core, processes where it can use them.
Measured is how many samples are trained on a second, over whole rounds: training, exchange, bookkeeping, no scoring.
Settings are measured one after the other, all of it --passes times; in each pass the first round is not counted.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import get_args

import torch
from side_by_side import networks
from side_by_side.environments import VERSIONS, Missing, python_of
from side_by_side.job import Answer, Job
from side_by_side.measure import measure
from side_by_side.shares import export
from side_by_side.table import Row, lines, rate
from side_by_side.with_homophily import NETWORKS

import homophily
from homophily.config.schema import Config
from homophily.experiments.runner import machine
from homophily.models import models

ROOT = Path(__file__).resolve().parents[1]
HOPELESS = 2.0  # a setting this many times slower than the best is not measured again
STARTING = 20.0  # seconds of start-up that do not count as slow
NOT_COMPARABLE = {
    "homophily": "threads as for all: the faster; left alone it takes one a core where a step is large",
    "loop": "only trains and averages: no costs counted, no checks of models, draws not reproducible",
    "gossipy": "asynchronous ticks: a model is merged, then trained, as it arrives; optimiser state is kept and copied",
    "gossipy pens": "ranked by accuracy, ours by loss; trains once {tried} others' models have come, ours each round",
    "pfl": "the same batches each round; one model of a server, no peer keeps its own",
    "flower": "clients in Ray actors, models serialised both ways; one model of a server, no peer keeps its own",
}


@dataclass(frozen=True)
class Entry:
    """A framework and a task. settings: the (threads, processes) to measure."""

    row: Row
    script: str
    settings: list[tuple[int, int]]
    environment: str | None = None  # None: the current one
    engine: str = "auto"
    torchrun: bool = False


def entries(network: str, engines: Sequence[str], cores: int, frameworks: Sequence[str], tried: int) -> list[Entry]:
    """Return all entries for a network. The first engine is the one that the package chooses."""
    threads = sorted({(1, 1), (cores, 1)})
    out = []
    for engine in engines if "homophily" in frameworks else ():
        for task in ("gossip", "pens", "fedavg", "training"):
            default = engine == engines[0]
            name = f"homophily, {engine}" + (", its choice" if default else "")
            settings = threads if engine != "one-by-one" else [(1, 1)]  # it uses one thread
            note = NOT_COMPARABLE["homophily"] if len(settings) > 1 else "-"
            out.append(Entry(Row(network, task, name, note, default), "with_homophily", settings, engine=engine))

    def other(task: str, name: str, settings: list[tuple[int, int]], key: str, note: str = "") -> None:
        if key in frameworks:
            row = Row(network, task, name, NOT_COMPARABLE[note or key].format(tried=tried))
            out.append(Entry(row, f"with_{key}", settings, key if key in VERSIONS else None, torchrun=key == "pfl"))

    other("gossip", "PyTorch loop", threads, "loop")
    other("gossip", "PyTorch loop, processes", [(1, cores)], "loop")
    other("gossip", "gossipy", threads, "gossipy")
    other("pens", "gossipy", threads, "gossipy", "gossipy pens")
    other("fedavg", "pfl", sorted({*threads, (1, cores)}), "pfl")
    other("fedavg", "Flower", [(1, cores)], "flower")
    order = ("gossip", "pens", "fedavg", "training")
    return sorted(out, key=lambda entry: order.index(entry.row.task))


def fill(entry: Entry, job: Job, options: argparse.Namespace, setup: bool) -> None:
    """Measure each setting of an entry once more, unless it failed or is much slower than the best."""
    row = entry.row
    try:
        python = (
            python_of(entry.environment, options.environments, setup) if entry.environment else Path(sys.executable)
        )
    except Missing as error:
        row.answers[entry.settings[0]] = Answer(failure=str(error))
        return
    best, limit = rate(row.best[1].repeats), options.limit
    for threads, processes in entry.settings:
        before = row.answers.get((threads, processes))
        if before and rate(before.repeats) * HOPELESS < best:
            continue
        asked = Job(**{**vars(job), "threads": threads, "processes": processes, "engine": entry.engine})
        began = time.perf_counter()
        answer = measure(python, entry.script, asked, entry.torchrun and processes > 1, limit)
        if answer.repeats:
            limit = min(limit, HOPELESS * (time.perf_counter() - began) + STARTING)
        outcome = f"{rate(answer.repeats):,.0f} samples/s" if answer.repeats else answer.failure
        where = f"{threads} threads, {processes} processes"
        print(f"{row.network}, {row.task}: {row.name}, {where}: {outcome}", file=sys.stderr, flush=True)
        if before and answer.repeats:
            answer.repeats = before.repeats + answer.repeats
        if not before or answer.repeats:
            row.answers[threads, processes] = answer


def engines_of(network: str, job: Job, asked: Sequence[str]) -> list[str]:
    """Return the engine that the package chooses, then the other requested engines."""
    x, y = job.data()
    peers = [homophily.PeerData(x[i], y[i]) for i in range(len(x))]
    with tempfile.TemporaryDirectory() as folder:
        config = {"rounds": 1, "model": NETWORKS[network], "method": {"name": "local"}}
        chosen = homophily.run(config, data=peers, out=Path(folder) / "run", device="cpu").about["plan"]["engine"]
    return [chosen, *(name for name in asked if name != chosen)]


def check_networks() -> None:
    """Check that the networks of the other frameworks equal those of the package."""
    for name, keys in NETWORKS.items():
        rest = {key: value for key, value in keys.items() if key != "name"}
        assert repr(models.get(keys["name"])(inputs=(1, 28, 28), outputs=10, **rest)) == repr(networks.network(name))


def heading(options: argparse.Namespace, rows: Sequence[Row], load: float) -> list[str]:
    versions = {name: number for row in rows for a in row.answers.values() for name, number in a.versions.items()}
    listed = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    command = shlex.join(["python", "benchmarks/side_by_side.py", *sys.argv[1:]])
    return [
        "# Side by side",
        "",
        f"{date.today()}, {machine(torch.device('cpu'))}, {options.cores} cores used, load average before {load:.1f},",
        f"homophily {homophily.__version__}, {listed}: `{command}`",
        "",
        f"{options.peers} peers with {options.samples} images of {options.data} each, batch 8, one local epoch a round",
        f"({-(-options.samples // 8)} steps), SGD with momentum; {options.passes * options.repeats} repeats. Each has",
        "the fastest of its settings: 1 thread, one a core, or processes where it can use them. *Ours* is homophily",
        "with the engine it chooses. Gossip merges one model a round; PENS is in its first stage, in which models are",
        "tried; *training only* is, for homophily, a run of its method `local`.",
        "",
    ]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", action="store_true")
    parser.add_argument("--quick", action="store_true", help="20 peers, 40 samples, the CNN, one engine, one pass")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS))
    parser.add_argument("--frameworks", nargs="+", default=["homophily", "loop", *VERSIONS])
    parser.add_argument("--engines", nargs="+", help="homophily's engines besides the one it chooses (default: all)")
    parser.add_argument("--peers", type=int)
    parser.add_argument("--samples", type=int, help="samples per peer")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds per pass")
    parser.add_argument("--passes", type=int)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one setting in one pass")
    parser.add_argument("--environments", type=Path, default=ROOT / ".peers", help="folder of the virtual environments")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.environments = options.environments.absolute()
    for key, quick, full in (
        ("peers", 20, 50),
        ("samples", 40, 80),
        ("passes", 1, 2),
        ("networks", ["cnn"], list(NETWORKS)),
        ("engines", [], [name for name in get_args(Config.model_fields["engine"].annotation) if name != "auto"]),
    ):
        if getattr(options, key) is None:
            setattr(options, key, quick if options.quick else full)
    return options


def main() -> None:
    options = parsed()
    load = os.getloadavg()[0]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])  # children inherit it
    check_networks()
    with tempfile.TemporaryDirectory() as folder:
        shares = Path(folder) / "shares.npz"
        export(shares, options.data, options.peers, options.samples)
        jobs, plan = {}, []
        tried = min(10, options.peers - 1)
        for network in options.networks:
            jobs[network] = Job(
                network, "training", str(shares), "", tried=tried, kept=min(4, tried), repeats=options.repeats
            )
            engines = engines_of(network, jobs[network], options.engines)
            plan += entries(network, engines, options.cores, options.frameworks, tried)
        for turn in range(options.passes):
            for entry in plan:
                job = Job(**{**vars(jobs[entry.row.network]), "task": entry.row.task})
                fill(entry, job, options, options.setup and turn == 0)
            rows = [entry.row for entry in plan]
            text = "\n".join([*heading(options, rows, load), *lines(rows)])
            if options.out:  # after each pass, so that an interrupted run leaves a table
                options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
