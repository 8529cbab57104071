"""Grids of rows x columns of chips on a system's topology, for work that is divided in two ways at once.

A grid gives each dimension of the topology a factor for the chips of a column (which hold different rows of the work)
and a factor for those of a row. One of the two is the inner one: its members are neighbours where both use a dimension.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dfmodel.errors import InputError
from dfmodel.systems.network import Dimension, Group, Part, factorizations

#: Where the chips need not all be used, a dimension is also tried cut down to a multiple of these (awkward numbers of
#: nodes), with up to this share of it idle.
ROUND = (4, 8, 16, 32, 64)
MOST_IDLE = 1 / 16

#: More grids than this are not enumerated.
MOST_GRIDS = 200_000


@dataclass(frozen=True)
class Grid:
    """`column` is the group of chips that share columns of the work (one per grid row), `row` those that share rows."""

    column: Group
    row: Group
    rows_inner: bool

    @property
    def rows(self) -> int:
        return self.column.size

    @property
    def columns(self) -> int:
        return self.row.size

    @property
    def chips(self) -> int:
        return self.rows * self.columns

    def describe(self) -> dict[str, object]:
        """Of result.json: the sizes and where they lie."""
        return {
            "grid_rows": self.rows,
            "grid_columns": self.columns,
            "placement": {"grid_rows": str(self.column), "grid_columns": str(self.row)},
        }


def grids(
    dimensions: Sequence[Dimension],
    rows: int | None = None,
    columns: int | None = None,
    use_all_chips: bool = False,
) -> list[Grid]:
    """Every grid on the dimensions (innermost first), of so many `rows` and `columns` where they are given.

    Each dimension is used whole or, unless `use_all_chips`, cut down to a round size (see ROUND); with both numbers
    given, as they divide. Raises InputError where none exists, naming what is short and the nearest grids that do.
    """
    chips = math.prod(d.size for d in dimensions)
    asked = [(n, v) for n, v in (("plan.grid_rows", rows), ("plan.grid_columns", columns)) if v is not None]
    needed = math.prod(v for _, v in asked)
    if needed > chips:
        shown = " x ".join(f"{n} {v:,}" for n, v in asked)
        raise InputError(f"{shown}: needs {needed:,} chips, the system has {chips:,} ({needed - chips:,} short)")
    both = rows is not None and columns is not None
    tables = [_splits(d.size, both, use_all_chips) for d in dimensions]
    found: dict[tuple[Group, Group], Grid] = {}
    for rows_inner in (True, False):
        first, second = (rows, columns) if rows_inner else (columns, rows)
        kept = [[(i, o) for i, o in t if _divides(i, first) and _divides(o, second)] for t in tables]
        count = math.prod(len(t) for t in kept)
        if count > MOST_GRIDS:
            raise InputError(
                f"plan: {count:,} grids on {' x '.join(str(d.size) for d in dimensions)} chips; at most "
                f"{MOST_GRIDS:,}: set plan.use_all_chips=true, or state plan.grid_rows"
            )
        for factors in itertools.product(*kept):
            if not (_is(math.prod(i for i, _ in factors), first) and _is(math.prod(o for _, o in factors), second)):
                continue
            inner, outer = _groups(dimensions, factors)
            column, row = (inner, outer) if rows_inner else (outer, inner)
            found.setdefault((column, row), Grid(column, row, rows_inner))
    if not found:
        raise InputError(_no_grid(dimensions, rows, columns, chips))
    return list(found.values())


def sub_grids(
    dimensions: Sequence[Dimension],
    rows: int | None,
    columns: int | None,
    use_all_chips: bool,
    wanted: Callable[[int, int], bool],
) -> list[Grid]:
    """Grids whose factors divide every dimension, chips left idle unless `use_all_chips`, of `wanted` rows and columns.

    Of placements that cost the same by every measure (the same group sizes and strides) one is kept. Raises InputError
    where a number of rows or columns is asked for that needs more chips than there are, or cannot be placed.
    """
    chips = math.prod(d.size for d in dimensions)
    needed = (rows or 1) * (columns or 1)
    if needed > chips:
        raise InputError(
            f"plan.grid_rows x plan.grid_columns: {rows or 1:,} x {columns or 1:,} needs {needed:,} chips, the system "
            f"has {chips:,} ({needed - chips:,} short)"
        )
    names = ("inner", "outer") if use_all_chips else ("inner", "outer", "idle")
    table = factorizations(dimensions, names)
    sizes = table.prod(axis=2)
    found: dict[tuple[Group, Group], Grid] = {}
    possible = {(a, b) for a, b in np.unique(sizes[:, :2], axis=0).tolist()}
    for rows_inner in (True, False):
        good = {
            (a, b)
            for a, b in possible
            if _is((a if rows_inner else b), rows) and _is((b if rows_inner else a), columns)
            and wanted(*((a, b) if rows_inner else (b, a)))
        }  # fmt: skip
        for row, (a, b) in zip(table.tolist(), sizes[:, :2].tolist(), strict=True):
            if (a, b) in good:
                inner, outer = _groups(dimensions, list(zip(row[0], row[1], strict=True)))
                column, across = (inner, outer) if rows_inner else (outer, inner)
                found.setdefault((column, across), Grid(column, across, rows_inner))
    if not found and (rows is not None or columns is not None):
        sides = {n for pair in possible for n in pair}
        for name, value in (("plan.grid_rows", rows), ("plan.grid_columns", columns)):
            if value is not None and value not in sides:
                near = sorted(sorted(sides, key=lambda n: abs(n - value))[:3])
                shown = ", ".join(map(str, near))
                raise InputError(f"{name}: {value} does not divide the system's dimensions; nearest that do: {shown}")
    return list(found.values())


def _splits(size: int, any_used: bool, use_all: bool) -> list[tuple[int, int]]:
    """(inner, outer) factors of a dimension: of its whole size, of nearly all of it, or of any part of it."""
    if any_used:
        return [(inner, outer) for inner in range(1, size + 1) for outer in range(1, size // inner + 1)]
    used = {size}
    if not use_all:
        used |= {n for m in ROUND if (n := size - size % m) >= size * (1 - MOST_IDLE)}
    return [(inner, n // inner) for n in sorted(used, reverse=True) for inner in range(1, n + 1) if n % inner == 0]


def _divides(factor: int, whole: int | None) -> bool:
    return whole is None or whole % factor == 0


def _is(found: int, wanted: int | None) -> bool:
    return wanted is None or found == wanted


def _groups(dimensions: Sequence[Dimension], factors: Sequence[tuple[int, int]]) -> tuple[Group, Group]:
    inner = Group(tuple(Part(d, i) for d, (i, _) in zip(dimensions, factors, strict=True)))
    outer = Group(tuple(Part(d, o, i if o > 1 else 1) for d, (i, o) in zip(dimensions, factors, strict=True)))
    return inner, outer


def _no_grid(dimensions: Sequence[Dimension], rows: int | None, columns: int | None, chips: int) -> str:
    """Why no grid is as asked, and which numbers near it can be placed."""
    whole = {math.prod(i for i, _ in f) for f in itertools.product(*(_divisor_pairs(d.size) for d in dimensions))}
    shown = []
    for name, value in (("plan.grid_rows", rows), ("plan.grid_columns", columns)):
        if value is not None and value not in whole:
            near = sorted(sorted(whole, key=lambda n: abs(n - value))[:3])
            shown.append(f"{name} {value} cannot be placed on {' x '.join(str(d.size) for d in dimensions)} chips; "
                         f"nearest that can: {', '.join(map(str, near))}")  # fmt: skip
    if shown:
        return "; ".join(shown)
    both = f"{rows or chips // (columns or 1)} x {columns or chips // (rows or 1)}"
    return f"plan: a grid of {both} cannot be placed on {' x '.join(str(d.size) for d in dimensions)} chips"


def _divisor_pairs(size: int) -> list[tuple[int, int]]:
    return [(i, size // i) for i in range(1, size + 1) if size % i == 0]
