"""What several commands print: a result, and how to continue after Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from homophily.cli.exit_codes import ExitCode
from homophily.cluster.joining import is_first


@contextmanager
def stoppable(how_to_continue: Callable[[Path], str]) -> Iterator[None]:
    """On Ctrl-C, print how to continue the run and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt as stop:
        how = f"; {how_to_continue(Path(stop.args[0]))}" if stop.args else ""
        if is_first():
            Console(stderr=True, soft_wrap=True).print(f"stopped{escape(how)}", highlight=False)
        raise SystemExit(ExitCode.STOPPED) from None


def print_result(result: dict[str, Any], as_json: bool, otherwise: Callable[[], object]) -> None:
    """Print a result as one JSON object, or as ``otherwise`` does."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        otherwise()
