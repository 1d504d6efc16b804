"""Packages that only an extra installs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from homophily.errors import UserError


def imported(package: str, extra: str, purpose: str) -> Any:
    """Return an optional package or a module of it. Raises a UserError that names the extra if it is not installed.

    purpose: what needs the package, as the subject of the message.
    """
    try:
        return import_module(package)
    except ImportError as error:
        missing = package.partition(".")[0]
        raise UserError(f"{purpose} needs {missing}: pip install 'homophily[{extra}]'") from error
