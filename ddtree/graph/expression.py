"""Arithmetic over named dimensions: `heads * (nope + rope)`, `(nope + rope) ** -0.5`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from warnings import catch_warnings, simplefilter

Number = int | float
Expression = int | float | str  # what YAML may write where a number is wanted

_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_MAX_TEXT, _MAX_VALUE = 200, 2**53


class ExpressionError(ValueError):
    """An expression that cannot be read or evaluated; the message says why."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    if len(text) > _MAX_TEXT:
        raise ExpressionError(f"an expression of {len(text)} characters is too long (limit {_MAX_TEXT})")
    try:
        with catch_warnings():
            simplefilter("ignore")  # Python's advice on doubtful literals is not for the readers of a YAML file
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text!r} is not an arithmetic expression") from None


def _bounded(value: Number) -> Number:
    if isinstance(value, complex) or not abs(value) <= _MAX_VALUE:
        raise ExpressionError("the value is not a real number of at most 2**53")
    return value


def _evaluate(node: ast.expr, names: Mapping[str, Number]) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            near = get_close_matches(node.id, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known names: {', '.join(sorted(names))}"
            raise ExpressionError(f"unknown name {node.id!r}{hint}")
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluate(node.left, names), _evaluate(node.right, names)
        if isinstance(node.op, ast.Pow) and abs(right) > 64:
            raise ExpressionError("an exponent above 64 is surely a mistake")
        try:
            value = _OPERATORS[type(node.op)](left, right)
        except (ZeroDivisionError, OverflowError) as e:
            raise ExpressionError(str(e)) from None
        return _bounded(value)
    raise ExpressionError("only numbers, names, + - * / // % ** and parentheses are allowed")


def evaluate(expression: Expression, names: Mapping[str, Number]) -> Number:
    """Value of a number or of an expression over `names`. Raises ExpressionError."""
    return _bounded(_evaluate(_parse(expression), names) if isinstance(expression, str) else expression)


def evaluate_int(expression: Expression, names: Mapping[str, Number]) -> int:
    """Like evaluate, but the value must be whole (`8 / 2` is)."""
    value = evaluate(expression, names)
    if value != int(value):
        raise ExpressionError(f"expected a whole number, found {value}")
    return int(value)


def names_in(expression: Expression) -> set[str]:
    """The names that an expression mentions."""
    if not isinstance(expression, str):
        return set()
    return {node.id for node in ast.walk(_parse(expression)) if isinstance(node, ast.Name)}
