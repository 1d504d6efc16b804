"""Five institutions, each in a folder of its own, found a federation and live through what docs/deploy.md tells."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homophily.peer.deploy import status
from tests.patience import MINUTE, until
from tests.peer.linked import free_port
from tests.peer.site import Site

LETTERS = "abcde"
SHARED = 'rounds = {rounds}\nextra_metrics = ["tests.peer.field:pause"]\nmodel = {{ name = "mlp", hidden = [8] }}\n'


class Hospital(Site):
    """A member with its own data and at most one running peer."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder)
        self.name, self.port = folder.name, free_port()
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(60, 4)).astype(np.float32)
        np.savez(folder / "patients.npz", x=x, y=(x[:, 0] > 0).astype(int))
        self.peer: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        self.peer = self.start("out.log", "peer", "peer.toml")

    def end(self) -> int:
        assert self.peer is not None
        return self.peer.wait(90)

    def stop(self) -> int:
        assert self.peer is not None
        self.peer.send_signal(signal.SIGTERM)
        return self.end()

    @property
    def status(self) -> dict[str, Any]:
        return status(self.folder / self.name) if (self.folder / self.name / "status.json").exists() else {}

    @property
    def log(self) -> str:
        return self.printed(f"{self.name}/peer.log")


class Authority(Site):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.at = f"127.0.0.1:{free_port()}"
        (folder / "shared.toml").write_text(SHARED.format(rounds=100_000))
        self.type("federation", "init", "tumours", "--settings", "shared.toml", "--at", self.at)
        self.start("serve.log", "federation", "serve")
        until(lambda: "the authority listens on" in self.printed("serve.log"), "the service starts")

    def admit(self, new: Hospital) -> None:
        """Invite a hospital, and confirm the code that its operator reads out."""
        token = self.type("federation", "invite", new.name)
        join = new.start("join.log", "join", token, "--listen", f"127.0.0.1:{new.port}", "--data", "patients.npz")
        until(lambda: "code: " in new.printed("join.log"), f"{new.name} has a code")
        code = re.search(r"code: (\d{3}) (\d{3})", new.printed("join.log"))
        assert code is not None
        assert new.name in self.type("federation", "requests")
        self.type("federation", "confirm", new.name, code[1], code[2])
        assert join.wait(60) == 0, new.printed("join.log")

    @property
    def version(self) -> int:
        return int(json.loads(self.type("federation", "show", "--json"))["version"])


class Federation:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "authority")
        self.hospitals = {letter: Hospital(folder / f"hospital-{letter}", i) for i, letter in enumerate(LETTERS)}

    def together(self, letters: str) -> None:
        """Wait until these hospitals, and nobody else, are linked with one another and play on."""
        names = {f"hospital-{letter}" for letter in letters}
        before = {letter: self.hospitals[letter].status.get("round", 0) for letter in letters}
        for letter in letters:
            one = self.hospitals[letter]
            until(
                lambda one=one: set(one.status.get("neighbours", [])) == names - {one.name}, f"the links of {one.name}"
            )
            until(lambda one=one, letter=letter: one.status["round"] > before[letter], f"{one.name} plays on")

    def close(self) -> None:
        for site in (self.authority, *self.hospitals.values()):
            site.close()


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_five_institutions_run_a_federation_without_editing_one_anothers_files(federation: Federation) -> None:
    authority, (a, b, c, d, e) = federation.authority, federation.hospitals.values()
    for one in (a, b, c, d, e):
        authority.admit(one)
        one.run()
    federation.together("abcde")
    assert json.loads(a.type("doctor", "peer.toml", "--json"))["ok"]

    authority.type("federation", "remove", "hospital-e")  # one leaves
    began = time.monotonic()
    assert e.end() == 2
    federation.together("abcd")
    assert time.monotonic() - began < MINUTE
    assert "hospital-e is not a member of tumours" in e.log

    authority.type("federation", "revoke", "hospital-d")  # a stolen key
    assert d.end() == 2
    federation.together("abc")
    assert "is revoked" in d.log
    for kind in ("pem", "key"):
        shutil.move(d.folder / f"certs/hospital-d.{kind}", d.folder / f"stolen.{kind}")
    played = d.status["round"]
    authority.admit(d)
    d.run()
    federation.together("abcd")
    assert d.status["round"] >= played  # with its file and its state

    assert c.stop() == 130  # one is away while the settings change
    (authority.folder / "shared.toml").write_text(SHARED.format(rounds=200_000))
    authority.type("federation", "share", "shared.toml")
    until(lambda: all(one.status["rounds"] == 200_000 for one in (a, b, d)), "the new settings apply")
    c.run()
    federation.together("abcd")
    assert c.status["membership"] == authority.version
