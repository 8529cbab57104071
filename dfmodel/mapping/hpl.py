"""The best grid, placement and block of an HPL run: every one, cut only by a bound that is below its time."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from dfmodel.errors import InfeasibleError, InputError, LimitError
from dfmodel.mapping.choice_mip import choose
from dfmodel.mapping.families import FamilyRun, MappedFamily
from dfmodel.mapping.family_plan import GridPlan, kept, read
from dfmodel.mapping.family_result import Found, Work, memory_words, rates_per_money, result_of
from dfmodel.mapping.grids import Grid, grids
from dfmodel.mapping.hpl_bound import closer_bound, least_seconds
from dfmodel.mapping.hpl_cost import (
    BROADCAST,
    EXCHANGE,
    PANEL,
    SOLVE,
    UPDATE,
    HplCost,
    HplTimer,
    Sizes,
    factorisation,
    matrix_bytes,
)
from dfmodel.mapping.hpl_graph import graph_result
from dfmodel.mapping.result import Certificate, Result
from dfmodel.units import format_quantity
from dfmodel.workloads.hpl import HplSettings, solve_flops

#: Widths of a panel that are tried; the wide ones pay where panels cost little (mixed precision does not pivot).
WIDTHS = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
MIXED_WIDTHS = (*WIDTHS, 3072, 4096)


#: What is filled of a memory whose capacity no file states.
UNSTATED_BYTES = 80 * 2.0**30


class HplPlan(GridPlan):
    """P (`grid_rows`) x Q (`grid_columns`) chips, blocks of `block`, and what hides behind the update of the matrix."""

    block: int | None = Field(None, ge=1)
    overlap: Literal["none", "lookahead", "split"] = "split"


@dataclass(frozen=True)
class Evaluated:
    """A grid with its block and matrix; `value` is seconds per FLOP that the run is rated by."""

    grid: Grid
    sizes: Sizes
    cost: HplCost

    @property
    def value(self) -> float:
        return self.cost.seconds / solve_flops(self.sizes.n)


@dataclass
class HplSearch:
    """Every grid with every block width, best bound first."""

    run: FamilyRun
    settings: HplSettings
    plan: HplPlan
    counted: int = 0
    infeasible: int = 0
    cut: int = 0
    found: list[tuple[int, int, Evaluated]] = field(default_factory=list)
    #: Values of the plans found, in order.
    values: list[float] = field(default_factory=list)
    open_bound: float = math.inf
    shortfall: tuple[float, Grid, Sizes] | None = None

    def __post_init__(self) -> None:
        self.timer = HplTimer(self.run.system, self.run.assumptions, self.settings)
        self.capacity = self.run.system.chip.memories[0].capacity_bytes
        stated = self.plan.block or self.settings.block
        self.widths = (stated,) if stated else MIXED_WIDTHS if self.settings.precision == "mixed" else WIDTHS
        self.grids = grids(
            self.run.system.dimensions, self.plan.grid_rows, self.plan.grid_columns, self.plan.use_all_chips
        )

    def search(self) -> Evaluated:
        """The best plan. Raises InfeasibleError or InputError where the matrix fits on no grid, LimitError where time
        runs out before one is evaluated."""
        waiting = [item for w in range(len(self.widths)) for item in self.bounded(w)]
        if not waiting:
            raise self.why_nothing()
        waiting.sort(key=lambda item: item[:3])
        shown = self.plan.best or 1
        for number, (bound, g, w, sizes) in enumerate(waiting):
            if self.run.settings.prune and len(self.found) >= shown and bound >= self.values[shown - 1]:
                self.cut += len(waiting) - number
                break
            if self.run.deadline is not None and time.perf_counter() > self.run.deadline:
                if not self.found:
                    raise LimitError("no plan evaluated within the time limit; raise --time-limit")
                self.open_bound = bound
                break
            if self.run.settings.prune and len(self.found) >= shown:
                closer = closer_bound(self.timer, self.grids[g], sizes) / solve_flops(sizes.n)
                if closer >= self.values[shown - 1]:
                    self.cut += 1
                    continue
            cost = factorisation(self.timer, sizes, self.grids[g], self.plan.overlap)
            self.record(g, w, Evaluated(self.grids[g], sizes, cost))
        return min(self.found, key=lambda item: (item[2].value, item[:2]))[2]

    def bounded(self, w: int) -> list[tuple[float, int, int, Sizes]]:
        """(bound of seconds per FLOP, grid, width, matrix) of every grid that holds a matrix in blocks of one width."""
        fitting = []
        for g, grid in enumerate(self.grids):
            self.counted += 1
            sizes = self.sizes(grid, self.widths[w])
            if sizes is not None and self.fits(grid, sizes):
                fitting.append((g, sizes))
            else:
                self.infeasible += 1
        if not fitting:
            return []
        least = least_seconds(self.timer, [self.grids[g] for g, _ in fitting], [s for _, s in fitting])
        return [(b / solve_flops(s.n), g, w, s) for b, (g, s) in zip(least.tolist(), fitting, strict=True)]

    def record(self, g: int, w: int, found: Evaluated) -> None:
        self.found.append((g, w, found))
        bisect.insort(self.values, found.value)

    def sizes(self, grid: Grid, width: int) -> Sizes | None:
        """The matrix in blocks of `width`: as asked, or as large as fills the memory of the grid's chips. None where a
        chip of the grid would hold no block."""
        n = self.settings.n
        if n is None:
            n = width * int(self.filled(grid.chips) / width)
        sizes = Sizes(n, width)
        return sizes if n >= 2 and sizes.blocks >= max(grid.rows, grid.columns) else None

    def filled(self, chips: int) -> float:
        """N whose matrix fills the asked share of the memory of so many chips."""
        capacity = self.capacity if math.isfinite(self.capacity) else UNSTATED_BYTES
        return math.sqrt(self.settings.memory_fill * capacity * chips / self.settings.stored_bytes)

    def fits(self, grid: Grid, sizes: Sizes) -> bool:
        missing = sum(matrix_bytes(self.settings, sizes, grid).values()) - self.capacity
        if missing > 0 and (self.shortfall is None or missing < self.shortfall[0]):
            self.shortfall = (missing, grid, sizes)
        return missing <= 0

    def why_nothing(self) -> InfeasibleError | InputError:
        """What is short, by how much, and the nearest matrix that can be solved."""
        chips = max(g.chips for g in self.grids)
        if self.shortfall is not None:
            missing, grid, sizes = self.shortfall
            held = memory_words(matrix_bytes(self.settings, sizes, grid))
            remedy = (
                f"the largest N on its {chips:,} chips is about {_thousands(self.largest(grid, sizes.block)):,}: "
                "lower workload.n, or leave it out to fill memory"
                if self.settings.n is not None
                else "lower workload.memory_fill"
            )
            return InfeasibleError(
                f"workload.n: a matrix of N {sizes.n:,} is short of memory by {format_quantity(missing, 'bytes')} per "
                f"chip on the best grid ({grid.rows} x {grid.columns}, blocks of {sizes.block}: needs {held}; has "
                f"{format_quantity(self.capacity, 'bytes')}); {remedy}"
            )
        sides = min(max(g.rows, g.columns) for g in self.grids)
        least = min(self.widths) * (sides - 1) + 1
        return InputError(
            f"workload.n: {self.settings.n:,} in blocks of {min(self.widths)} gives chips of a grid of {sides} "
            f"on a side nothing to hold; the smallest N is {least:,}: raise it, lower plan.block, or use fewer chips"
            if self.settings.n is not None
            else f"workload.memory_fill: no block of {min(self.widths)} per chip; raise it"
        )

    def largest(self, grid: Grid, width: int) -> int:
        """The largest N that fits this grid in blocks of `width`."""
        low, high = 1, 2 * int(math.sqrt(self.capacity * grid.chips / self.settings.stored_bytes)) + 2
        while high - low > 1:
            middle = (low + high) // 2
            held = sum(matrix_bytes(self.settings, Sizes(middle, width), grid).values())
            low, high = (middle, high) if held <= self.capacity else (low, middle)
        return low


def _thousands(n: int) -> int:
    """Rounded down to three significant digits: a number to type that surely fits."""
    step = 10 ** max(0, len(str(n)) - 3)
    return n // step * step


def read_plan(settings: Mapping[str, Any]) -> HplPlan:
    """`plan.*` of an HPL run. Raises InputError with every problem found."""
    return read(HplPlan, settings)


def search(run: FamilyRun) -> Result:
    """The best plan of an HPL run, or the original's graph under its iteration model."""
    settings = run.workload.settings
    assert isinstance(settings, HplSettings)
    if run.assumptions.iteration.model == "amortised":
        return graph_result(run, settings)
    if settings.iterations is not None:
        raise InputError("workload.iterations: only the original's graph is cut short (--assumptions paper); remove it")
    state = HplSearch(run, settings, run.request)
    best = state.search()
    return result_of(run, _found(state, best))


