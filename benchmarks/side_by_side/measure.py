"""Runs a job in its environment and reads the result; a failure is a result too."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from side_by_side.job import Answer, Job

BENCHMARKS = Path(__file__).resolve().parents[1]
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def measure(python: Path, script: str, job: Job, torchrun: bool, limit: float) -> Answer:
    """Run ``side_by_side.SCRIPT`` with a Python for at most ``limit`` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        request, result = Path(folder) / "job.json", Path(folder) / "result.json"
        request.write_text(json.dumps(asdict(replace(job, result=str(result)))), encoding="utf-8")
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={job.processes}"] if torchrun else []
        paths = [str(BENCHMARKS), str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        environment |= {"OMP_NUM_THREADS": str(job.threads)}
        command = [str(python), *launcher, "-m", f"side_by_side.{script}", str(request)]
        with subprocess.Popen(
            command, env=environment, cwd=folder, text=True, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as child:  # fmt: skip
            try:
                _, errors = child.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)  # its own children too
                return Answer(failure=f"no answer within {limit:.0f} s")
        if child.returncode or not result.exists():
            return Answer(failure=f"failed: {_reason(errors)}")
        return Answer.read(result)


def _reason(text: str) -> str:
    """Return the last line of the traceback; launchers print their own summary after it."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "ChildFailedError" not in line]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception|Exit)\b", line)]
    reason = (errors or lines or ["no reason given"])[-1]
    return reason.replace(str(BENCHMARKS.parent), ".").replace(sys.prefix, "").replace("|", "/")
