"""Config keys that are parameters of a function or class, validated against the annotations of these parameters."""

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
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "dict_type": "must be a table",
    "value_error": "{error}",
}


def accepted(function: Callable[..., Any], reserved: Collection[str] = ()) -> list[str] | None:
    """Return the config keys a function takes: its parameters without ``reserved``; None if it takes any key.

    reserved: parameters that the program itself passes.
    """
    parameters = _parameters(function).values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL and p.name not in reserved]


def must_take(function: Any, given: Sequence[str], owner: str, keys: Collection[str] = ()) -> None:
    """Raise a UserError if a function cannot be called with the positional arguments ``given`` and keywords ``keys``.

    owner: what the error message calls the function.
    """
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
    """Return the names of the parameters that have no default."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in _parameters(function).values() if p.default is p.empty and p.kind not in several]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return _signature(function).parameters


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only a type checker can resolve stays a string
        return inspect.signature(function)
    except ValueError as error:
        raise UserError(f"{function!r} has no signature to inspect: it must be written in Python") from error


def taken(function: Callable[..., Any], available: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the ``available`` arguments that the function has parameters for."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in available.items() if name in names}


def checked(
    table: str, owner: str, function: Callable[..., Any], keys: Mapping[str, Any], reserved: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of all keys of ``function``: ``keys``, and its defaults for the rest.

    Raises a UserError that names the first invalid key. table: the config table of the keys; owner: what the error
    message calls the function ("shift 'rotation'").
    """
    names = accepted(function, reserved)
    if names is not None:
        refuse_unknown(table, keys, names, keys_of(owner, names))
    fields, model = _fields(function, tuple(names or ()))
    known = {name: keys[name] for name in keys if name in fields}
    values = parsed(model, known, table)
    found = {name: getattr(values, field) for name, field in fields.items()}
    return found | {name: keys[name] for name in keys if name not in fields}


@cache
def _fields(function: Callable[..., Any], names: tuple[str, ...]) -> tuple[dict[str, str], type[pydantic.BaseModel]]:
    """Return field names by parameter name, and a pydantic model with these fields.

    A field is not called like its parameter, because a parameter may have the name of an attribute of BaseModel.
    """
    parameters = _parameters(function)
    fields, aliased = {name: f"key_{i}" for i, name in enumerate(names)}, {}
    for name, field in fields.items():
        annotation, default = parameters[name].annotation, parameters[name].default
        untyped = annotation is inspect.Parameter.empty or isinstance(annotation, str)
        info = pydantic.Field(... if default is inspect.Parameter.empty else default, alias=name)
        aliased[field] = (Any if untyped else annotation, info)
    settings = pydantic.ConfigDict(arbitrary_types_allowed=True)
    return fields, pydantic.create_model("Keys", __config__=settings, **aliased)  # type: ignore[call-overload]


def documented(function: Callable[..., Any], reserved: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """The JSON Schema of each key that a function takes: its type, bounds, default and ``description``.

    An annotation states its meaning: ``k: Annotated[int, pydantic.Field(ge=1, description="...")] = 4``.
    """
    _, model = _fields(function, tuple(accepted(function, reserved) or ()))
    return dict(model.model_json_schema().get("properties", {}))


def keys_of(owner: str, names: Collection[str]) -> str:
    """Return the part of an error message that lists the keys of ``owner`` ("method 'kin'")."""
    if not names:
        return f"there are no keys for {owner}"
    listed = ", ".join(names)
    return f"the only key of {owner} is {listed}" if len(names) == 1 else f"the keys of {owner} are {listed}"


def refuse_unknown(table: str, keys: Collection[str], allowed: Collection[str], listed: str = "") -> None:
    """Raise a UserError that names the first of ``keys`` that is not allowed.

    table: the config table of the keys, "" for the top level; listed: the end of the message, if it says more than
    "allowed keys: ...".
    """
    for key in keys:
        if key not in allowed:
            hint = get_close_matches(key, allowed, n=1)
            full = f"{table}.{key}" if table else key
            raise UserError(
                f"unknown key {full}"
                + (f" (did you mean {hint[0]}?)" if hint else "")
                + f": {listed or 'allowed keys: ' + ', '.join(allowed)}"
            )


def parsed(model: type[pydantic.BaseModel], values: Mapping[str, Any], table: str = "") -> Any:
    """Return ``values`` as an instance of the pydantic model; raise a UserError that names the first invalid key."""
    try:
        # Validated as JSON: types are strict, but a list is still accepted for a tuple.
        return model.model_validate_json(json.dumps(values), strict=True)
    except (TypeError, ValueError) as error:
        if not isinstance(error, pydantic.ValidationError):
            key, kind = _first_not_json(values, [table] * bool(table))
            raise UserError(f"{key}: must be a number, string, list or table, not {kind}") from error
        first = error.errors()[0]
        raise UserError(_message(first, table)) from None


def _first_not_json(value: Any, path: list[str]) -> tuple[str, str]:
    """Return the key path and the type name of the first nested value that JSON cannot represent."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in inner:
        try:
            json.dumps(part)
        except (TypeError, ValueError):
            return _first_not_json(part, [*path, str(key)])
    kind = type(value).__name__
    if callable(value) and hasattr(value, "__qualname__"):
        kind += f"; a class or function is named as a string, here '{value.__module__}:{value.__qualname__}'"
    return ".".join(path) or "the config", kind


def _message(error: Any, table: str) -> str:
    """Return the error message for one of pydantic's errors."""
    key = ".".join([table] * bool(table) + [str(part) for part in error["loc"]])
    if error["type"] == "missing":
        return f"{key} is missing and has no default"
    message = error["msg"][:1].lower() + error["msg"][1:]
    if error["type"] in _MESSAGES:
        message = _MESSAGES[error["type"]].format(**error.get("ctx", {}))
    return f"{key} = {json.dumps(error['input'])}: {message}"
