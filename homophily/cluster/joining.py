"""Joins the processes that torchrun started to one run."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from homophily.cluster.faults import Faults
from homophily.cluster.ranks import Ranks
from homophily.errors import UserError
from homophily.simulation.shards import ONE_PROCESS, Shards

TIMEOUT = "HOMOPHILY_RANK_TIMEOUT"  # environment variable: seconds
_DEFAULT_TIMEOUT = 600.0


def processes() -> int:
    """How many processes torchrun has started for this run; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else 1


def is_first() -> bool:
    """Whether this process decides, writes and prints."""
    return processes() == 1 or os.environ["RANK"] == "0"


def joined(device: torch.device) -> Shards:
    """The processes of this run. Call it in each of them, on the same kind of device."""
    return ONE_PROCESS if processes() == 1 else _ranks(device.type == "cuda")


@cache
def faults() -> Faults:
    """What this process knows of faults of others. Only for one of several processes."""
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timedelta(seconds=_timeout()),
    )
    name = f"homophily/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return Faults(PrefixStore(name, store), int(os.environ["RANK"]), processes(), _timeout())


@cache
def _ranks(on_gpus: bool) -> Ranks:
    watcher, own = faults(), not dist.is_initialized()
    watcher.watch_signals()  # the command line did it before: preparing may take long
    if own:
        dist.init_process_group(
            "gloo", store=PrefixStore("group", watcher.store), rank=int(os.environ["RANK"]),
            world_size=processes(), timeout=timedelta(seconds=_timeout()),
        )  # fmt: skip
    found = Ranks(watcher, _with_nccl() if on_gpus else None)
    if own:
        atexit.register(found.close)
    return found


def _with_nccl() -> dist.ProcessGroup | None:
    """A group with NCCL; None if ranks share a GPU, which NCCL refuses: rows then travel through main memory."""
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(local % torch.cuda.device_count())
    own = torch.tensor([here <= torch.cuda.device_count() and dist.is_nccl_available()])
    dist.all_reduce(own := own.to(torch.int64), dist.ReduceOp.MIN)
    if not bool(own):
        return None
    group: dist.ProcessGroup = dist.new_group(backend="nccl", timeout=timedelta(seconds=_timeout()))
    return group


def _timeout() -> float:
    """Seconds after which a rank that does not answer ends the run."""
    asked = os.environ.get(TIMEOUT, str(_DEFAULT_TIMEOUT))
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UserError(f"{TIMEOUT} = {asked!r}: must be a number of seconds above 0")
    return seconds
