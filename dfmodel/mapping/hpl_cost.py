"""What an LU factorisation on a P x Q grid of chips costs, panel by panel.

The matrix lies block-cyclically in blocks of NB: with b blocks left on a side, the chip with most of them holds
r = ceil(b / P) NB rows of c = ceil(b / Q) NB columns. One step factors a panel, broadcasts it along the grid's rows,
exchanges pivot rows and spreads the block row along its columns, and updates what is left. Costs depend on (r, c)
alone, which takes at most B / P + B / Q + 1 values over the B steps: steps of equal cost are counted, not played, so a
factorisation of any size is summed exactly in little memory. The terms are those of netlib's scalability page
(netlib.org/benchmark/hpl/scalability.html), with collectives and rates of the system for its alpha, beta and gamma.

With look-ahead the next panel is factored and broadcast while the matrix is updated; a split update hides the exchange
of rows as well (Chalmers et al., "Optimizing High-Performance Linpack for Exascale Accelerated Architectures", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.context import network_model
from dfmodel.mapping.grids import Grid
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.systems.collectives import CollectiveModel
from dfmodel.systems.network import Group
from dfmodel.systems.system import System
from dfmodel.workloads.hpl import HplSettings

#: none: one after another; lookahead: the next panel hides behind the update; split: the exchange of rows too.
Overlap = Literal["none", "lookahead", "split"]

#: Width at which the recursive factorisation of a panel stops halving and eliminates column by column.
NARROWEST = 16

#: Kernels started for one column of a panel: pivot search, swap, scale and rank-1 update.
STARTS_PER_COLUMN = 2

#: Times a chip touches the block row of a step for pivoting: gathered, packed, received and put back.
TOUCHES = 4

#: Vector FLOP that regenerating one entry of the matrix takes in mixed precision.
FLOPS_PER_ENTRY = 20


@dataclass(frozen=True)
class Sizes:
    """A matrix of `n` in blocks of `block`; a last block that is not full is charged as a full one."""

    n: int
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.n // self.block)


@dataclass(frozen=True)
class Steps:
    """Steps of equal cost: `left` blocks of a side at the first of them, how many, and rows and columns of the chip
    that holds most. Arrays of one length."""

    left: np.ndarray
    count: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def steps(sizes: Sizes, grid_rows: int, grid_columns: int) -> Steps:
    """The steps with 1 to B - 1 blocks left, from the last to the first."""
    last = sizes.blocks - 1
    if last < 1:
        return Steps(*(np.zeros(0) for _ in range(4)))
    edges = np.unique(np.concatenate([np.arange(0, last, grid_rows), np.arange(0, last, grid_columns), [last]]))
    first = edges[:-1] + 1
    return Steps(
        first,
        np.diff(edges).astype(float),
        sizes.block * (-(-first // grid_rows)).astype(float),
        sizes.block * (-(-first // grid_columns)).astype(float),
    )


@dataclass(frozen=True)
class HplCost:
    """Seconds of one factorisation and solve by category, on the chip that holds most.

    `exposed` adds up to `seconds`; `hidden` is communication and panels behind the update. `work` are seconds of each
    kind of work, hidden or not, `flops`, `moved_bytes` of one chip.
    """

    exposed: Mapping[str, float]
    hidden: Mapping[str, float]
    work: Mapping[str, float]
    flops: Mapping[str, float]
    moved_bytes: Mapping[str, float]

    @cached_property
    def seconds(self) -> float:
        return sum(self.exposed.values())


UPDATE, PANEL, BROADCAST, EXCHANGE, SOLVE = "update", "panel", "panel broadcast", "row exchange", "solve"
REFINE = "refinement"


@dataclass(frozen=True)
class HplTimer:
    """Costs of a chip and its links for HPL with `settings` under `assumptions`. Rows and columns are counts, arrays or
    numbers alike; results are seconds."""

    system: System
    assumptions: Assumptions
    settings: HplSettings

    @cached_property
    def _timer(self) -> KernelTimer:
        return KernelTimer(self.system.chip, self.settings.dtype, self.assumptions)

    @cached_property
    def _wide(self) -> KernelTimer:
        """Of work in the format that the matrix is kept in."""
        return KernelTimer(self.system.chip, self.settings.storage, self.assumptions)

    @cached_property
    def _model(self) -> CollectiveModel:
        return network_model(self.system, self.assumptions)

    @property
    def memory_bytes_per_s(self) -> float:
        return self._timer.memory_bytes_per_s

    def price(self, operation: str, message_bytes: np.ndarray, group: Group) -> np.ndarray:
        """Seconds of a collective of many messages."""
        return self._model(operation, message_bytes, group)

    def product_flops_per_s(self, width: int) -> float:
        """Rate of a large matrix product whose inner extent is `width`."""
        if self.assumptions.compute.model != "efficiency":
            return 1.0 / self._timer.matrix_s_per_flop
        curve = self.system.chip.efficiency
        depth = 1.0 if curve.gemm is None else width / (width + curve.gemm.k_half)
        return self._timer.matrix_share * self.system.chip.matrix_peak(self.settings.dtype) * depth

    @property
    def start_flops(self) -> float:
        """What starting a product costs, as FLOP at its rate."""
        return self.system.chip.efficiency.matrix_half_flops if self.assumptions.compute.model == "efficiency" else 0.0

    def update_flops(self, rows: np.ndarray, columns: np.ndarray, width: int) -> np.ndarray:
        """FLOP of a step's update of rows x columns: the triangular solve of the block row and the product."""
        return 2.0 * rows * columns * width + columns * float(width) ** 2

    def update_bytes(self, rows: np.ndarray, columns: np.ndarray, width: int) -> np.ndarray:
        word = self.settings.stored_bytes
        return word * 2.0 * rows * columns + self.settings.sent_bytes * width * (rows + columns)

    def update_s(self, rows: np.ndarray, columns: np.ndarray, width: int) -> np.ndarray:
        """Update of rows x columns, the larger of arithmetic and memory traffic."""
        compute = (self.update_flops(rows, columns, width) + self.start_flops) / self.product_flops_per_s(width)
        memory = self.update_bytes(rows, columns, width) / self.memory_bytes_per_s
        return np.maximum(compute, memory) + self._timer.launch_s

    def panel_bytes(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Memory traffic of factoring a panel: halving passes over it, then column by column in narrow strips."""
        narrow = min(width, NARROWEST)
        passes = 2.0 * math.ceil(math.log2(width / narrow)) + (narrow if self.pivots else 2.0)
        return self.settings.stored_bytes * width * passes * rows

    def search_s(self, column: Group, width: int) -> float:
        """Finding and swapping one pivot over a grid column, up and down a tree (netlib: log P (alpha + 2 NB beta))."""
        return 2.0 * tree_s(column, 2.0 * width * self.settings.stored_bytes) if self.pivots else 0.0

    def panel_s(self, rows: np.ndarray, width: int, search_s: float | np.ndarray) -> np.ndarray:
        """Factoring a panel of `rows` on each chip of a grid column: the larger of traffic and arithmetic at the vector
        rate, kernels started per column, and for every pivot its search."""
        arithmetic = rows * float(width) ** 2 / self._wide_vector_flops_per_s
        memory = self.panel_bytes(rows, width) / self.memory_bytes_per_s
        columns = width * STARTS_PER_COLUMN * self._timer.launch_s if self.pivots else self._timer.launch_s
        return np.maximum(arithmetic, memory) + columns + width * search_s

    def broadcast_s(self, rows: np.ndarray, width: int, row: Group) -> np.ndarray:
        return self.price("broadcast", self.settings.sent_bytes * width * rows, row)

    def exchange_s(self, columns: np.ndarray, width: int, column: Group) -> np.ndarray:
        """Pivot rows to their places and the block row to all of a grid column (netlib's spread and roll: twice the
        block row); without pivoting the block row alone."""
        moved = self.settings.sent_bytes * width * columns
        return self.passes * self.price("all_gather", moved, column) + self.touched_s(moved)

    def touched_s(self, moved_bytes: np.ndarray) -> np.ndarray:
        """Memory traffic of pivoting a block row of so many bytes on a chip."""
        return (TOUCHES if self.pivots else 0.0) * moved_bytes / self.memory_bytes_per_s

    @property
    def passes(self) -> float:
        """Times a block row goes over the links of a grid column."""
        return 2.0 if self.pivots else 1.0

    def solve_s(self, sizes: Sizes, grid: Grid) -> float:
        """Back substitution: the upper triangle read once, and a block of the solution passed on per panel."""
        local = sizes.n / grid.rows * (sizes.n / grid.columns) / 2
        memory = self.settings.stored_bytes * local / self.memory_bytes_per_s
        block = self.settings.stored_bytes * sizes.block
        return memory + sizes.blocks * (tree_s(grid.column, block) + tree_s(grid.row, block))

    def refine_s(self, sizes: Sizes, grid: Grid) -> float:
        """Refinement in double precision: per step a product with the matrix, whose entries are made again, and two
        triangular solves with the factors."""
        if self.settings.precision == "double":
            return 0.0
        local = sizes.n / grid.rows * (sizes.n / grid.columns)
        chip = self.system.chip
        vector = chip.vector_peak("fp64") * self._vector_share
        residual = (2.0 + FLOPS_PER_ENTRY) * local / vector
        return self.settings.refinements * (residual + 2.0 * self.solve_s(sizes, grid))

    @property
    def _vector_share(self) -> float:
        compute = self.assumptions.compute
        return self.system.chip.efficiency.vector_max if compute.model == "efficiency" else compute.utilisation

    @property
    def _wide_vector_flops_per_s(self) -> float:
        return self.system.chip.vector_peak(self.settings.storage) * self._vector_share

    @property
    def pivots(self) -> bool:
        return self.settings.precision == "double"


def tree_s(group: Group, message_bytes: float) -> float:
    """Seconds of a small message down a tree of the group, no software start: latency of every level, and what a chip
    injects where it goes through a switch or straight to its partner."""
    seconds = 0.0
    for part in group.parts:
        ring = part.dimension.kind in ("ring", "mesh")
        levels = part.size // 2 if ring else math.ceil(math.log2(part.size))
        seconds += levels * (part.step_s + (0.0 if ring else message_bytes / part.dimension.injection_bytes_per_s))
    return seconds


def factorisation(timer: HplTimer, sizes: Sizes, grid: Grid, overlap: Overlap) -> HplCost:
    """The whole factorisation and solve of `sizes` on `grid`."""
    width = sizes.block
    played = steps(sizes, grid.rows, grid.columns)
    whole_rows = np.array([float(width * -(-sizes.blocks // grid.rows))])
    search = timer.search_s(grid.column, width)
    update = timer.update_s(played.rows, played.columns, width)
    panel = timer.panel_s(played.rows, width, search)
    # messages take few sizes: each is priced once
    tall, of_tall = np.unique(played.rows, return_inverse=True)
    wide, of_wide = np.unique(played.columns, return_inverse=True)
    broadcast = timer.broadcast_s(tall, width, grid.row)[of_tall]
    exchange = timer.exchange_s(wide, width, grid.column)[of_wide]
    first = {PANEL: float(timer.panel_s(whole_rows, width, search)[0]),
             BROADCAST: float(timer.broadcast_s(whole_rows, width, grid.row)[0])}  # fmt: skip
    beside = {PANEL: panel, BROADCAST: broadcast, EXCHANGE: exchange}
    hides = {"none": (), "lookahead": (PANEL, BROADCAST), "split": (PANEL, BROADCAST, EXCHANGE)}[overlap]
    behind = sum((beside[k] for k in hides), start=np.zeros_like(update))
    # what does not fit behind the update is exposed, each kind by its share
    share = np.where(behind > update, 1.0 - update / np.where(behind > 0, behind, 1.0), 0.0)
    shown = {k: v * share if k in hides else v for k, v in beside.items()}
    count = played.count
    exposed = {UPDATE: float(count @ update)}
    for kind, taken in shown.items():
        exposed[kind] = float(count @ taken) + first.get(kind, 0.0)
    work = {k: float(count @ v) + first.get(k, 0.0) for k, v in {UPDATE: update, **beside}.items()}
    for kind, once in ((SOLVE, timer.solve_s(sizes, grid)), (REFINE, timer.refine_s(sizes, grid))):
        if once:
            exposed[kind] = work[kind] = once
    rows = np.append(played.rows, whole_rows)
    counts = np.append(count, 1.0)
    return HplCost(
        exposed,
        {k: work[k] - exposed[k] for k in beside},
        work,
        {UPDATE: float(count @ timer.update_flops(played.rows, played.columns, width)),
         PANEL: float(counts @ rows) * float(width) ** 2},
        {UPDATE: float(count @ timer.update_bytes(played.rows, played.columns, width)),
         PANEL: float(counts @ timer.panel_bytes(rows, width))},
    )  # fmt: skip


def matrix_bytes(settings: HplSettings, sizes: Sizes, grid: Grid) -> dict[str, float]:
    """Bytes on the chip that holds most: its blocks, and buffers of two panels and a block row."""
    rows = float(sizes.block * -(-sizes.blocks // grid.rows))
    columns = float(sizes.block * -(-sizes.blocks // grid.columns))
    return {
        "matrix": settings.stored_bytes * rows * columns,
        "panels": settings.sent_bytes * sizes.block * (2.0 * rows + columns),
    }