def _found(state: HplSearch, best: Evaluated) -> Found:
    run, settings, cost = state.run, state.settings, best.cost
    costs = {(g, w): e.value for g, w, e in state.found}
    limit = None if run.deadline is None else max(0.0, run.deadline - time.perf_counter())
    _, mip = choose("hpl_grid", costs, "grid with block width (one-hot program)", "factorisation",
                    time_limit_s=limit, relative_gap=run.settings.relative_gap, log=run.settings.log)  # fmt: skip
    flops = solve_flops(best.sizes.n)
    rmax = flops / cost.seconds
    peak = best.grid.chips * run.system.chip.matrix_peak(run.workload.dtype)
    memory = matrix_bytes(settings, best.sizes, best.grid)
    ranked = kept(state.plan, sorted(((e.value, e) for _, _, e in state.found), key=lambda item: item[0]))
    plan = {
        **best.grid.describe(),
        "block": best.sizes.block,
        "n": best.sizes.n,
        "overlap": state.plan.overlap,
        "chips_used": best.grid.chips,
        "chips_idle": run.system.chips - best.grid.chips,
    }
    filled = memory["matrix"] / state.capacity if math.isfinite(state.capacity) else None
    bound = cost.seconds if state.open_bound >= best.value else cost.seconds * state.open_bound / best.value
    return Found(
        seconds=cost.seconds,
        bound=bound,
        workload={"iteration": "solve", "n": best.sizes.n, "precision": settings.precision, "flops": flops,
                  "stored_in": settings.storage},
        plan=plan,
        metrics={
            "rmax_flops_per_s": rmax,
            "flops_per_s_per_chip": rmax / best.grid.chips,
            "utilisation": rmax / peak,
            "memory_filled": filled,
            **rates_per_money(rmax, run, "flops_per_s"),
        },
        breakdown_s=cost.exposed,
        memory_bytes=memory,
        capacity_bytes=state.capacity,
        work=_work(state.timer, best),
        certificate=_certificate(state, mip),
        summary=_summary(state, best, rmax, peak, filled),
        hidden_s=cost.hidden,
        edges=((PANEL, BROADCAST), (PANEL, EXCHANGE), (BROADCAST, UPDATE), (EXCHANGE, UPDATE), (UPDATE, SOLVE)),
        alternatives=[
            {**_columns(e), "iteration_s": e.cost.seconds, "of_optimum": v / best.value,
             "rank": i + 1 if i < (state.plan.best or 1) else None}
            for i, (v, e) in enumerate(ranked)
        ],
        baselines=_baselines(state, best),
        assumed=_notes(run, settings, best, filled),
    )  # fmt: skip


