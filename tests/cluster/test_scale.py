"""Many peers on two ranks: what the plan says of memory and of what travels, against a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from homophily.experiments.planning import measured_parts, plan
from homophily.simulation.configuration import make
from tests.cluster.test_ranks import torchrun

CONFIG = {
    "peers": 60_000, "contacts": 100, "data": {"name": "synthetic", "train": 20, "test": 20},
    "model": {"name": "mlp", "hidden": [16]}, "training": {"epochs": 1},
}  # fmt: skip

MEASURE = """
import json, os, re, sys
from pathlib import Path

from homophily.experiments.planning import measured_parts
from homophily.simulation.configuration import make

peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
found = measured_parts(make(json.loads(sys.argv[1])), "cpu", Path("run"), results=True)
numbers = {"memory": (peak() - before) * 1024, "sent": found.rank_bytes, "bytes": found.bytes_per_round,
           "models": found.models_in_last_round}
Path(os.environ["RANK"]).write_text(json.dumps(numbers))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("method", ["random", "kin", "panm"])
def test_memory_and_bytes_of_two_ranks_are_as_planned(method: str) -> None:
    config = {**CONFIG, "method": method}
    Path("measure.py").write_text(MEASURE)
    done = torchrun(2, "measure", json.dumps(config))
    assert done.returncode == 0, done.stderr
    planned = plan(make(config), 2, "10Gbit", "cpu")
    for rank in ("0", "1"):
        found = json.loads(Path(rank).read_text())
        assert 0.5 < planned.memory / found["memory"] < 2.0
        assert found["bytes"] == CONFIG["peers"] * found["models"] * 4 * planned.parameters
    sent = json.loads(Path("0").read_text())["sent"]
    if method == "random":  # peers of panm and kin ask for fewer models of other ranks
        assert 0.95 < planned.network_bytes_per_rank / sent < 1.05


TRAVEL = """
import json, os, sys
from pathlib import Path

from homophily.experiments.planning import measured_parts
from homophily.simulation.configuration import make

found = [measured_parts(make(config), "cpu", Path(f"run-{i}")) for i, config in enumerate(json.loads(sys.argv[1]))]
numbers = [(one.rank_bytes, one.messages.received(1000, 2, 50)) for one in found]
Path(os.environ["RANK"]).write_text(json.dumps(numbers))
"""


@pytest.mark.usefixtures("here")
def test_a_plan_counts_all_that_travels_with_models() -> None:
    methods = [
        {"name": "dac"},  # shares tables
        {"name": "pens", "on": "peer"},  # models visit the data of others
        {"name": "panm", "metric": "panm"},  # with the model before training and the initial one
        {"name": "fedavg"},  # no model travels, but a sum
    ]
    small = {**CONFIG, "peers": 1000, "contacts": 50}
    Path("travel.py").write_text(TRAVEL)
    done = torchrun(2, "travel", json.dumps([{**small, "method": method} for method in methods]))
    assert done.returncode == 0, done.stderr
    *some, (sent, planned) = json.loads(Path("0").read_text())
    for found, wanted in some:
        assert 0.8 < wanted / found < 1.2
    assert sent == 0  # in messages with models
    assert planned == 2 * 8 * (10 * 17 + 17 * 10)  # bytes of a sum of models


@pytest.mark.usefixtures("here")
def test_each_rank_makes_the_samples_of_its_own_peers_only() -> None:
    small = {**CONFIG, "peers": 40, "contacts": 10, "method": "random", "rounds": 3}
    lines = [
        "import json, os",
        "from pathlib import Path",
        "from homophily.data import generated",
        "made = []",
        "split = generated.Generator._split",
        "generated.Generator._split = lambda self, ids, *rest: made.append(ids.tolist()) or split(self, ids, *rest)",
        "import homophily",
        f"homophily.run({small!r}, out='run', device='cpu')",
        "Path(os.environ['RANK']).write_text(json.dumps(made))",
    ]
    Path("watch.py").write_text("\n".join(lines))
    done = torchrun(3, "watch")
    assert done.returncode == 0, done.stderr
    made = [json.loads(Path(rank).read_text()) for rank in ("0", "1", "2")]
    assert [rank[0] for rank in made] == [list(range(14)), list(range(14, 27)), list(range(27, 40))]
    assert all(ids == rank[0] for rank in made for ids in rank)


def test_a_measured_run_writes_its_results_if_asked(tmp_path: Path) -> None:
    config = make({**CONFIG, "peers": 40, "contacts": 10, "method": "random"})
    measured_parts(config, "cpu", tmp_path / "without")
    measured_parts(config, "cpu", tmp_path / "with", results=True)
    assert not (tmp_path / "without" / "models.safetensors").exists()
    assert (tmp_path / "with" / "models.safetensors").exists()
