"""The best decomposition of a transform: grid, placement, radix and, in one dimension, the factors of its length."""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from dfmodel.errors import InfeasibleError, InputError, LimitError
from dfmodel.mapping.choice_mip import choose
from dfmodel.mapping.families import FamilyRun, MappedFamily
from dfmodel.mapping.family_plan import GridPlan, kept, read
from dfmodel.mapping.family_result import Found, Work, rates_per_money, result_of
from dfmodel.mapping.fft_cost import RADICES, FftCost, FftTimer, Layout, least_exchange_s, transform
from dfmodel.mapping.fft_graph import graph_result
from dfmodel.mapping.grids import Grid, sub_grids
from dfmodel.mapping.result import Certificate, Result
from dfmodel.systems.network import Group
from dfmodel.units import format_quantity
from dfmodel.workloads.fft import FftSettings

#: Copies of the local data that a chip holds: one to read, one to write, and what it sends.
COPIES = {"data": 1.0, "work space": 1.0, "send buffer": 1.0}


class FftPlan(GridPlan):
    """A grid of `grid_rows` x `grid_columns` chips (slabs have one row), the `radix`, and for one dimension the points
    of a column, `n1`."""

    radix: int | None = Field(None, ge=2, le=1024)
    n1: int | None = Field(None, ge=1)


@dataclass(frozen=True)
class Evaluated:
    """A layout on a grid with a radix. `n1` is 0 in three dimensions."""

    grid: Grid
    radix: int
    n1: int
    cost: FftCost


