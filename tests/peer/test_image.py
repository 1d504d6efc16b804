"""The container image is built, and a peer runs in it, if there is a builder: docker, podman or buildah."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
TAG = "localhost/homophily-test"
USER = 1000
# Other bases and indices for machines without a registry, as NAME=VALUE separated by spaces
ARGUMENTS = [word for pair in os.environ.get("HOMOPHILY_BUILD_ARGS", "").split() for word in ("--build-arg", pair)]
PEER = """
rounds = 2
data = { name = "hospital-a.npz", train = 40 }
model = { name = "mlp", hidden = [8] }

[peer]
name = "hospital-a"
allow = ["hospital-a", "hospital-b"]
listen = ["127.0.0.1:17453"]
"""


def called(*words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def builder() -> tuple[str | None, str]:
    """The first builder that works here, or None and why the others do not."""
    reasons = []
    for name in ("docker", "podman", "buildah"):
        if shutil.which(name) is None:
            reasons.append(f"no {name}")
            continue
        asked = called(name, "info")
        if asked.returncode == 0:
            return name, ""
        reasons.append(f"{name}: {(asked.stderr.strip().splitlines() or ['it does not work'])[-1]}")
    return None, "; ".join(reasons)


class Image:
    """The image, and how its command is run in a folder."""

    def __init__(self, tool: str) -> None:
        self.tool, self._container = tool, ""
        layers = ["--layers"] if tool == "buildah" else []  # kept for the next build, as the others do
        done = called(tool, "build", *layers, "-f", "deploy/Containerfile", "-t", TAG, *ARGUMENTS, ".", timeout=1500)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        if tool == "buildah":
            self._container = called("buildah", "from", TAG, timeout=600).stdout.strip()
            self._settings = json.loads(called("buildah", "inspect", TAG).stdout)["OCIv1"]["config"]

    def homophily(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the image with these words after its entry point. folder: mounted at /peer."""
        if self.tool != "buildah":
            limits = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
            return called(self.tool, "run", "--rm", *limits, "-v", f"{folder}:/peer", TAG, *words)
        command = [*self._settings["Entrypoint"], *(words or self._settings["Cmd"])]  # buildah run uses neither
        return called("buildah", "run", "--volume", f"{folder}:/peer", self._container, "--", *command)

    def remove(self) -> None:
        if self._container:
            called("buildah", "rm", self._container)
        called(self.tool, "rmi", TAG)


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    tool, reason = builder()
    if tool is None:
        warnings.warn(f"NOT TESTED, no container builder works here: {reason}", stacklevel=1)
        pytest.skip(f"no container builder works here: {reason}")
    made = Image(tool)
    yield made
    made.remove()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_peer_runs_in_the_image(image: Image, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "hospital-a.npz", x=x, y=(x[:, 0] > 0).astype(int))
    (tmp_path / "peer.toml").write_text(PEER)
    for path in (tmp_path, *tmp_path.iterdir()):
        shutil.chown(path, USER, USER)
    issued = image.homophily(tmp_path, "cert", "init")
    assert issued.returncode == 0, issued.stderr
    assert image.homophily(tmp_path, "cert", "issue", "hospital-a", "--host", "127.0.0.1").returncode == 0
    early = image.homophily(tmp_path, "peer", "other.toml")
    assert (early.returncode, "other.toml" in early.stderr) == (2, True)

    done = image.homophily(tmp_path, "peer", "peer.toml", "--log-stderr", "--log-format", "json", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == 2
    messages = [json.loads(line)["message"] for line in done.stderr.splitlines() if line.startswith("{")]
    assert any("listens on 127.0.0.1:17453" in message for message in messages)
    assert any("has finished" in message for message in messages)
    again = image.homophily(tmp_path)  # the command of the image: the finished peer has nothing left to do
    assert again.returncode == 0, again.stderr
    assert {path.stat().st_uid for path in (tmp_path / "hospital-a").rglob("*")} == {USER}
