"""Lower bounds of HPL factorisations on many grids at once, without pricing a collective.

A step takes at least its update, and at least the panel, broadcast and exchange beside it. Updates are summed exactly;
what the rest is longer by is bounded over ranges of steps: the rest at a range's cheapest step less its dearest update.
A broadcast or gathering is no faster than the links of one dimension bring its bytes into a part of the group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfmodel.mapping.grids import Grid
from dfmodel.mapping.hpl_cost import HplTimer, Sizes, steps
from dfmodel.systems.network import Group

#: Ends of the ranges of steps, as shares of all: finer where little is left and updates are short.
RANGES = np.linspace(0, 1, 25)[1:] ** 2


def s_per_byte(group: Group, whole: bool) -> float:
    """Seconds a byte of a message takes at least to reach all of a group: for every dimension, over its links into all
    chips that share a position in it. `whole`: the message comes from one chip; else every chip has its share."""
    found = 0.0
    for part in group.parts:
        missing = 1.0 if whole else 1.0 - 1.0 / part.size
        found = max(found, missing / (group.size / part.size * part.dimension.injection_bytes_per_s))
    return found


def least_seconds(timer: HplTimer, grids: Sequence[Grid], sizes: Sequence[Sizes]) -> np.ndarray:
    """Lower bounds [grids] of the factorisations of `sizes`, all of one block width, under any overlap."""
    width = sizes[0].block
    blocks = np.array([s.blocks for s in sizes])[:, None]
    rows = np.array([g.rows for g in grids])[:, None]
    columns = np.array([g.columns for g in grids])[:, None]
    search = np.array([timer.search_s(g.column, width) for g in grids])[:, None]
    row_s = np.array([s_per_byte(g.row, True) for g in grids])[:, None]
    column_s = np.array([s_per_byte(g.column, False) for g in grids])[:, None]

    def beside(left: np.ndarray) -> np.ndarray:
        """Panel, broadcast and exchange with `left` blocks of a side to go."""
        tall, wide = width * -(-left // rows), width * -(-left // columns)
        sent = timer.settings.sent_bytes * width
        exchange = timer.passes * sent * wide * column_s + timer.touched_s(sent * wide)
        return timer.panel_s(tall, width, search) + sent * tall * row_s + exchange

    ends = np.maximum(np.floor((blocks - 1) * RANGES), 0).astype(np.int64)
    starts = np.concatenate([np.zeros_like(blocks), ends[:, :-1]], axis=1)
    dearest = timer.update_s(width * -(-ends // rows), width * -(-ends // columns), width)
    longer = np.maximum(0.0, beside(starts + 1) - dearest) * (ends - starts)
    updates = _updates(timer, grids, sizes)
    once = np.array([timer.solve_s(s, g) + timer.refine_s(s, g) for g, s in zip(grids, sizes, strict=True)])
    return updates + longer.sum(axis=1) + _first(timer, beside(blocks)[:, 0], blocks, columns, column_s, width) + once


def closer_bound(timer: HplTimer, grid: Grid, size: Sizes) -> float:
    """A lower bound of one factorisation with its messages priced at the cheapest step of every range."""
    width, blocks = size.block, size.blocks
    ends = np.maximum(np.floor((blocks - 1) * RANGES), 0).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    tall = width * -(-np.append(starts + 1, blocks) // grid.rows)
    wide = width * -(-(starts + 1) // grid.columns)
    panel = timer.panel_s(tall, width, timer.search_s(grid.column, width)) + timer.broadcast_s(tall, width, grid.row)
    beside = panel[:-1] + timer.exchange_s(wide, width, grid.column)
    dearest = timer.update_s(width * -(-ends // grid.rows), width * -(-ends // grid.columns), width)
    longer = float(np.maximum(0.0, beside - dearest) @ (ends - starts))
    once = timer.solve_s(size, grid) + timer.refine_s(size, grid)
    return float(_updates(timer, [grid], [size])[0]) + longer + float(panel[-1]) + once


def _first(
    timer: HplTimer, beside: np.ndarray, blocks: np.ndarray, columns: np.ndarray, column_s: np.ndarray, width: int
) -> np.ndarray:
    """The first panel and its broadcast, which nothing hides: `beside` without its exchange."""
    moved = timer.settings.sent_bytes * width * width * -(-blocks // columns)
    return beside - (timer.passes * moved * column_s + timer.touched_s(moved))[:, 0]


def _updates(timer: HplTimer, grids: Sequence[Grid], sizes: Sequence[Sizes]) -> np.ndarray:
    """Seconds of all updates of each, exactly; they do not depend on where the grid lies."""
    known: dict[tuple[int, int, int], float] = {}
    found = []
    for grid, size in zip(grids, sizes, strict=True):
        key = (grid.rows, grid.columns, size.blocks)
        if key not in known:
            played = steps(size, grid.rows, grid.columns)
            known[key] = float(played.count @ timer.update_s(played.rows, played.columns, size.block))
        found.append(known[key])
    return np.array(found)
