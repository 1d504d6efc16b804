"""The choice of an engine, chunk sizes and threads."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import homophily
from homophily.errors import UserError
from homophily.training import resources
from homophily.training.engines import engine_limits, read_chain
from homophily.training.probe import probe
from homophily.training.resources import ExecutionPlan, free_memory, plan_execution
from homophily.training.task import Precision, Settings
from tests.training.nets import Drawing, Everything, shares, task

CHAIN = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def planned(
    net: nn.Module, engine: str = "auto", peers: int = 3, optimizer: str = "sgd", precision: Precision = "full"
) -> ExecutionPlan:
    problem = task(net, shares([6] * peers, [1, 8, 8]), torch.float32)
    found = probe(problem.module, problem.loss, problem.data.train.x, problem.data.train.y)
    chain = read_chain(problem.module, problem.layout, problem.loss, problem.data)
    limits = engine_limits(replace(problem, settings=Settings(optimizer), precision=precision))
    return plan_execution(engine, 4, problem.data, problem.layout, found, chain, torch.device("cpu"), limits)


@pytest.mark.parametrize(
    ("net", "engine", "why"),
    [
        (CHAIN, "stacked", "chain of layers"),
        (nn.Sequential(CHAIN, nn.Tanh()), "vectorised", "Tanh"),
        (Everything(), "vectorised", "buffers"),
        (Drawing(), "one-by-one", "draws random numbers"),
    ],
)
def test_auto_takes_the_fastest_engine_that_can_train_the_network(net: nn.Module, engine: str, why: str) -> None:
    found = planned(net)
    assert found.engine == engine
    assert why in found.why


def test_bfloat16_on_a_cpu_needs_autocast() -> None:
    assert planned(CHAIN, precision="bf16").engine != "stacked"
    with pytest.raises(UserError, match="engine = 'stacked': precision = 'bf16' needs its kernels"):
        planned(CHAIN, "stacked", precision="bf16")
    double = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    with pytest.raises(
        UserError, match=r"precision = 'bf16' needs a network with float32 parameters, not torch\.float"
    ):
        homophily.run({"precision": "bf16", "rounds": 1}, model=double)


def test_a_cpu_vectorises_small_networks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger ones are trained one by one, in as many threads as there are; a network that draws in a single one."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    large = nn.Sequential(nn.Flatten(), nn.Linear(64, 4000), nn.Tanh(), nn.Linear(4000, 10))
    plans = [planned(net, peers=5) for net in (nn.Sequential(CHAIN, nn.Tanh()), large)]
    assert [(plan.engine, plan.workers) for plan in plans] == [("vectorised", 1), ("one-by-one", 3)]
    assert planned(large, peers=2).workers == 2
    assert planned(nn.Sequential(large, nn.Linear(10, 64), Drawing()), peers=5).workers == 1
    assert planned(large, "vectorised").engine == "vectorised"


def test_a_cpu_vectorises_over_as_many_peers_as_stay_in_its_cache() -> None:
    deep = nn.Sequential(nn.Flatten(), *(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.Tanh())), CHAIN[1])
    found = planned(deep, peers=200)
    assert found.engine == "vectorised"
    assert 10 < found.chunk < 200
    assert planned(nn.Sequential(CHAIN, nn.Tanh()), peers=40).chunk == 40


def test_a_cpu_vectorises_small_tensors_only() -> None:
    """Of two networks of one size, the one with few large tensors has too little besides memory traffic to save."""
    many = [layer for _ in range(16) for layer in (nn.Linear(64, 64), nn.Tanh())]
    few = [nn.Linear(64, 1024), nn.Tanh()]
    nets = [nn.Sequential(nn.Flatten(), *layers, nn.LazyLinear(10)) for layers in (many, few)]
    for net in nets:
        net(torch.zeros(1, 1, 8, 8))
    assert sum(p.numel() for p in nets[0].parameters()) < sum(p.numel() for p in nets[1].parameters())
    assert [planned(net).engine for net in nets] == ["vectorised", "one-by-one"]
    assert planned(nets[1], "vectorised").engine == "vectorised"


def test_a_cpu_stacks_small_convolutions_only() -> None:
    nets = [
        nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(channels * 64, 10),
        )
        for channels in (8, 256)
    ]  # fmt: skip
    plans = [planned(net) for net in nets]
    assert [plan.engine for plan in plans] == ["stacked", "one-by-one"]
    assert "faster than stacked layers" in plans[1].why
    assert planned(nets[1], "stacked").engine == "stacked"


@pytest.mark.parametrize("engine", ["stacked", "vectorised", "one-by-one"])
def test_the_configured_engine_is_used(engine: str) -> None:
    assert (planned(CHAIN, engine).engine, planned(CHAIN, engine).why) == (engine, "set in the config")


@pytest.mark.parametrize(
    ("net", "engine"), [(Drawing(), "stacked"), (Drawing(), "vectorised"), (Everything(), "stacked")]
)
def test_an_engine_that_cannot_train_the_network_is_refused(net: nn.Module, engine: str) -> None:
    with pytest.raises(UserError, match=f"engine = '{engine}': this network"):
        planned(net, engine)


def test_an_optimizer_class_trains_peers_one_by_one() -> None:
    found = planned(CHAIN, optimizer="RMSprop")
    assert (found.engine, "training.optimizer = 'RMSprop' trains peers one by one" in found.why) == ("one-by-one", True)
    for engine in ("stacked", "vectorised"):
        with pytest.raises(UserError, match=f"engine = '{engine}': training.optimizer = 'RMSprop' trains peers one by"):
            planned(CHAIN, engine, optimizer="RMSprop")
    assert planned(CHAIN, "one-by-one", optimizer="RMSprop").why == "set in the config"


def test_threads_get_equal_numbers_of_chunks() -> None:
    """If there is work for several chunks, every thread gets equally many, as small as possible."""
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 4000), nn.ReLU(), nn.Linear(4000, 10))
    found = planned(wide, peers=31)
    chunks = -(-31 // found.chunk)
    assert found.chunk < 31
    assert found.workers == min(torch.get_num_threads(), chunks)
    assert chunks % found.workers == 0
    assert planned(CHAIN, peers=31).workers == 1  # too little work to share


def test_more_models_than_fit_are_refused_with_the_arithmetic() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    problem = task(net, shares([2], [1, 8, 8]), torch.float32)
    found = probe(problem.module, problem.loss, problem.data.train.x, problem.data.train.y)
    many = shares([1], [1, 8, 8])
    one = torch.ones(1, dtype=torch.int64).expand(10**9)
    many = replace(many, train=replace(many.train, start=one, count=one))
    with pytest.raises(
        UserError, match=r"peers = 1000000000: .* 1,000,000,000 x 650 parameters x 4 bytes x 3 copies = "
    ):
        plan_execution("auto", 4, many, problem.layout, found, "no chain", torch.device("cpu"), {})


def test_a_run_records_its_engine(tmp_path: Path) -> None:
    run = homophily.run({"rounds": 1, "peers": 4, "method": {"name": "local"}}, out=tmp_path / "run")
    assert run.about["plan"]["engine"] == "stacked"


CPU = torch.device("cpu")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Writes what a Linux kernel reports: by path, below the root."""
    monkeypatch.setattr(resources, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(resources, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": 2}.__getitem__)

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return write


MEMORY = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 8 kB\nMemAvailable:    5000 kB\nHugePages_Total:  0\n"}


def test_page_cache_counts_as_free(machine: Callable[[dict[str, str]], None]) -> None:
    assert free_memory(CPU) == 2 * 4096  # of a system without /proc
    machine(MEMORY)
    assert free_memory(CPU) == 5000 * 1024


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/", {"memory.max": "9000", "memory.current": "8500", "memory.stat": "anon 7\ninactive_file 500"}),
        ("0::/", {"memory.max": "1000", "memory.current": "0"}),
        (
            "0::/job/step",  # its limit is that of the group around it
            {
                "job/step/memory.max": "max",
                "job/step/memory.current": "100",
                "job/memory.max": "1100",
                "job/memory.current": "100",
            },
        ),
        (
            "3:cpu,cpuacct:/\n4:memory:/docker/one\n0::/",  # version 1, in a container that sees its own group only
            {
                "memory/memory.limit_in_bytes": "9000",
                "memory/memory.usage_in_bytes": "8500",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500",
            },
        ),
    ],
)
def test_the_limit_of_a_container_counts(
    group: str, files: dict[str, str], machine: Callable[[dict[str, str]], None]
) -> None:
    machine({**MEMORY, "proc/self/cgroup": group, **{f"groups/{name}": text + "\n" for name, text in files.items()}})
    assert free_memory(CPU) == 1000


def test_a_limit_that_is_reached_or_absent(machine: Callable[[dict[str, str]], None]) -> None:
    machine({**MEMORY, "proc/self/cgroup": "0::/", "groups/memory.max": "max\n", "groups/memory.current": "100\n"})
    assert free_memory(CPU) == 5000 * 1024
    machine({"groups/memory.max": "90\n"})
    assert free_memory(CPU) == 0


def test_models_that_do_not_fit_are_refused_in_readable_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "free_memory", lambda device: 2 << 20)
    with pytest.raises(UserError, match=r"x 3 copies = 2\.2 MiB, but cpu has 2\.0 MiB free"):
        planned(CHAIN, peers=300)