def _columns(e: Evaluated) -> dict[str, Any]:
    rate = format_quantity(solve_flops(e.sizes.n) / e.cost.seconds, "flop_rate", 4)
    return {
        "grid_rows": e.grid.rows,
        "grid_columns": e.grid.columns,
        "block": e.sizes.block,
        "n": e.sizes.n,
        "rmax": rate,
    }


def _baselines(state: HplSearch, best: Evaluated) -> list[dict[str, Any]]:
    """The grid nearest to square, which HPL's own advice is, in the winner's blocks."""
    fitting = [(g, s) for g in state.grids if (s := state.sizes(g, best.sizes.block)) is not None and state.fits(g, s)]
    squarest, sizes = min(fitting, key=lambda item: (abs(math.log(item[0].rows / item[0].columns)), -item[0].chips))
    found = Evaluated(squarest, sizes, factorisation(state.timer, sizes, squarest, state.plan.overlap))
    return [{"name": "nearest to square", "plan": _columns(found), "seconds": found.cost.seconds,
             "share": found.value / best.value, "why_not": ""}]  # fmt: skip


def _work(timer: HplTimer, best: Evaluated) -> list[Work]:
    cost, grid = best.cost, best.grid
    width, bandwidth = best.sizes.block, timer.memory_bytes_per_s
    shape = f"blocks of {width} over {grid.rows} x {grid.columns}"
    return [
        Work(PANEL, "vector", f"rows over {grid.rows}", cost.flops[PANEL], cost.moved_bytes[PANEL], cost.work[PANEL],
             cost.moved_bytes[PANEL] / bandwidth),
        Work(BROADCAST, "vector", f"columns over {grid.columns}", network_s=cost.work[BROADCAST],
             communication="broadcast of panels along grid rows" if grid.columns > 1 else ""),
        Work(EXCHANGE, "vector", f"rows over {grid.rows}", network_s=cost.work[EXCHANGE],
             communication="pivot rows and block rows along grid columns" if grid.rows > 1 else ""),
        Work(UPDATE, "matrix", shape, cost.flops[UPDATE], cost.moved_bytes[UPDATE],
             cost.flops[UPDATE] / timer.product_flops_per_s(width), cost.moved_bytes[UPDATE] / bandwidth),
        Work(SOLVE, "vector", shape, memory_s=cost.work.get(SOLVE, 0.0)),
    ]  # fmt: skip


