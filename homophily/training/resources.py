"""Plans a run for this machine: the engine, how many peers are processed at a time, and how many threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from homophily.data import FederatedData
from homophily.errors import UserError
from homophily.federation.layout import Layout
from homophily.training.private import Private
from homophily.training.probe import ModuleTraits
from homophily.training.stacked.chain import Chain
from homophily.training.vectorised import StepKind

_WORTH_THREADS = 32 << 20  # bytes that a training step must touch to be worth several threads
_SMALL_STEP = 5 << 20  # bytes that a peer's training step touches, up to which a CPU vectorises over peers
_SMALL_PRIVATE_STEP = 8 << 20  # the same for private training
_SMALL_TENSORS = 64 << 10  # bytes of a network's trained tensors, on average, up to which a CPU vectorises over peers
_SMALL_SAMPLE = 1 << 20  # bytes that one sample takes in a chain of layers, up to which a CPU stacks peers
_FEW_BYTES = 96 << 20  # bytes that a vectorised training step on a CPU touches at most
_WORTH_WORKERS = 512 << 10  # bytes that a peer's training step must touch to be worth a thread per peer
_CACHE = 16 << 20  # bytes that one thread works on at a time
_COPIES = 3  # of all models: the initial, the current, and those before training or before a merge
_FEW_DECISIONS = 1 << 16  # entries of all contact lists, up to which decisions are made on the CPU
_SCORED = 512  # samples of a peer evaluated at a time; rank 0 plans for all ranks, so not by the samples of its peers
_DEFAULT_MEMORY = 4 << 30  # bytes assumed to be free if the system does not report it
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ExecutionPlan:
    """How a run is executed on this machine; stored with the run and used again on resume."""

    engine: str
    why: str  # why this engine was chosen
    chunk: int  # peers trained at a time
    score_peers: int  # peers evaluated at a time
    score_samples: int  # samples per peer evaluated at a time
    measure_pairs: int  # pairs of models compared at a time
    threads: int  # torch threads per computation
    workers: int = 1  # threads that train peers in parallel
    step: StepKind = "plain"  # how the vectorised engine computes a training step
    features: int = 0  # bytes of cached features of frozen layers; 0: not cached


def plan_execution(
    engine: str,
    batch: int,
    shares: FederatedData,
    layout: Layout,
    traits: ModuleTraits,
    chain: Chain | str,
    device: torch.device,
    limits: Mapping[str, str],
    private: Private | None = None,
) -> ExecutionPlan:
    """Return the engine ("auto": chosen by the traits of the network), and chunk sizes that fit into free memory.

    chain: the network as a chain of layers, or why the stacked engine cannot train it; limits: why
    the engines of these names cannot train with the settings of [training]; private: of private training.
    """
    name, why = _engine(engine, traits, chain, limits)
    free = free_memory(device)
    row = layout.width * layout.dtype.itemsize
    _check_memory(shares.peers, layout, _COPIES * row, free, device)
    budget = free // 4
    sample = traits.saved_bytes
    if name == "stacked" and isinstance(chain, Chain):
        sample = (chain.values if device.type == "cuda" else chain.held) * layout.dtype.itemsize
    # Twice what autograd saves, because gradients have the same size, plus rows, gradients and optimiser state.
    training = 2 * sample * batch + 8 * row
    if private is not None:  # a gradient of every sample, and its clipped copy
        training = (2 * sample + 3 * row) * private.room + 24 * row
    most = int(shares.test.count.max())
    scoring = max(1, min(most, _SCORED)) * sample + row + most * shares.outputs * 16
    measuring = int(shares.train.count.max()) * sample + 4 * row
    chunk = max(1, min(shares.peers, budget // max(1, training)))
    if engine == "auto" and device.type == "cpu":
        slower = _slower_than_loop(name, 2 * sample, training, layout, private is not None)
        name, why = ("one-by-one", slower) if slower else (name, why)
    if name == "vectorised" and device.type == "cpu":
        chunk = max(1, min(chunk, _FEW_BYTES // max(1, training)))
    # One thread if peers are stacked (workers train chunks in parallel), if they are trained one by one, as on a real
    # peer, or if a step is small: then threads wait for one another longer than they compute,
    # up to a hundred times longer on a busy machine.
    single = name != "vectorised" or chunk * training < _WORTH_THREADS
    workers = 1
    if name == "one-by-one" and device.type == "cpu" and not traits.draws and training > _WORTH_WORKERS:
        workers = min(shares.peers, torch.get_num_threads())
    if name == "stacked" and device.type == "cpu":
        chunk, workers = _balanced_chunks(shares.peers, min(chunk, _CACHE // max(1, training // 2)))
    return ExecutionPlan(
        engine=name,
        why=why,
        chunk=chunk,
        workers=workers,
        score_peers=max(1, min(shares.peers, budget // max(1, scoring))),
        score_samples=_SCORED,
        measure_pairs=max(1, budget // max(1, measuring)),
        threads=1 if single else torch.get_num_threads(),
    )


def _engine(asked: str, traits: ModuleTraits, chain: Chain | str, limits: Mapping[str, str]) -> tuple[str, str]:
    """Return the engine's name and why: stacked for a chain of layers, else vectorised if possible, else one-by-one."""
    if asked in limits:
        raise UserError(f"engine = {asked!r}: {limits[asked]}")
    if asked in ("stacked", "vectorised") and traits.obstacle:
        raise UserError(f"engine = {asked!r}: this network cannot be vectorised: {traits.obstacle}")
    if asked == "stacked" and isinstance(chain, str):
        raise UserError(f"engine = 'stacked': this network is not a chain of layers that stacking supports: {chain}")
    if asked != "auto":
        return asked, "set in the config"
    if traits.obstacle:
        return "one-by-one", traits.obstacle
    if "vectorised" in limits:
        return "one-by-one", limits["vectorised"]
    if isinstance(chain, str):
        return "vectorised", f"the network vectorises, but is not a chain of layers that stacking supports: {chain}"
    if "stacked" in limits:
        return "vectorised", limits["stacked"]
    return "stacked", "the network is a chain of layers that stacking supports"


