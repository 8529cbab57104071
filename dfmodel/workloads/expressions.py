"""Extents by name in graph files: whole numbers, names of parameters, and + - * / between them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated

from pydantic import PlainValidator

from dfmodel.errors import InputError, did_you_mean

#: Longest expression that is read.
MAX_LENGTH = 120


def _extent(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be a whole number or an expression such as 4*hidden")
    if isinstance(value, str) and len(value) > MAX_LENGTH:
        raise ValueError(f"an expression has at most {MAX_LENGTH} characters")
    return value


#: What a graph file may write where a count is expected: 128, "hidden", "4*hidden", "hidden/heads".
Extent = Annotated[int | str, PlainValidator(_extent)]

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(expression: Extent, names: Mapping[str, Fraction], where: str) -> Fraction:
    """The exact value of `expression`; nothing but arithmetic is understood, no code runs.

    Raises InputError, prefixed with `where`, for anything else, unknown names and division by zero.
    """
    if isinstance(expression, int):
        return Fraction(expression)
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{where}: cannot read '{expression}'; write something like 4*hidden") from None
    return _value(tree, names, f"{where}: '{expression}'")


def count(expression: Extent, names: Mapping[str, Fraction], where: str, least: int = 1) -> int:
    """`evaluate` where a whole number of at least `least` is meant."""
    value = evaluate(expression, names, where)
    if value.denominator != 1 or value < least:
        shown = f"'{expression}' = {float(value):g}" if isinstance(expression, str) else str(expression)
        raise InputError(f"{where}: must be a whole number of at least {least}, got {shown}")
    return int(value)


def parameter_values(
    parameters: Mapping[str, Extent], overrides: Mapping[str, object], where: str
) -> dict[str, Fraction]:
    """Values of a file's parameters in order (a later one may use the earlier), `overrides` put in first.

    Raises InputError with every problem at once.
    """
    found: dict[str, Fraction] = {}
    problems: list[str] = []
    for name, default in parameters.items():
        given = overrides.get(name, default)
        place = f"workload.{name}" if name in overrides else f"{where}: parameters.{name}"
        if isinstance(given, bool) or not isinstance(given, int | str):
            problems.append(f"{place}: must be a whole number or an expression, got {given!r}")
            continue
        try:
            value = evaluate(given, found, place)
        except InputError as error:
            problems += error.problems
            continue
        if value <= 0:
            problems.append(f"{place}: must be positive, got {float(value):g}")
        found[name] = value
    if problems:
        raise InputError(problems)
    return found


def _value(node: ast.expr, names: Mapping[str, Fraction], where: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise InputError(f"{where}: unknown name '{node.id}'{did_you_mean(node.id, names)}")
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, names, where), _value(node.right, names, where)
        if isinstance(node.op, ast.Div) and right == 0:
            raise InputError(f"{where}: division by zero")
        return _OPERATORS[type(node.op)](left, right)
    raise InputError(f"{where}: only whole numbers, names and + - * / are understood")
