"""Best-first search over a plan space: classes by what their work alone takes, rows by what their mapped blocks take,
plans evaluated until no open bound beats what is known.

The bounds are admissible (dfmodel.mapping.bounds, class_table), so every plan that is not evaluated is no better than
the answer; what is left open when the search stops early bounds the optimum. A class is bounded by its degrees alone at
first, with matrix work only, then with the mapping of the largest micro-batch, scaled, then with its own (on dataflow
chips: its own before partitioning; with context parallelism: that of whole sequences, scaled); its rows are made last.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import numpy as np

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.between import Between
from dfmodel.mapping.block_costs import BlockCosts
from dfmodel.mapping.bounds import after_mapping, may_fit, optimizer_s, pairs_s
from dfmodel.mapping.class_table import ClassTable
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.mapping.least_cost import LeastCost
from dfmodel.mapping.objective import Objective
from dfmodel.mapping.plan import Plan
from dfmodel.mapping.space import Pairs, PlanClass, PlanSpace, Rows
from dfmodel.workloads.graph import DTYPE_BYTES

#: A bound must be below what is known by this share to be opened.
CLOSER = 1e-12

#: Costs of a class's blocks, some at their least.
Costs = list[BlockCosts | LeastCost]


class Evaluator(Protocol):
    """What the search needs of the levels below."""

    def costs_of(self, c: PlanClass, recompute: str) -> Costs | None:
        """Costs of a class's blocks in a recomputation mode, some at their least; None where they cannot be mapped."""

    def least_seconds_of(self, c: PlanClass) -> list[float]:
        """Seconds of a micro-batch in one copy of each block, at least, that need no mapping."""

    def scaled_seconds_of(self, c: PlanClass) -> list[float] | None:
        """The same from the mapping of the largest micro-batch; None where that cannot be mapped."""

    def seconds_of(self, c: PlanClass) -> list[float] | None:
        """Seconds of a micro-batch in one copy of each block, some at their least, under the recomputation that takes
        least; None where the class cannot be mapped."""

    def between(self, c: PlanClass, replicas: np.ndarray) -> Between | None:
        """What passes between stages and between so many chips that hold the same; None where nothing is known."""

    def between_placed(self, plans: Sequence[Plan]) -> Between | None:
        """The same of plans that differ in where data and pipeline degrees lie, as those places have it; None where
        evaluating costs as little."""

    def try_plan(self, plan: Plan) -> float | None:
        """The value of a plan (seconds per sample times its weight), recorded; None where it does not fit."""

    def bound_of(self, plan: Plan) -> float | None:
        """A lower bound of a plan's value, worth having before evaluating it; 0 where evaluating costs as little,
        None where the plan does not fit."""


@dataclass(frozen=True)
class _Class:
    """A class of so many plans without its rows; `mapped` says that its bound is that of its own mapping."""

    plan_class: PlanClass
    plans: int
    mapped: bool


@dataclass(frozen=True)
class _Opened:
    """Rows of a mapped class under one recomputation mode, ranked by their bounds; those from `at` on are left."""

    plan_class: PlanClass
    rows: Rows
    bounds: np.ndarray
    ranked: np.ndarray
    at: int

    @property
    def plans(self) -> int:
        return int(self.rows.places[self.ranked[self.at :]].sum())


@dataclass(frozen=True)
class _Single:
    """One plan, whose bound is its own."""

    plan: Plan

    plans = 1


@dataclass
class Counts:
    """What became of the plans."""

    counted: int = 0
    classes: int = 0
    opened: int = 0
    dominated: int = 0
    cut_before_mapping: int = 0
    cut_by_bound: int = 0
    cut_by_memory: int = 0
    unmappable: int = 0
    evaluated: int = 0
    infeasible: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass
class BestFirst:
    """One search. `table` lists the space's classes with their first bounds; `objective` makes chips and seconds per
    sample the value that is minimised; `threshold()` is the value a plan must beat to matter; `late()` ends the
    search."""

    space: PlanSpace
    table: ClassTable
    assumptions: Assumptions
    timer: KernelTimer
    evaluator: Evaluator
    objective: Objective
    threshold: Callable[[], float]
    late: Callable[[], bool]
    capacity: float
    prune: bool = True
    counts: Counts = field(default_factory=Counts)
    #: The least bound of what was not settled; infinite where everything was.
    open_bound: float = np.inf
    _heap: list[tuple[float, int, _Class | _Opened | _Single]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)

    def run(self) -> None:
        """Evaluate plans until the rest cannot beat the threshold."""
        counts = self.counts
        counts.classes, counts.counted = self.table.classes, self.table.plans
        counts.dominated = self.table.dominated if self.prune else 0
        waiting = self.table.by_floor(dominated=not self.prune)
        unseen = counts.counted - counts.dominated
        floor, number = next(waiting, (math.inf, -1))
        while self._heap or number >= 0:
            bound = min(floor, self._heap[0][0] if self._heap else math.inf)
            if self.prune and bound >= self._to_beat:
                break
            if self.late():
                self.open_bound = bound
                break
            if number >= 0 and floor <= bound:
                for c, plans in self.table.classes_at(number):
                    unseen -= plans
                    self._first_seen(c, plans, floor)
                floor, number = next(waiting, (math.inf, -1))
                continue
            _, _, node = heapq.heappop(self._heap)
            if isinstance(node, _Class):
                self._look_closer(node, bound)
            elif isinstance(node, _Opened):
                self._next_row(node)
            else:
                self._evaluate(node.plan)
        counts.cut_before_mapping += unseen
        for _, _, rest in self._heap:
            counts.cut_by_bound += rest.plans

    def _push(self, bound: float, node: _Class | _Opened | _Single) -> None:
        heapq.heappush(self._heap, (bound, next(self._order), node))

    @property
    def _to_beat(self) -> float:
        """What a bound must be below to be worth opening."""
        return self.threshold() * (1 - CLOSER)

    @property
    def _bubble(self) -> bool:
        """Whether the schedule's bubble is at least 1F1B's or an interleaved one's."""
        return not (self.space.request.schedule or "").startswith("zb") and self.space.workload.training

    @property
    def _gradient_bytes(self) -> float:
        return DTYPE_BYTES[self.assumptions.memory.gradient]

    @property
    def _repeats(self) -> list[int]:
        return [n for _, n in self.space.workload.blocks]

    def _first_seen(self, c: PlanClass, plans: int, floor: float) -> None:
        """A class none of which can be faster than `floor`."""
        if not self.prune:
            self._open(c, self.space.rows(c))
        elif not self._worth_mapping(c, plans):
            return
        elif c.context_degree == 1 and c.micro_batch < max(self.space.micro_batches):
            self._bound_class(c, plans, floor, self.evaluator.scaled_seconds_of(c), mapped=False)
        else:
            self._bound_class(c, plans, floor, self.evaluator.seconds_of(c), mapped=True)

    def _look_closer(self, node: _Class, floor: float) -> None:
        if node.mapped:
            seconds = self.evaluator.seconds_of(node.plan_class)
            assert seconds is not None
            self._open(node.plan_class, self._rows_worth(node.plan_class, node.plans, seconds))
        else:
            self._bound_class(
                node.plan_class, node.plans, floor, self.evaluator.seconds_of(node.plan_class), mapped=True
            )

    def _bound_class(
        self, c: PlanClass, plans: int, floor: float, seconds: Sequence[float] | None, mapped: bool
    ) -> None:
        """Bound a class by its degrees with so many seconds for each block."""
        if seconds is None:
            self.counts.unmappable += plans
            return
        bound = max(floor, float(self._pair_bounds(c, seconds).min(initial=math.inf)))
        if bound >= self._to_beat:
            self.counts.cut_by_bound += plans
        else:
            self._push(bound, _Class(c, plans, mapped))

    def _worth_mapping(self, c: PlanClass, plans: int) -> bool:
        """Whether some degrees of a class may beat what is known with matrix work alone; if none, it is counted."""
        bounds = self._plain_bounds(c, self.evaluator.least_seconds_of(c))
        if float(bounds.min(initial=math.inf)) < self._to_beat:
            return True
        self.counts.cut_before_mapping += plans
        return False

    def _plain_bounds(self, c: PlanClass, seconds: Sequence[float]) -> np.ndarray:
        """Bounds of the values of a class's data and pipeline degrees, from their work alone."""
        pairs = self.space.pairs(c)
        return self._value(c, pairs, pairs_s(pairs, seconds, self._repeats, self._bubble))

    def _pair_bounds(self, c: PlanClass, seconds: Sequence[float]) -> np.ndarray:
        """The same, closer where that does not cut them."""
        pairs, bounds = self.space.pairs(c), self._plain_bounds(c, seconds)
        left = np.nonzero(bounds < self._to_beat)[0]
        if len(left):
            own = pairs.taken(left)
            between = self.evaluator.between(c, own.data * c.context_degree)
            bounds[left] = self._value(c, own, pairs_s(own, seconds, self._repeats, self._bubble, between))
        return bounds

    def _rows_worth(self, c: PlanClass, plans: int, seconds: Sequence[float]) -> Rows:
        """The rows of a class whose degrees may beat what is known; the others are counted."""
        chosen = np.nonzero(self._pair_bounds(c, seconds) < self._to_beat)[0]
        rows = self.space.rows(c, chosen)
        self.counts.cut_by_bound += plans - rows.plans
        return rows

    def _promising(self, rows: Rows, bounds: np.ndarray) -> tuple[Rows, np.ndarray]:
        """Rows whose bound is below what must be beaten; the others are counted."""
        if not self.prune:
            return rows, bounds
        below = bounds < self._to_beat
        self.counts.cut_by_bound += int(rows.places[~below].sum())
        return rows.taken(np.nonzero(below)[0]), bounds[below]

    def _fitting(self, rows: Rows, costs: Sequence[BlockCosts | LeastCost]) -> np.ndarray:
        """Numbers of the rows that memory leaves possible; the others are counted."""
        if not self.prune or not len(rows):
            return np.arange(len(rows))
        schedule, training = self.space.request.schedule or "1f1b", self.space.workload.training
        fits = may_fit(rows, costs, self._repeats, self.assumptions, self.capacity, schedule, training)
        self.counts.cut_by_memory += int(rows.places[~fits].sum())
        return np.nonzero(fits)[0]

    def _value(self, c: PlanClass, rows: Rows | Pairs, seconds: np.ndarray) -> np.ndarray:
        """Bounds of seconds per iteration as bounds of the value."""
        samples = rows.data * rows.micro_batches * c.micro_batch
        return self.objective.value(rows.data * rows.pipeline * math.prod(c.taken), seconds / samples)

    def _open(self, c: PlanClass, rows: Rows) -> None:
        """Map a class: its rows that may fit, ranked by bound, one entry per recomputation mode."""
        self.counts.opened += 1
        for number, mode in enumerate(self.space.recomputes):
            index = np.nonzero(rows.recompute == number)[0]
            own = rows.taken(index)
            costs = self.evaluator.costs_of(c, mode) if len(index) else None
            if costs is None:
                self.counts.unmappable += own.plans
                continue
            own = own.taken(self._fitting(own, costs))
            seconds = self._seconds(own, costs, self.evaluator.between(c, own.replicas))
            own, bounds = self._promising(own, self._value(c, own, seconds))
            ranked = np.argsort(bounds, kind="stable")
            if len(ranked):
                self._push(float(bounds[ranked[0]]), _Opened(c, own, bounds, ranked, 0))

    def _seconds(self, rows: Rows, costs: Costs, between: Between | None) -> np.ndarray:
        """Least seconds per iteration of rows of one recomputation mode from mapped blocks."""
        seconds = after_mapping(rows, costs, self._repeats, self._gradient_bytes, self._bubble, between)
        if not self.space.workload.training:
            return seconds
        return seconds + optimizer_s(rows, costs, self._repeats, self.assumptions, self.timer)

    def _next_row(self, node: _Opened) -> None:
        """Evaluate the plans of an entry's best row, or bound them better first; its next row goes back to the heap."""
        row = int(node.ranked[node.at])
        plans = list(self.space.plans_of(node.plan_class, node.rows, row))
        floors = self._placed_bounds(node, row, plans) if self.prune else [0.0] * len(plans)
        for plan, floor in zip(plans, floors, strict=True):
            bound = floor or self.evaluator.bound_of(plan)
            if bound is None:
                self.counts.evaluated += 1
                self.counts.infeasible += 1
            elif bound == 0.0:
                self._evaluate(plan)
            elif self.prune and bound >= self._to_beat:
                self.counts.cut_by_bound += 1
            else:
                self._push(bound, _Single(plan))
        if node.at + 1 < len(node.ranked):
            self._push(float(node.bounds[node.ranked[node.at + 1]]), replace(node, at=node.at + 1))

    def _placed_bounds(self, node: _Opened, row: int, plans: Sequence[Plan]) -> list[float]:
        """Bounds of the plans of a row, or 0 where they are not worth having."""
        between = self.evaluator.between_placed(plans) if len(plans) > 1 else None
        if between is None:
            return [0.0] * len(plans)
        own = node.rows.taken(np.full(len(plans), row))
        costs = self.evaluator.costs_of(node.plan_class, self.space.recomputes[int(node.rows.recompute[row])])
        assert costs is not None
        return [float(b) for b in self._value(node.plan_class, own, self._seconds(own, costs, between))]

    def _evaluate(self, plan: Plan) -> None:
        self.counts.evaluated += 1
        if self.evaluator.try_plan(plan) is None:
            self.counts.infeasible += 1
