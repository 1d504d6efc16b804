"""Evaluates claims: formulas over table cells (ROW.COLUMN, numbers, + - * /, comparisons, mean, max, min, abs)."""

from __future__ import annotations

import ast
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from homophily.errors import UserError

Cells = Mapping[str, Mapping[str, float]]  # by row and column

_SUMS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_ORDER: dict[type, Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq,
}  # fmt: skip
_ENOUGH = 3  # seeds of which a spread can be said
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


def cells_of(check: str) -> set[tuple[str, str | None]]:
    """Return the cells that a claim speaks of, as row and column; column None: the mean of the row."""
    tree = ast.parse(check, mode="eval")
    cells: set[tuple[str, str | None]] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=row), attr=column):
                cells.add((row, column))
            case ast.Call(func=ast.Name(id="mean"), args=[ast.Name(id=row)]):
                cells.add((row, None))
    return cells


def within_spread(check: str, means: Cells, by_seed: Sequence[Cells]) -> bool:
    """Return whether the claim holds if each comparison may miss by less than two standard errors over seeds.

    means: the cells' means over seeds; by_seed: the cells of each seed, three or more.
    """
    if len(by_seed) < _ENOUGH:
        return False

    def relaxed(node: ast.expr) -> bool:
        match node:
            case ast.BoolOp(op=op):
                parts = [relaxed(value) for value in node.values]
                return all(parts) if isinstance(op, ast.And) else any(parts)
            case ast.Compare():
                sides = [node.left, *node.comparators]
                return all(map(close, node.ops, sides, sides[1:]))
        return bool(_value(node, means, check))

    def close(op: ast.cmpop, left: ast.expr, right: ast.expr) -> bool:
        if bool(_value(ast.Compare(left, [op], [right]), means, check)):
            return True
        missed = abs(_value(left, means, check) - _value(right, means, check))
        differences = [_value(left, seed, check) - _value(right, seed, check) for seed in by_seed]
        return bool(missed < 2 * statistics.stdev(differences) / len(differences) ** 0.5)

    return relaxed(ast.parse(check, mode="eval").body)


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
