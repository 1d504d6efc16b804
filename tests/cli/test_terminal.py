"""What commands show on a terminal: progress bars, and sparklines below a comparison."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

SMALL = ("peers=8", "rounds=2", "data.test=20", "method.k=3")


def on_a_terminal(columns: int, *words: str, both: bool = False) -> tuple[int, str, str]:
    """Run a command with stderr, or both outputs, on a pseudo-terminal; return its code, what it shows, and stdout."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    shown = bytearray()
    with subprocess.Popen(
        [sys.executable, "-c", "from homophily.cli.app import main; main()", *words],
        stdout=theirs if both else subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": str(columns)},
    ) as child:
        os.close(theirs)
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        out = child.stdout.read() if child.stdout is not None else b""
    os.close(ours)
    return child.returncode, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()), out.decode()


@pytest.mark.usefixtures("here")
def test_progress_is_shown_on_a_terminal_only() -> None:
    """The same run with stderr on a pseudo-terminal draws a bar there; stdout stays as it is."""
    code, shown, out = on_a_terminal(100, "run", *SMALL, "--json")
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    assert "accuracy" in summary
    (*_, last) = (line for line in re.split(r"[\r\n]", shown) if "same-cluster" in line)
    assert re.fullmatch(r"rounds ━+ 2/2 accuracy [\d.]+ +same-cluster \d+% 00:00", last.strip())
    assert f"accuracy {summary['accuracy']:.4g} " in last


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("columns", "beside"), [(80, False), (120, True)])
def test_a_comparison_on_a_terminal_ends_with_sparklines(columns: int, beside: bool) -> None:
    words = ("compare", *SMALL, "methods=local,oracle", "seeds=0,1", "--out", "both")
    code, shown, _ = on_a_terminal(columns, *words, both=True)
    assert code == 0
    lines = shown[shown.rindex("accuracy, %") :].splitlines()
    assert max(map(len, lines)) <= columns
    curves = [line.split() for line in lines if set(line) & set("▁▂▃▄▅▆▇█")]
    assert [line[0] for line in curves] == ["local", "oracle"]
    assert [len(line[-1]) for line in curves] == [2, 2]
    assert ("by round" in lines[2], len(curves[0]) > 2) == (beside, beside)