def _slower_than_loop(engine: str, sample: int, training: int, layout: Layout, private: bool) -> str | None:
    """Return why a CPU trains peers one by one instead of by ``engine``; None if the engine is faster.

    sample, training: bytes that one sample, and a training step of one peer, touch. results/engines.md has the
    measurements. Private training one by one computes the gradient of one sample at a time, which is slow.
    """
    if engine == "vectorised":
        tensors = sum(column.trainable for column in layout.columns)
        large = not private and layout.trainable * layout.dtype.itemsize > _SMALL_TENSORS * tensors
        if large or training > (_SMALL_PRIVATE_STEP if private else _SMALL_STEP):
            return "on a CPU, a loop over peers is faster than torch.vmap for a network of this size"
    if engine == "stacked" and not private and sample > _SMALL_SAMPLE:
        return "on a CPU, a loop over peers is faster than stacked layers for convolutions of this size"
    return None


def _balanced_chunks(peers: int, most: int) -> tuple[int, int]:
    """Return how many peers are trained at a time, at most ``most``, and how many threads, with equal work each."""
    chunks = -(-peers // max(1, most))
    workers = min(torch.get_num_threads(), chunks)
    chunks = -(-chunks // workers) * workers
    return -(-peers // chunks), workers


def _check_memory(peers: int, layout: Layout, each: int, free: int, device: torch.device) -> None:
    if peers * each > free:
        raise UserError(
            f"peers = {peers}: their models alone take {peers:,} x {layout.width:,} parameters x "
            f"{layout.dtype.itemsize} bytes x {_COPIES} copies = {size_text(peers * each)}, "
            f"but {device.type} has {size_text(free)} free"
        )


def deciding_device(peers: int, contacts: int | None, device: torch.device) -> torch.device:
    """Return the device that decisions are made on: the CPU if they are too few to be worth GPU kernel launches."""
    few = peers * (peers if contacts is None else min(contacts, peers)) <= _FEW_DECISIONS
    return torch.device("cpu") if few else device


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use this many torch threads inside the ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory(device: torch.device) -> int:
    """Return how many bytes of the device's memory a run may take."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = _numbers(_PROC / "meminfo").get("MemAvailable")  # page cache that can be dropped counts as free
    if available is not None:
        return min([1024 * available, *_left_by_groups()])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # the system does not report it
        return _DEFAULT_MEMORY


def _left_by_groups() -> Iterator[int]:
    """Yield the bytes that each control group of this process, such as a container, may still take."""
    for line in _lines(_PROC / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":  # version 1
            top, limit, usage, cache = _GROUPS / "memory", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"
        elif not controllers:  # version 2
            top, limit, usage, cache = _GROUPS, "max", "current", "inactive_file"
        else:
            continue
        own = top / path.strip("/")
        for group in [own, *own.parents][: 1 + len(own.relative_to(top).parts)]:
            most, used = (_lines(group / f"memory.{name}") for name in (limit, usage))
            if most and used and most[0] != "max":
                yield max(0, int(most[0]) - int(used[0]) + _numbers(group / "memory.stat").get(cache, 0))


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file of the kernel by name; none if there is no such file."""
    named = (line.split() for line in _lines(path))
    return {words[0].rstrip(":"): int(words[1]) for words in named}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def size_text(size: int) -> str:
    """Return a number of bytes for a message."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
