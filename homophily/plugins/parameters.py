"""The keys of a config table that belong to a function or class: its parameters, checked against its annotations."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import pydantic

from homophily.errors import UserError

_MESSAGES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be finite",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "dict_type": "must be a table",
    "value_error": "{error}",
}


def accepted(function: Callable[..., Any], reserved: Collection[str] = ()) -> list[str] | None:
    """The keys a function takes, without those the program passes itself; None: it takes any."""
    parameters = _parameters(function).values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL and p.name not in reserved]


def must_take(function: Any, given: Sequence[str], owner: str, keys: Collection[str] = ()) -> None:
    """A sentence where a function cannot be called with what it is ``given``, in that order, and ``keys`` by name."""
    wanted = f"({', '.join([*given, *keys])})"
    if not callable(function):
        raise UserError(f"{owner} must be a function of {wanted}, not {function!r}")
    signature = _signature(function)
    try:
        signature.bind(*given, **dict.fromkeys(keys))
    except TypeError:
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        takes = signature.replace(parameters=plain, return_annotation=signature.empty)
        raise UserError(f"{owner} must take {wanted}, not {takes}") from None


def required(function: Callable[..., Any]) -> list[str]:
    """The parameters that have no default."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in _parameters(function).values() if p.default is p.empty and p.kind not in several]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return _signature(function).parameters


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only a type checker can resolve stays a text
        return inspect.signature(function)
    except ValueError as error:
        raise UserError(f"{function!r} does not say what parameters it takes: it must be written in Python") from error


def taken(function: Callable[..., Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Of what the program can tell a function, what it has parameters for."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in told.items() if name in names}


def checked(
    table: str, owner: str, function: Callable[..., Any], keys: Mapping[str, Any], reserved: Collection[str] = ()
) -> dict[str, Any]:
    """All keys of ``function`` with ``keys`` over its defaults, or one sentence about the first that is wrong.

    table: the config table they stand in; owner: what they belong to, in words ("the shift rotation").
    """
    names = accepted(function, reserved)
    refuse_unknown(table, keys, [*keys] if names is None else names, f"{owner} has")
    fields, model = _fields(function, tuple(names or ()))
    known = {name: keys[name] for name in keys if name in fields}
    values = parsed(model, known, table)
    found = {name: getattr(values, field) for name, field in fields.items()}
    return found | {name: keys[name] for name in keys if name not in fields}


@cache
def _fields(function: Callable[..., Any], names: tuple[str, ...]) -> tuple[dict[str, str], type[pydantic.BaseModel]]:
    """A model of some parameters and its fields by name: not the names, which may be BaseModel's own attributes."""
    parameters = _parameters(function)
    fields, aliased = {name: f"key_{i}" for i, name in enumerate(names)}, {}
    for name, field in fields.items():
        annotation, default = parameters[name].annotation, parameters[name].default
        vague = annotation is inspect.Parameter.empty or isinstance(annotation, str)
        given = pydantic.Field(... if default is inspect.Parameter.empty else default, alias=name)
        aliased[field] = (Any if vague else annotation, given)
    settings = pydantic.ConfigDict(arbitrary_types_allowed=True)
    return fields, pydantic.create_model("Keys", __config__=settings, **aliased)  # type: ignore[call-overload]


def documented(function: Callable[..., Any], reserved: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """The JSON Schema of each key that a function takes: its type, bounds, default and ``description``.

    An annotation states its meaning: ``k: Annotated[int, pydantic.Field(ge=1, description="...")] = 4``.
    """
    _, model = _fields(function, tuple(accepted(function, reserved) or ()))
    return dict(model.model_json_schema().get("properties", {}))


def refuse_unknown(table: str, keys: Collection[str], allowed: Collection[str], has: str) -> None:
    """A sentence about the first of ``keys`` that is not allowed."""
    for key in keys:
        if key not in allowed:
            hint = get_close_matches(key, allowed, n=1)
            full = f"{table}.{key}" if table else key
            raise UserError(
                f"unknown key {full}"
                + (f" (did you mean {hint[0]}?)" if hint else "")
                + f": {has} {', '.join(allowed) or 'no keys'}"
            )


def parsed(model: type[pydantic.BaseModel], values: Mapping[str, Any], table: str = "") -> Any:
    """``values`` as the pydantic model, or one sentence about the first key that is wrong."""
    try:
        # Through JSON: strict about types, and lists may still fill tuples.
        return model.model_validate_json(json.dumps(values), strict=True)
    except (TypeError, ValueError) as error:
        if not isinstance(error, pydantic.ValidationError):
            key, kind = _unfit(values, [table] * bool(table))
            raise UserError(f"{key}: must be a number, text, list or table, not a {kind}") from error
        first = error.errors()[0]
        raise UserError(_sentence(first, table)) from None


def _unfit(value: Any, path: list[str]) -> tuple[str, str]:
    """Where in nested values the first one is that JSON cannot hold, and its type."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in inner:
        try:
            json.dumps(part)
        except (TypeError, ValueError):
            return _unfit(part, [*path, str(key)])
    return ".".join(path) or "the config", type(value).__name__


def _sentence(error: Any, table: str) -> str:
    key = ".".join([table] * bool(table) + [str(part) for part in error["loc"]])
    if error["type"] == "missing":
        return f"{key} is missing and has no default"
    message = error["msg"][:1].lower() + error["msg"][1:]
    if error["type"] in _MESSAGES:
        message = _MESSAGES[error["type"]].format(**error.get("ctx", {}))
    return f"{key} = {json.dumps(error['input'])}: {message}"