@dataclass
class FftSearch:
    """Every grid that divides the transform, with every radix, best bound first."""

    run: FamilyRun
    settings: FftSettings
    plan: FftPlan
    counted: int = 0
    infeasible: int = 0
    cut: int = 0
    found: list[tuple[int, int, Evaluated]] = field(default_factory=list)
    open_bound: float = math.inf
    shortfall: float = math.inf

    def __post_init__(self) -> None:
        self.timer = FftTimer(self.run.system, self.run.assumptions, self.settings)
        self.capacity = self.run.system.chip.memories[0].capacity_bytes
        stated = self.plan.radix or self.settings.radix
        self.radices = (stated,) if stated else RADICES
        self.grids = list(self._grids())

    def _grids(self) -> Iterator[Grid]:
        plan = self.plan
        one = len(self.settings.sides) == 1
        if one and plan.grid_rows not in (None, 1):
            raise InputError("plan.grid_rows: a transform of one dimension is divided one way; use plan.grid_columns")
        yield from sub_grids(
            self.run.system.dimensions,
            1 if one else plan.grid_rows,
            plan.grid_columns,
            plan.use_all_chips,
            self.divides,
        )

    def divides(self, rows: int, columns: int) -> bool:
        """Whether a grid divides the sides, and leaves no chip without points."""
        if len(self.settings.sides) == 1:
            return columns in self.column_divisors
        x, y, z = self.settings.sides
        if self.settings.uneven:
            return rows <= min(x, y) and columns <= min(y, z)
        return not (x % rows or y % rows or y % columns or z % columns)

    @property
    def column_divisors(self) -> set[int]:
        """Numbers of chips that divide both factors of the length, for some factors."""
        if not hasattr(self, "_columns"):
            found: set[int] = set()
            for n1 in self._factors():
                common = math.gcd(n1, self.settings.sides[0] // n1)
                found |= {c for c in range(1, min(common, self.run.system.chips) + 1) if common % c == 0}
            self._columns = found
        return self._columns

    def _factors(self) -> list[int]:
        """Points of a column that are tried: divisors of the length from its square root outwards, or the stated."""
        (length,) = self.settings.sides
        if self.plan.n1 is not None:
            if length % self.plan.n1:
                near = min(_divisors(length), key=lambda d: abs(d - self.plan.n1))  # type: ignore[operator]
                raise InputError(f"plan.n1: {self.plan.n1:,} does not divide {length:,}; nearest that does: {near:,}")
            return [self.plan.n1]
        return sorted(_divisors(length), key=lambda d: abs(math.log(d * d / length)))[:8]

    def layouts(self, grid: Grid) -> Iterator[tuple[int, Layout]]:
        """(n1, layout) of every way the transform lies on a grid."""
        s = self.settings
        if len(s.sides) == 1:
            (length,) = s.sides
            for n1 in self._factors():
                n2 = length // n1
                if n1 % grid.columns or n2 % grid.columns:
                    continue
                group = grid.row
                exchanges = ((-1, group), (0, group), *(((1, group),) if s.order == "natural" else ()))
                points = length * s.batch / grid.columns
                yield n1, Layout(points, (("columns", n1), ("rows", n2)), exchanges, twiddle=True)
            return
        x, y, z = s.sides
        # the chip with most, at each of the three divisions
        points = s.batch * max(
            math.ceil(x / grid.rows) * math.ceil(y / grid.columns) * z,
            math.ceil(x / grid.rows) * y * math.ceil(z / grid.columns),
            x * math.ceil(y / grid.rows) * math.ceil(z / grid.columns),
        )
        there = ((0, grid.row), (1, grid.column))
        back = ((2, grid.column), (2, grid.row)) if s.order == "natural" else ()
        yield 0, Layout(float(points), (("z", z), ("y", y), ("x", x)), (*there, *back))

    def search(self) -> Evaluated:
        """The best plan. Raises InfeasibleError where the data fit on no grid, InputError where no grid divides them,
        LimitError where time runs out before one is evaluated."""
        waiting = []
        for g, grid in enumerate(self.grids):
            for n1, layout in self.layouts(grid):
                size = layout.points * self.settings.point_bytes * sum(COPIES.values())
                missing = size - self.capacity
                for r in range(len(self.radices)):
                    self.counted += 1
                    if missing > 0:
                        self.infeasible += 1
                        self.shortfall = min(self.shortfall, missing)
                        continue
                    waiting.append((self.least(layout), g, r, n1, layout))
        if not waiting:
            raise self.why_nothing()
        waiting.sort(key=lambda item: item[:4])
        shown = self.plan.best or 1
        values: list[float] = []
        for number, (bound, g, r, n1, layout) in enumerate(waiting):
            full = self.run.settings.prune and len(self.found) >= shown
            if full and bound >= values[shown - 1]:
                self.cut = len(waiting) - number
                break
            if self.run.deadline is not None and time.perf_counter() > self.run.deadline:
                if not self.found:
                    raise LimitError("no plan evaluated within the time limit; raise --time-limit")
                self.open_bound = bound
                break
            cost = transform(self.timer, layout, self.radices[r])
            self.found.append((g, number, Evaluated(self.grids[g], self.radices[r], n1, cost)))
            bisect.insort(values, cost.seconds)
        return min(self.found, key=lambda item: (item[2].cost.seconds, item[:2]))[2]

    def least(self, layout: Layout) -> float:
        """A lower bound: passes and packing at the rate of memory, exchanges at what chips inject."""
        size = layout.points * self.settings.point_bytes
        groups = [g for _, g in layout.exchanges if g.size > 1]
        passes = sum(self.timer.passes(n) for _, n in layout.axes) + 2 * len(groups) + layout.twiddle
        local = passes * 2.0 * size / self.timer.memory_bytes_per_s
        return (local + sum(least_exchange_s(size, g) for g in groups)) * self.settings.transforms

    def why_nothing(self) -> InfeasibleError | InputError:
        """What is short, by how much."""
        held = self.settings.points * self.settings.point_bytes * sum(COPIES.values())
        chips = math.ceil(held / self.capacity) if math.isfinite(self.capacity) else 1
        if self.shortfall < math.inf:
            return InfeasibleError(
                f"workload: {self.run.workload.title} is short of memory by {format_quantity(self.shortfall, 'bytes')} "
                f"per chip on every grid that divides it; data, work space and send buffers take "
                f"{format_quantity(held, 'bytes')}, at least {chips:,} chips: use more chips, sides that more of them "
                "divide, or workload.uneven=true"
            )
        return InputError(self._undivided())

    def _undivided(self) -> str:
        plan, sides = self.plan, self.settings.sides
        rows, columns = plan.grid_rows or 1, plan.grid_columns or 1
        shape = " x ".join(f"{n:,}" for n in sides)
        if plan.grid_rows is None and plan.grid_columns is None:
            return (
                f"workload: no grid over all {self.run.system.chips:,} chips divides {shape}; leave chips idle "
                "(plan.use_all_chips=false) or charge the chip with most (workload.uneven=true)"
            )
        if len(sides) == 1:
            step = columns * columns
            return (
                f"workload.length: {sides[0]:,} has no two factors that {columns} chips divide; nearest that has: "
                f"{max(step, round(sides[0] / step) * step):,}"
            )
        each = {"nx": rows, "ny": math.lcm(rows, columns), "nz": columns}
        wrong = [
            f"workload.{name}: {side:,} does not divide over {by} chips; nearest that does: "
            f"{max(by, round(side / by) * by):,}"
            for (name, by), side in zip(each.items(), sides, strict=True)
            if side % by
        ]
        return "; ".join(wrong) + (
            "; or workload.uneven=true charges the chip with most" if wrong else "no grid divides it"
        )


def _divisors(n: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})


