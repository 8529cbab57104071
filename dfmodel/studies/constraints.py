"""Conditions on combinations of axis values: `system.nodes * 8 <= 1024 and system.chip != "b200_sxm"`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dfmodel.errors import InputError, did_you_mean
from dfmodel.units import quantity

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class Condition:
    """One condition over the axes `keys`; an axis is named in full, or by its last part where only one ends so.

    Texts with a unit ("3 TB/s") are numbers in base units. Raises InputError for what is no condition, or names no
    axis.
    """

    def __init__(self, text: str, keys: Iterable[str]) -> None:
        self.text, self._keys = text, tuple(keys)
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            raise InputError(f"where: {text}: cannot be read; write for example 'system.nodes * 8 <= 1024'") from None
        self._check(self._tree)

    def __call__(self, values: Mapping[str, Any]) -> bool:
        """Whether a combination is wanted. Raises InputError where it cannot be computed."""
        try:
            return bool(self._value(self._tree, values))
        except (TypeError, ZeroDivisionError) as error:
            shown = ", ".join(f"{k} = {v!r}" for k, v in values.items())
            raise InputError(f"where: {self.text}: {error} at {shown}") from None

    def _check(self, node: ast.expr) -> None:
        """Refuse names that are no axis and forms that are not computed, before any point is."""
        name = _dotted(node)
        if name is not None:
            self._key(name)
            return
        allowed = (ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Constant, ast.List, ast.Tuple)
        operators = [*getattr(node, "ops", []), *([node.op] if isinstance(node, ast.BinOp) else [])]
        known = all(type(o) in _ARITHMETIC or type(o) in _COMPARISONS for o in operators)
        known &= not isinstance(node, ast.UnaryOp) or isinstance(node.op, ast.Not | ast.USub)
        if not isinstance(node, allowed) or not known:
            raise InputError(f"where: {self.text}: only + - * / // %, comparisons, in, and, or, not are understood")
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._check(child)

    def _key(self, name: str) -> str:
        if name in self._keys:
            return name
        ending = [k for k in self._keys if k.endswith(f".{name}")]
        if len(ending) == 1:
            return ending[0]
        why = f"is the end of {' and of '.join(ending)}" if ending else f"is no axis{did_you_mean(name, self._keys)}"
        raise InputError(f"where: {self.text}: '{name}' {why}")

    def _value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        name = _dotted(node)
        if name is not None:
            return _plain(values[self._key(name)])
        if isinstance(node, ast.Constant):
            return _plain(node.value)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(child, values) for child in node.elts]
        if isinstance(node, ast.BoolOp):
            each = (self._value(child, values) for child in node.values)
            return all(each) if isinstance(node.op, ast.And) else any(each)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, values)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left, values), self._value(node.right, values)
            return _ARITHMETIC[type(node.op)](left, right)
        assert isinstance(node, ast.Compare)
        sides = [self._value(side, values) for side in (node.left, *node.comparators)]
        return all(_COMPARISONS[type(op)](a, b) for op, a, b in zip(node.ops, sides[:-1], sides[1:], strict=True))


def _dotted(node: ast.expr) -> str | None:
    """`system.chip.price` as a text, where the node is a chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _plain(value: Any) -> Any:
    found = quantity(value) if isinstance(value, str) else None
    return value if found is None else found[0]
