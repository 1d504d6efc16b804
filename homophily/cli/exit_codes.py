"""The exit codes of the command ``homophily``."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. docs/command-line.md lists the codes."""

    DONE = 0  # the command has finished
    FAILED = 1  # every peer of a run has diverged, or doctor found a fault; with a traceback: an error in homophily
    MISTAKE = 2  # an error that a user or an operator can correct; the message says which
    STOPPED = 130  # Ctrl-C; for a peer also SIGTERM