def read_plan(settings: Mapping[str, Any]) -> FftPlan:
    """`plan.*` of a transform. Raises InputError with every problem found."""
    return read(FftPlan, settings)


def search(run: FamilyRun) -> Result:
    """The best plan of a transform, or the original's graph under its iteration model."""
    settings = run.workload.settings
    assert isinstance(settings, FftSettings)
    if run.assumptions.iteration.model == "amortised":
        return graph_result(run, settings)
    state = FftSearch(run, settings, run.request)
    return result_of(run, _found(state, state.search()))


def _found(state: FftSearch, best: Evaluated) -> Found:
    run, cost, settings = state.run, best.cost, state.settings
    costs: dict[tuple[int, int], float] = {}
    for g, _, e in state.found:
        key = (g, e.radix * 1_000_000 + e.n1 if e.n1 else e.radix)
        costs[key] = min(costs.get(key, math.inf), e.cost.seconds)
    limit = None if run.deadline is None else max(0.0, run.deadline - time.perf_counter())
    _, mip = choose("fft_grid", costs, "grid with radix and factors (one-hot program)", "transform",
                    time_limit_s=limit, relative_gap=run.settings.relative_gap, log=run.settings.log)  # fmt: skip
    ranked = kept(state.plan, sorted(((e.cost.seconds, e) for _, _, e in state.found), key=lambda item: item[0]))
    rate = settings.flops / cost.seconds
    sent = sum(cost.local_bytes for _ in cost.exchanges) * settings.transforms
    bound = cost.seconds if state.open_bound >= cost.seconds else state.open_bound
    chip = run.system.chip
    peak = max(chip.vector_peak(settings.dtype), chip.matrix_peak(settings.dtype)) * best.grid.chips
    return Found(
        seconds=cost.seconds,
        bound=bound,
        workload={"iteration": "pair" if settings.direction == "pair" else "transform", "sides": list(settings.sides),
                  "data": settings.data, "flops": settings.flops},
        plan={**best.grid.describe(), "radix": best.radix, **({"n1": best.n1} if best.n1 else {}),
              "decomposition": _decomposition(best), "chips_used": best.grid.chips,
              "chips_idle": run.system.chips - best.grid.chips},
        metrics={
            "flops_per_s": rate,
            "flops_per_s_per_chip": rate / best.grid.chips,
            "utilisation": rate / peak,
            "exchanged_bytes_per_chip": sent,
            **rates_per_money(rate, run, "flops_per_s"),
        },
        breakdown_s=cost.breakdown,
        memory_bytes={name: copies * cost.local_bytes for name, copies in COPIES.items()},
        capacity_bytes=state.capacity,
        work=_work(best),
        certificate=_certificate(state, mip),
        summary=_summary(state, best, rate),
        edges=_edges(best.cost),
        alternatives=[
            {**_columns(e), "iteration_s": v, "of_optimum": v / cost.seconds,
             "rank": i + 1 if i < (state.plan.best or 1) else None}
            for i, (v, e) in enumerate(ranked)
        ],
    )  # fmt: skip


