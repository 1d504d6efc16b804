"""The exit codes of the command ``homophily``."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. docs/command-line.md lists the codes."""

    DONE = 0  # the command has finished
    FAILED = (
        1  # every peer of a run has diverged, doctor found a fault, or an audit failed; with a traceback: our error
    )
    MISTAKE = 2  # an error that a user or an operator can correct; the message says which
    STOPPED = 130  # Ctrl-C; for a peer also SIGTERM
