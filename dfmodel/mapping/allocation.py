"""Compute tiles to the kernels of a partition: cycles with ceilings, and the sharing that makes the slowest fastest.

A tile is an array of `lanes` x `stages` multiply-accumulators. A matrix kernel on l x s tiles takes
ceil(rows / (l lanes)) * ceil(columns / (s stages)) * depth cycles per streamed tile of data; an elementwise kernel uses
lanes only and takes ceil(rows / (l lanes)) * columns (DFModel artifact, src/intra_chip.py at 04f93d5). Kernels of a
partition are a spatial pipeline: the slowest sets the pace.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dfmodel.systems.chip import TileArray
from dfmodel.workloads.graph import Kernel


@dataclass(frozen=True)
class ArrayWork:
    """One streamed tile's worth of a kernel, as the array sees it."""

    rows: int
    columns: int
    depth: int
    systolic: bool


@dataclass(frozen=True)
class Staircase:
    """Least cycles of a kernel by number of tiles: `cycles[i]` needs `tiles[i]`; tiles rise, cycles fall."""

    tiles: tuple[int, ...]
    cycles: tuple[int, ...]

    def tiles_for(self, cycles: int) -> int | None:
        """Fewest tiles with which the kernel takes at most `cycles`; None where no number does."""
        falling = [-c for c in self.cycles]
        first = bisect_right(falling, -cycles - 1)
        return self.tiles[first] if first < len(self.tiles) else None


@dataclass(frozen=True)
class Allocation:
    """The compute side of a partitioning problem at cycle level: a staircase per kernel, tiles to share, and the
    seconds one cycle per streamed tile adds up to over a whole pass."""

    staircases: tuple[Staircase, ...]
    tiles: int
    seconds_per_cycle: float


def array_work(kernel: Kernel, split: str | None, chips: int, tiles: int) -> ArrayWork:
    """The part of `kernel` one chip does per streamed tile: `split` divided over `chips`, the tiling dimension cut
    into `tiles`, both rounded up.

    Columns are the tiling dimension where the result has it, else the result's last dimension; rows are the result's
    other dimensions; depth is what is contracted.
    """
    if kernel.context_collective is not None:
        # moves data only: the network's and the memory's business
        return ArrayWork(1, 1, 1, False)
    extent = {d: n for d, n in kernel.dims.items() if d not in kernel.gathered}
    if split is not None:
        extent[split] = math.ceil(extent[split] / chips)
    if kernel.tiling in extent and kernel.tiling is not None:
        extent[kernel.tiling] = math.ceil(extent[kernel.tiling] / min(tiles, extent[kernel.tiling]))
    result = [d for d in dict.fromkeys(d for o in kernel.outputs for d in o.dims) if d in extent]
    contracted = math.prod(n for d, n in extent.items() if d not in result)
    across = kernel.tiling if kernel.tiling in result else result[-1]
    rows = math.prod(extent[d] for d in result if d != across)
    if kernel.unit == "matrix":
        return ArrayWork(rows, extent[str(across)], contracted * kernel.runs, True)
    return ArrayWork(rows, extent[str(across)] * contracted * kernel.runs, 1, False)


def cycles_of(work: ArrayWork, array: TileArray, lanes: int, stages: int) -> int:
    """Cycles on `lanes` x `stages` tiles."""
    rows = math.ceil(work.rows / (lanes * array.lanes))
    if not work.systolic:
        return rows * work.columns
    return rows * math.ceil(work.columns / (stages * array.stages)) * work.depth


@lru_cache(maxsize=65536)
def staircase(work: ArrayWork, array: TileArray) -> Staircase:
    """Every useful number of tiles, up to the whole chip."""
    lanes = _useful(work.rows, array.lanes, array.count)
    stages = _useful(work.columns, array.stages, array.count) if work.systolic else [1]
    return _falling(
        (across * down, cycles_of(work, array, across, down))
        for across in lanes
        for down in stages
        if across * down <= array.count
    )


def cheapest(staircases: Sequence[Staircase]) -> Staircase:
    """By number of tiles the least cycles of any of them."""
    if len(set(staircases)) == 1:
        return staircases[0]
    return _falling(step for s in staircases for step in zip(s.tiles, s.cycles, strict=True))


def _falling(options: Iterable[tuple[int, int]]) -> Staircase:
    """Of (tiles, cycles) those that take fewer cycles than all with no more tiles."""
    tiles: list[int] = []
    cycles: list[int] = []
    for count, needed in sorted(options):
        if not cycles or needed < cycles[-1]:
            tiles.append(count)
            cycles.append(needed)
    return Staircase(tuple(tiles), tuple(cycles))


def _useful(extent: int, width: int, most: int) -> list[int]:
    """Numbers of units of `width` after which one round fewer covers `extent`, up to `most`."""
    found = []
    units = 1
    while units <= most:
        found.append(units)
        rounds = math.ceil(extent / (units * width))
        if rounds == 1:
            break
        units = math.ceil(extent / ((rounds - 1) * width))
    return found


def slowest_cycles(staircases: Sequence[Staircase], tiles: int) -> int | None:
    """Least cycles of the slowest kernel over all ways to share `tiles`; None where there are too few tiles."""
    values = sorted({c for s in staircases for c in s.cycles})
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        needed = [s.tiles_for(values[middle]) for s in staircases]
        if any(n is None for n in needed) or sum(n for n in needed if n is not None) > tiles:
            low = middle + 1
        else:
            high = middle
    return values[low] if low < len(values) else None


def tiles_needed(staircases: Iterable[Staircase], tiles: int) -> tuple[np.ndarray, np.ndarray]:
    """(values, needed): distinct cycle counts, rising, and [values, kernels] fewest tiles to be that fast.

    A speed no number of tiles reaches needs more tiles than there are.
    """
    listed = list(staircases)
    values = np.unique(np.concatenate([np.array(s.cycles) for s in listed]))
    needed = np.full((len(values), len(listed)), float(tiles + 1))
    for k, s in enumerate(listed):
        first = np.searchsorted(-np.array(s.cycles), -values, side="left")
        reached = first < len(s.tiles)
        needed[reached, k] = np.array(s.tiles)[first[reached]]
    return values, needed