def _decomposition(e: Evaluated) -> str:
    if e.n1:
        return "six steps"
    if e.grid.chips == 1:
        return "one chip"
    return "slabs" if 1 in (e.grid.rows, e.grid.columns) else "pencils"


def _columns(e: Evaluated) -> dict[str, Any]:
    own = {"n1": e.n1} if e.n1 else {"decomposition": _decomposition(e)}
    return {"grid_rows": e.grid.rows, "grid_columns": e.grid.columns, "radix": e.radix, **own}


def _order(cost: FftCost) -> list[tuple[str, Group | None]]:
    """Names of local work and exchanges in the order they run."""
    exchanges = {name.replace("exchange", "pack"): (name, group) for name, group, _ in cost.exchanges}
    found: list[tuple[str, Group | None]] = []
    for work in cost.local:
        found.append((work.name, None))
        if work.name in exchanges:
            found.append(exchanges[work.name])
    return found


def _work(best: Evaluated) -> list[Work]:
    cost, n = best.cost, best.cost.transforms
    local = {w.name: w for w in cost.local}
    seconds = {name: s for name, _, s in cost.exchanges}
    return [
        Work(name, "vector", network_s=n * seconds[name], communication=f"all-to-all over {group}")
        if group is not None
        else Work(name, local[name].unit, "", n * local[name].flops, n * local[name].moved_bytes,
                  n * (local[name].compute_s + local[name].launch_s), n * local[name].memory_s)
        for name, group in _order(cost)
    ]  # fmt: skip


def _edges(cost: FftCost) -> list[tuple[str, str]]:
    names = [name for name, _ in _order(cost)]
    return list(itertools.pairwise(names))


def _certificate(state: FftSearch, mip: dict[str, Any]) -> Certificate:
    what = "both factors of the length" if len(state.settings.sides) == 1 else "the sides"
    late = ["plans left when the time limit was reached"] if state.open_bound < math.inf else []
    return Certificate(
        kind="exhaustive",
        space=f"every grid on divisors of every topology dimension that divides {what}, either side innermost, chips "
        f"left idle or not, radices {', '.join(map(str, state.radices))} on vector or matrix units",
        plans_counted=state.counted,
        plans_infeasible=state.infeasible,
        plans_evaluated=len(state.found),
        plans_settled_by_bound=state.cut,
        cut_by={"passes over memory, and exchanges at what chips inject": state.cut},
        classes=0,
        classes_opened=0,
        mips=(mip,),
        mips_solved=1,
        not_covered=("exchanges that overlap transforms; factors of a length beyond the 8 nearest to its root", *late),
    )


def _summary(state: FftSearch, best: Evaluated, rate: float) -> list[tuple[str, str]]:
    grid = best.grid
    factors = f", {best.n1:,} x {state.settings.sides[0] // best.n1:,} points" if best.n1 else ""
    return [
        ("decomposition", f"{_decomposition(best)} on {grid.rows} x {grid.columns} chips, radix {best.radix}{factors}"),
        ("  rows on", str(grid.row)),
        ("  columns on", str(grid.column)),
        ("chips", f"{grid.chips:,} used, {state.run.system.chips - grid.chips:,} idle"),
        (
            "rate",
            f"{format_quantity(rate, 'flop_rate', 4)}, {format_quantity(rate / grid.chips, 'flop_rate', 4)} per chip",
        ),
    ]


FAMILY = MappedFamily(read_plan, search, ("grid_rows", "grid_columns", "radix"))