def _certificate(state: HplSearch, mip: dict[str, Any]) -> Certificate:
    fixed = [k for k, v in vars(state.plan).items() if v is not None and k not in ("best", "within", "overlap")]
    stated = f"; the user fixes {', '.join(k for k in fixed if k != 'use_all_chips')}" if len(fixed) > 1 else ""
    return Certificate(
        kind="exhaustive",
        space="every grid of P x Q chips on factors of every topology dimension, either side innermost, dimensions "
        f"whole or cut down to round sizes, with blocks of {', '.join(map(str, state.widths))}{stated}",
        plans_counted=state.counted,
        plans_infeasible=state.infeasible,
        plans_evaluated=len(state.found),
        plans_settled_by_bound=state.cut,
        cut_by={"updates alone, or panels and messages at their least": state.cut},
        classes=0,
        classes_opened=0,
        mips=(mip,),
        mips_solved=1,
        not_covered=(
            "grids that mix positions of one dimension unevenly, other block widths, process counts per chip",
            *(["plans left when the time limit was reached"] if state.open_bound < math.inf else []),
        ),
    )


def _summary(
    state: HplSearch, best: Evaluated, rmax: float, peak: float, filled: float | None
) -> list[tuple[str, str]]:
    grid, run, dtype = best.grid, state.run, state.run.workload.dtype
    share = "" if filled is None else f", {100 * filled:.1f} % of memory"
    return [
        ("matrix", f"N {best.sizes.n:,} in {state.settings.storage}{share}, blocks of {best.sizes.block}"),
        ("grid", f"{grid.rows} x {grid.columns} chips (P x Q), overlap {state.plan.overlap}"),
        ("  columns on", str(grid.column)),
        ("  rows on", str(grid.row)),
        ("chips", f"{grid.chips:,} used, {run.system.chips - grid.chips:,} idle"),
        ("rate", f"Rmax {_rate(rmax)}, {_rate(rmax / grid.chips)} per chip, {100 * rmax / peak:.2f} % of {dtype} peak"),
    ]


def _rate(flops_per_s: float) -> str:
    return format_quantity(flops_per_s, "flop_rate", 4)


def _notes(run: FamilyRun, settings: HplSettings, best: Evaluated, filled: float | None) -> list[str]:
    """What a reader of the result must know before comparing it with a list."""
    found = []
    if settings.precision == "double" and settings.dtype != "fp64":
        found.append(f"'{run.system.chip.name}' was not asked for fp64: a run in {settings.dtype} is no valid HPL run")
    if filled is None and settings.n is None:
        found.append(
            f"memory of '{run.system.chip.name}' has no stated capacity: N fills {UNSTATED_BYTES / 2**30:.0f} GiB"
        )
    if filled is not None and filled < 0.8:
        found.append(
            f"N {best.sizes.n:,} fills {100 * filled:.0f} % of memory; runs on lists fill 80 to 90 %, which is faster"
        )
    if settings.precision == "mixed":
        found.append(f"{settings.refinements} steps of refinement, entries made again in 20 FLOP each")
    return found


FAMILY = MappedFamily(read_plan, search, ("grid_rows", "grid_columns", "block"))
