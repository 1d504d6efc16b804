"""Finds out which rank of a run has ended, from what the others leave in torchrun's store."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

from torch._C._distributed_c10d import Store

from homophily.errors import UserError

_GRACE = 5.0  # seconds in which the other ranks say that they are still there; torchrun kills them after 30
_POLL = 0.05
_HINT = "; a run that has begun continues after its last checkpoint with --resume FOLDER"


class LostRankError(UserError):
    """A rank of the run has ended or does not answer."""


class StoppedRank(BaseException):
    """This rank was told to end.

    It is raised in the code that runs just then, which may catch exceptions, so it is none of them.
    """

    def __init__(self, error: LostRankError) -> None:
        super().__init__(str(error))
        self.error = error


class Faults:
    """What this rank says and hears when something goes wrong."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._noticed = False

    def lost(self, error: Exception) -> LostRankError:
        """The error to raise after a message to or from another rank has failed."""
        late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        what = f"did not answer for {self._timeout:g} seconds" if late else "has ended"
        return self._verdict(what, f"a message between the ranks failed: {error}")

    @property
    def noticed(self) -> bool:
        """Whether this rank knows that the run has ended."""
        return self._noticed

    def watch_signals(self) -> None:
        """If torchrun or a scheduler ends this rank, raise ``StoppedRank`` in the main thread.

        Code that handles the signal itself keeps its handler.
        """
        default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if default and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._told_to_end)

    def _told_to_end(self, number: int, frame: FrameType | None) -> None:
        if not self._noticed:
            raise StoppedRank(self._verdict("has ended", "the run was stopped"))

    def _verdict(self, what: str, otherwise: str) -> LostRankError:
        """What has happened to a rank; otherwise: what to say if all ranks answer."""
        self._noticed = True
        missing, failed = self._missing()
        if failed:  # it has printed why
            return LostRankError(f"rank {failed[0]} of {self._size} has failed{_HINT}")
        if not missing:
            return LostRankError(f"{otherwise}{_HINT}")
        which = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {self._size}"
        return LostRankError(f"{which} {what if len(missing) == 1 else what.replace('has', 'have')}{_HINT}")

    def failed(self, message: str) -> bool:
        """Say that this rank fails; returns whether it is the one to print the message.

        The ranks often fail for the same reason: then the first of them prints it.
        """
        with suppress(RuntimeError):  # the store may be gone
            if not self._noticed:
                self.store.set(f"failed/{self._rank}", message)
            return self.store.add(f"said/{message}", 1) == 1
        return True

    def speaks(self) -> bool:
        """Whether this rank is the first of those that noticed a fault, and so the one to print it."""
        with suppress(RuntimeError):
            return not any(self.store.check([f"alive/{rank}"]) for rank in range(self._rank))
        return True

    def _missing(self) -> tuple[list[int], list[int]]:
        """The ranks that say nothing, and those that say that they have failed."""
        others = [rank for rank in range(self._size) if rank != self._rank]
        silent = others
        with suppress(RuntimeError):
            self.store.set(f"alive/{self._rank}", "")
            until = time.monotonic() + _GRACE
            while silent and time.monotonic() < until:
                heard = [r for r in others if self.store.check([f"alive/{r}"]) or self.store.check([f"failed/{r}"])]
                silent = [rank for rank in others if rank not in heard]
                time.sleep(_POLL)
            return silent, [rank for rank in others if self.store.check([f"failed/{rank}"])]
        return [0], []  # the store was in rank 0, or on its machine


def leave(code: int) -> None:
    """End this process now: torch's threads may still wait for ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
