from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Command = Callable[..., tuple[int, str, str]]


def test_a_run_prints_what_the_guard_left_out_and_what_privacy_cost(command: Command) -> None:
    code, out, _ = command("run", "peers=8", "rounds=1", "method=random", "merge_guard=1", "data.validation=10")
    assert code == 0
    left_out = json.loads(Path("runs/random-digits-0/summary.json").read_text())["models_left_out"]
    (line,) = [line for line in out.splitlines() if "left out by merge_guard" in line]
    assert line.split()[-1] == str(left_out)
    assert "epsilon spent" not in out
    private = ("data.train=100", "training.batch=50", "training.epochs=1", "privacy.epsilon=8")
    code, out, _ = command("run", "peers=4", "rounds=1", "method=local", *private)
    assert code == 0
    (line,) = [line for line in out.splitlines() if "epsilon spent" in line]
    assert line.split()[-4:] == ["of", "8", "per", "sample"]
    assert "merge_guard" not in out


def test_families_are_listed_by_name_and_small_traffic_in_bytes(command: Command, here: Path) -> None:
    parts = ["test" if i // 4 % 5 == 0 else "train" for i in range(160)]
    rows = [f"s{i % 4},{i // 4 % 7},{i * i % 5},{i // 4 % 2},{part}" for i, part in enumerate(parts)]
    (here / "sites.csv").write_text("\n".join(["site,a,b,label,part", *rows]) + "\n")
    columns = ("data.peer=site", "data.target=label", "data.split=part", "data.scale={classes=2}")
    code, out, err = command("kin", "data=sites.csv", *columns, "privacy.epsilon=100")
    assert (code, "  family 0: 4 peers: s0, s1, s2, s3\n" in out) == (0, True), out + err
    assert f"\n{3 * 138} bytes sent per peer, " in out
