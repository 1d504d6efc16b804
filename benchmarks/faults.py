"""Faults of real peers: how long the others pause, what is lost, and how long recovery takes.

    python benchmarks/faults.py [--only kill freeze restart disk clock slow partition] [--out results/faults.md]

Every peer is a process of its own, started with the command line, on loopback or in a network namespace. The namespaces
need root, ip, tc and nft; the full disk needs root; the clock needs faketime. A model has 50 MB, except where the page
says otherwise.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch
from fault_federation import LEASE, Network, command, federation, until

from homophily.version import __version__

LARGE, SMALL = [3072, 4032], [32]  # hidden layers; with LARGE a model has 50 MB


@dataclass
class Result:
    """A row of the page."""

    fault: str
    alone: float | None = None  # seconds until the others have played a round without the peer
    pause: float | None = None  # the longest pause of the others
    recovered: float | None = None
    lost: int = 0
    note: str = ""
    cells: list[str] = field(init=False)

    def __post_init__(self) -> None:
        numbers = ["-" if value is None else f"{value:.1f}" for value in (self.alone, self.pause, self.recovered)]
        self.cells = [self.fault, *numbers, str(self.lost), self.note]


def rounds(number: int) -> str:
    return f"{number} round" if number == 1 else f"{number} rounds"


def kill(hidden: list[int] = LARGE, rate: str = "200mbit") -> Iterator[Result]:
    """kill -9 while a model is sent, then a restart."""
    with Network(3) as network, federation(3, hidden, network) as peers:
        for i in range(3):
            network.limit(i, rate)
        peers.start(0, 1, 2)
        peers.all_meet(0, 1, 2)
        before = network.sent(2)
        until(lambda: network.sent(2) > before + (2 << 20), "a transfer")
        began, played = time.monotonic(), [len(peers.lines(i)) for i in range(2)]
        peers.kill(2)
        alone = peers.all_meet(0, 1)
        pause = peers.longest_pause((0, 1), began, time.monotonic())
        broken = sum("peer-2" in line["unreachable"] for i in range(2) for line in peers.lines(i)[played[i] :])
        name, lost = f"kill -9 while models are sent ({rate})", sum(map(peers.lost, range(3)))
        yield Result(name, alone, pause, lost=lost, note=f"{broken} of the two transfers of its model break off")
        peers.start(2)
        recovered = peers.all_meet(0, 1, 2)
        yield Result(
            "its restart", None, None, recovered, sum(map(peers.lost, range(3))), "includes the start of Python"
        )


def freeze(hidden: list[int] = LARGE, seconds: float = 5 * LEASE) -> Iterator[Result]:
    """SIGSTOP for longer than the lease."""
    with federation(3, hidden) as peers:
        peers.start(0, 1, 2)
        peers.all_meet(0, 1, 2)
        began = time.monotonic()
        peers.running[2].send_signal(signal.SIGSTOP)
        alone = peers.all_meet(0, 1)
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        pause = peers.longest_pause((0, 1), began, time.monotonic())
        peers.running[2].send_signal(signal.SIGCONT)
        recovered = peers.all_meet(0, 1, 2)
        name = f"frozen (SIGSTOP) for {seconds:.0f} s, lease {LEASE:.0f} s"
        yield Result(name, alone, pause, recovered, sum(map(peers.lost, range(3))))


def restart(hidden: list[int] = LARGE) -> Iterator[Result]:
    """Restarts with the state folder and without it."""
    with federation(3, hidden) as peers:
        peers.start(0, 1, 2)
        peers.all_meet(0, 1, 2)
        for kept in (True, False):
            peers.kill(2)
            peers.all_meet(0, 1)
            if not kept:
                shutil.rmtree(peers.state(2))
                peers.seen[2].clear()
            current = max(peers.seen[0])
            peers.start(2)
            recovered = peers.all_meet(0, 1, 2)
            first = min(r for r in list(peers.seen[2]) if r > current) - current
            note = f"its first round comes {rounds(first)} after the start; includes the start of Python"
            name = "restart with its state folder" if kept else "restart without its state folder"
            yield Result(name, None, None, recovered, sum(map(peers.lost, range(3))), note)


def disk(hidden: list[int] = SMALL) -> Iterator[Result]:
    """A full disk, then space again."""
    with federation(3, hidden) as peers, ExitStack() as stack:
        mounted = peers.folder / "small"
        mounted.mkdir()
        command("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", mounted)
        stack.callback(lambda: command("umount", "-l", mounted))
        stack.callback(peers.close)  # first: nobody reads there any more when it is unmounted
        peers.change(2, state="small/peer-2")
        peers.start(0, 1, 2)
        peers.all_meet(0, 1, 2)
        began = time.monotonic()
        filler = mounted / "filler"
        with filler.open("wb", buffering=0) as out:
            try:
                while peers.running[2].poll() is None and out.write(bytes(4096)):
                    pass
            except OSError:
                pass
        code = peers.end(2)
        alone = peers.all_meet(0, 1)
        pause = peers.longest_pause((0, 1), began, time.monotonic())
        said = peers.log(2).read_text().strip().splitlines()[-1]
        filler.unlink()
        peers.start(2)
        recovered = peers.all_meet(0, 1, 2)
        note = (
            f"ends with exit code {code}: `{said.replace(str(peers.folder) + '/', '')}`; recovery includes its restart"
        )
        yield Result("full disk (a model of 10 kB)", alone, pause, recovered, sum(map(peers.lost, range(3))), note)


def clock(hidden: list[int] = SMALL, from_the_start: Sequence[str] = ("+1h", "-1h")) -> Iterator[Result]:
    """Clocks that are wrong by an hour from the start, and one that is set by an hour in mid-run."""
    for shift in from_the_start:
        with federation(3, hidden) as peers:
            peers.start(0, 1)
            peers.start(2, prefix=["faketime", "-f", shift], FAKETIME_DONT_FAKE_MONOTONIC="1")
            recovered = peers.all_meet(0, 1, 2)
            yield Result(
                f"clock wrong by {shift} from the start",
                None,
                None,
                recovered,
                sum(map(peers.lost, range(3))),
                "time from the start of all",
            )
    with federation(3, hidden) as peers:
        offset = peers.folder / "offset"
        offset.write_text("+0\n")
        library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        names = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1"}
        peers.start(0, 1)
        peers.start(2, FAKETIME_DONT_FAKE_MONOTONIC="1", **names)
        peers.all_meet(0, 1, 2)
        for shift in ("-3600", "+3600"):
            began = time.monotonic()
            offset.write_text(f"{shift}\n")
            recovered = peers.all_meet(0, 1, 2)
            until(
                lambda shift=shift: abs(peers.time(2) - time.time() - int(shift)) < 60, "the clock of the peer is set"
            )
            recovered = max(recovered, peers.all_meet(0, 1, 2))
            pause = peers.longest_pause((0, 1, 2), began, time.monotonic())
            yield Result(f"clock set to {shift} s in mid-run", None, pause, recovered, sum(map(peers.lost, range(3))))


def slow(hidden: list[int] = LARGE, rate: str = "20mbit", seconds: float = 60.0) -> Iterator[Result]:
    """A peer with a slow link."""
    with Network(3) as network, federation(3, hidden, network) as peers:
        peers.start(0, 1, 2)
        peers.all_meet(0, 1, 2)
        began, before = time.monotonic(), [len(peers.lines(i)) for i in range(3)]
        network.limit(2, rate)
        time.sleep(seconds)
        played = [len(peers.lines(i)) - before[i] for i in range(3)]
        network.limit(2, None)
        recovered = peers.all_meet(0, 1, 2)
        pause = peers.longest_pause((0, 1), began, time.monotonic())
        note = f"{rounds(min(played[:2]))} of the others in {seconds:.0f} s, {rounds(played[2])} of the peer"
        mbit = float(rate.removesuffix("mbit"))
        name = f"slow link ({mbit:.0f} Mbit/s, a model takes {8 * 50 / mbit:.0f} s)"
        yield Result(name, None, pause, recovered, sum(map(peers.lost, range(3))), note)


def partition(hidden: list[int] = LARGE) -> Iterator[Result]:
    """Two halves that cannot reach each other for a while."""
    with Network(4) as network, federation(4, hidden, network) as peers:
        peers.start(0, 1, 2, 3)
        peers.all_meet(0, 1, 2, 3)
        began = time.monotonic()
        network.separate((0, 1), (2, 3))
        peers.all_meet(0, 1)
        peers.all_meet(2, 3)
        alone = time.monotonic() - began
        pause = peers.longest_pause(range(4), began, time.monotonic())
        network.unite()
        recovered = peers.all_meet(0, 1, 2, 3)
        yield Result("partition of 4 peers in halves", alone, pause, recovered, sum(map(peers.lost, range(4))))


FAULTS = {each.__name__: each for each in (kill, freeze, restart, disk, clock, slow, partition)}
NEEDS = {
    "kill": ["ip", "tc"],
    "disk": ["mount", "umount"],
    "clock": ["faketime"],
    "slow": ["ip", "tc"],
    "partition": ["ip", "nft"],
}


def obstacle(fault: str) -> str | None:
    """Why a fault cannot be played here."""
    tools = NEEDS.get(fault, [])
    if tools and fault != "clock" and os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return f"needs {' and '.join(missing)}" if missing else None


PAGE = """# Faults of real peers

