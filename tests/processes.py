"""The command line in separate processes that tests can kill, watch and keep from writing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

# The server imports homophily once and forks a process for each command, so that a command starts at once.
# ``file_bytes`` is the largest file that the process may write; it simulates a full disk. With ``watch``, the process
# copies the run folder before each change: a copy is what a SIGKILL at that moment would leave.
SERVER = """
import json, os, resource, shutil, sys
import sklearn.datasets, torch._dynamo, torch.fx.experimental.symbolic_shapes  # imports of a first run
import homophily.cli.app

CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}

def watch(folder):
    inside, copies, busy = os.path.join(folder, "run"), 0, False

    def hook(event, arguments):
        nonlocal copies, busy
        if busy or event not in CHANGES or not isinstance(arguments[0], (str, os.PathLike)):
            return
        reads = event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if not reads and os.path.abspath(arguments[0]).startswith(inside):
            busy = True
            os.makedirs(os.path.join(folder, "killed"), exist_ok=True)
            if os.path.exists(inside):
                shutil.copytree(inside, os.path.join(folder, "killed", str(copies)))
            copies, busy = copies + 1, False

    sys.addaudithook(hook)

def execute(order):
    os.chdir(order["folder"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_TRUNC), number)
    if order["file_bytes"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"], order["file_bytes"]))
    if order["watch"]:
        watch(order["folder"])
    sys.argv = ["homophily", *order["words"]]
    try:
        homophily.cli.app.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    os._exit(code)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            execute(json.loads(line))
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(70)
    print(child, flush=True)
    sys.stdin.readline()
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
os._exit(0)
"""


def completed(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``homophily WORDS`` in ``folder`` in a process that imports everything anew, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "homophily", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **environment},
    )


@dataclass
class Ended:
    """The outcome of a process. ``code`` is its exit code, or minus the number of the signal that killed it."""

    code: int
    out: str
    err: str


class Processes:
    """Runs the command line in separate processes, one at a time."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(
        self,
        folder: Path,
        *words: str,
        kill_when: Callable[[], bool] | None = None,
        watch: bool = False,
        file_bytes: int = 0,
    ) -> Ended:
        """Run ``homophily WORDS`` in ``folder``; its run folder must be named run."""
        out, err = folder / "stdout", folder / "stderr"
        out.write_text("")
        err.write_text("")
        process = self._ask({"folder": str(folder), "words": words, "watch": watch, "file_bytes": file_bytes})
        if kill_when is not None:
            end = time.monotonic() + PATIENCE
            while not kill_when():
                assert time.monotonic() < end, err.read_text()
                time.sleep(0.001)
            os.kill(process, signal.SIGKILL)  # safe if it has ended: the server has not reaped it yet
        return Ended(self._ask("wait"), out.read_text(), err.read_text())

    def _ask(self, order: Any) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait(timeout=30)
