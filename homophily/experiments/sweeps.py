"""Sweeps: lists of values for config keys, and all combinations of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import product
from typing import Any

from homophily.config.overlay import NAMED, assignment, flat
from homophily.errors import UserError

Combination = dict[str, Any]  # a value of each swept key, by dotted name


def combinations(sweep: Any) -> list[Combination]:
    """All combinations of the swept values; one without values if nothing is swept.

    sweep: the values of each key, as a list or as a string with commas; keys are dotted or nested.
    """
    if not isinstance(sweep, Mapping) or not all(isinstance(key, str) for key in sweep):
        raise UserError(f"sweep = {sweep!r}: must be keys, each with a list of values, as sweep.method.k=1,2,4")
    listed = {_full(key): _values(key, value) for key, value in flat(sweep).items()}
    return [dict(zip(listed, values, strict=True)) for values in product(*listed.values())]


def _full(key: str) -> str:
    """The dotted name of a swept key: a table stands for its name. Raises UserError if the key cannot be swept."""
    full = f"{key}.name" if key in NAMED or key == "training.objective" else key
    if full == "headline.name":
        raise UserError("sweep.headline: runs with different headline metrics have no score in common")
    if full in ("seed", "seeds", "method.name", "methods"):
        instead = "seeds=0,1,2" if full.startswith("seed") else "methods=panm,kin"
        raise UserError(f"sweep.{key}: a comparison takes {instead} instead")
    if full.startswith("method.") and full.count(".") > 1:
        last = full.rpartition(".")[2]
        raise UserError(f"sweep.{key}: sweep method.{last}, which goes to the methods that have this key")
    return full


def _values(key: str, given: Any) -> list[Any]:
    values = _parsed(given) if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else [given]
    if not values or any(value in values[:i] for i, value in enumerate(values)):
        raise UserError(f"sweep.{key} = {given!r}: must be different values separated by commas")
    return values


def _parsed(text: str) -> list[Any]:
    """The values of ``1,2,4``, ``torus,full`` or ``[0,90],[0,180]``."""
    try:
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [assignment(f"value={part.strip()}")[1] for part in text.split(",") if part.strip()]
