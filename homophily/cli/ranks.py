"""The command line in one of the processes that torchrun started: one of them prints."""

from __future__ import annotations

from collections.abc import Callable

from homophily.cluster.faults import LostRankError, leave
from homophily.cluster.joining import faults, processes
from homophily.errors import UserError

_ON_RANKS = ("run", "compare")


def watch_ranks() -> None:
    """If torchrun ends this process because another has ended, say which one."""
    if processes() > 1:
        faults().watch_signals()


def refuse_ranks(command: str | None) -> None:
    """Refuse a command that several processes would do several times."""
    if processes() > 1 and command not in _ON_RANKS:
        wanted = "torchrun starts `homophily run` and `homophily compare` only"
        raise UserError(f"homophily {command}: {wanted}; leave out torchrun")


def one_speaks(error: Exception, message: str, say: Callable[[str], None]) -> None:
    """Print the message of an error, in one process only; the others end quietly."""
    if processes() == 1:
        say(message)
        return
    watcher = faults()
    speaks = watcher.speaks() if isinstance(error, LostRankError) else watcher.failed(message)
    if speaks:
        say(message)
    leave(2)
