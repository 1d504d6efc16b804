"""Several processes on this machine that play the runs of one folder."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from pickle import PicklingError
from typing import Any

import torch

from homophily.errors import UserError
from homophily.experiments.queue import RunRequest
from homophily.experiments.sharing import POLL, Followers

_PATIENCE = 2.0  # seconds that workers have to stop after Ctrl-C, which reaches them too, and again after a signal


def play_in_processes(
    count: int,
    play: Callable[..., Any],
    arguments: Mapping[str, Any],
    requests: Sequence[RunRequest],
    followers: Followers,
) -> None:
    """Call ``play`` with the arguments in several new processes and wait for them; the torch threads are divided.

    A worker that fails or is killed leaves its run to the others, and in the end to the caller. An exception here, such
    as that of a callback, stops the workers. requests: the runs; followers: call their callbacks here.
    """
    spawn, threads = multiprocessing.get_context("spawn"), max(1, torch.get_num_threads() // count)
    workers = [spawn.Process(target=_work, args=(play, dict(arguments), threads), daemon=True) for _ in range(count)]
    try:
        _start(workers)
        while any(worker.is_alive() for worker in workers):
            followers.look(requests)
            time.sleep(POLL)
        followers.look(requests)
    except KeyboardInterrupt:
        _wait(workers)
        raise KeyboardInterrupt(*map(str, [request.out for request in requests][:1])) from None
    finally:
        _stop(workers)


def _start(workers: Sequence[SpawnProcess]) -> None:
    for worker in workers:
        try:
            worker.start()
        except (AttributeError, TypeError, PicklingError) as error:
            hint = "define functions and classes in a module, not in another function"
            raise UserError(f"workers: an argument cannot be sent to another process: {error}; {hint}") from error


def _work(play: Callable[..., Any], arguments: Mapping[str, Any], threads: int) -> None:
    """What a worker does. An error is reported by the caller, who meets it too when it plays what is left."""
    torch.set_num_threads(threads)
    with suppress(Exception, KeyboardInterrupt):
        play(**arguments)


def _stop(workers: Sequence[SpawnProcess]) -> None:
    for worker in workers:
        if worker.is_alive() and worker.pid is not None:
            os.kill(worker.pid, signal.SIGINT)
    _wait(workers)
    for worker in workers:
        if worker.is_alive():
            worker.kill()
            worker.join()


def _wait(workers: Sequence[SpawnProcess]) -> None:
    """Wait until the workers have ended, but not for long."""
    until = time.monotonic() + _PATIENCE
    for worker in workers:
        if worker.pid is not None:  # it was started
            worker.join(max(0.0, until - time.monotonic()))