This page shows what faults of one peer do to the others, what is lost, and how long recovery takes.

{summary}

`python benchmarks/faults.py --out results/faults.md`: {day}, {cores} cores ({machine}), torch {torch},
homophily {version}. Every peer is a process, started with `homophily peer`, with `lease = {lease:.0f}` and otherwise
the default settings; there are three, unless the fault says otherwise. A model has 50 MB, for the full disk and the
clocks 10 kB. Links between network namespaces are limited with `tc` and cut with `nft`; clocks are set with `faketime`.

- *without it*: until each of the others has played a round without the peer;
- *longest pause*: the longest time between two rounds of one of the others, while the fault lasts;
- *recovery*: from the end of the fault until every peer has met all others in one round;
- *lost*: rounds that were over (in `metrics.jsonl` and in a checkpoint) and are not in the peer's state folder later.

| fault | without it, s | longest pause, s | recovery, s | lost | notes |
| --- | --- | --- | --- | --- | --- |
{rows}
"""


def page(results: Sequence[Result], skipped: Sequence[str]) -> str:
    pauses = [each.pause for each in results if each.pause is not None]
    back = [each.recovered for each in results if each.recovered is not None]
    summary = (
        f"- No peer hangs: the others pause for at most {math.ceil(max(pauses))} s.\n"
        f"- Rounds lost: {sum(each.lost for each in results)}. A peer that ends repeats only the round in progress.\n"
        f"- All peers meet again within {math.ceil(max(back))} s.\n"
        "- A link that is too slow for the model costs the others up to `peer.deadline` (30 s) per round: they wait\n"
        "  for the model, then merge without it. A lower `deadline` costs them less, and excludes the peer more often."
    )
    rows = [f"| {' | '.join(each.cells)} |" for each in results]
    return PAGE.format(
        summary=summary,
        day=datetime.now(UTC).date().isoformat(),
        cores=os.cpu_count(),
        machine=platform.machine(),
        torch=torch.__version__,
        version=__version__,
        lease=LEASE,
        rows="\n".join([*rows, *(f"\nNot measured: {each}." for each in skipped)]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results, skipped = [], []
    for name in given.only:
        if (reason := obstacle(name)) is not None:
            skipped.append(f"{name} ({reason})")
            print(f"SKIPPED: {skipped[-1]}", file=sys.stderr, flush=True)
            continue
        for result in FAULTS[name]():
            results.append(result)
            print(f"| {' | '.join(result.cells)} |", flush=True)
    if given.out is not None and results:
        given.out.write_text(page(results, skipped), encoding="utf-8")


if __name__ == "__main__":
    main()
