"""Evaluates claims: formulas over table cells (ROW.COLUMN, numbers, + - * /, comparisons, mean, max, min, abs)."""

from __future__ import annotations

import ast
import operator
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from homophily.errors import UserError

Cells = Mapping[str, Mapping[str, float]]  # by row and column

_SUMS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_ORDER: dict[type, Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., float]] = {"max": max, "min": min, "abs": abs}


class Unknown(Exception):
    """A cell in the claim has no value."""


def holds(check: str, cells: Cells) -> bool | None:
    """Return whether the claim holds; None if one of its cells was not computed."""
    try:
        return bool(_value(ast.parse(check, mode="eval").body, cells, check))
    except Unknown:
        return None
    except SyntaxError as error:
        raise UserError(f"claim {check!r}: {error.msg}") from None


def _value(node: ast.expr, cells: Cells, check: str) -> Any:
    def of(inner: ast.expr) -> Any:
        return _value(inner, cells, check)

    match node:
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.Attribute(value=ast.Name(id=row), attr=column):
            if column not in cells.get(row, {}):
                raise Unknown
            return cells[row][column]
        case ast.BinOp(op=op) if type(op) in _SUMS:
            return _SUMS[type(op)](of(node.left), of(node.right))
        case ast.UnaryOp(op=ast.USub()):
            return -of(node.operand)
        case ast.BoolOp(op=op):
            parts = [of(value) for value in node.values]
            return all(parts) if isinstance(op, ast.And) else any(parts)
        case ast.Compare(ops=ops) if all(type(op) in _ORDER for op in ops):
            values = [of(value) for value in (node.left, *node.comparators)]
            return all(_ORDER[type(op)](a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.Call(func=ast.Name(id="mean"), args=[ast.Name(id=row)]):
            if not cells.get(row):
                raise Unknown
            return statistics.fmean(cells[row].values())
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(of(argument) for argument in node.args))
    raise UserError(f"claim {check!r}: cannot read {ast.unparse(node)!r}")
