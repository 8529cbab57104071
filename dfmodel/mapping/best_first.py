"""Best-first search over a plan space: classes by what their matrix work alone takes, rows by what their mapped blocks
take, plans evaluated until no open bound beats what is known.

The bounds are admissible (dfmodel.mapping.bounds), so every plan that is not evaluated is no better than the answer;
what is left open when the search stops early bounds the optimum.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.block_costs import BlockCosts
from dfmodel.mapping.bounds import LeastCost, after_mapping, before_mapping, least_cost, may_fit, optimizer_s
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.mapping.plan import Plan
from dfmodel.mapping.space import PlanClass, PlanSpace, Rows
from dfmodel.workloads.graph import DTYPE_BYTES, Block

#: A bound must be below what is known by this share to be opened.
CLOSER = 1e-12


class Evaluator(Protocol):
    """What the search needs of the levels below."""

    def costs_of(self, c: PlanClass, recompute: str) -> list[BlockCosts | LeastCost] | None:
        """Costs of a class's blocks in a recomputation mode, some at their least; None where they cannot be mapped."""

    def try_plan(self, plan: Plan) -> float | None:
        """The value of a plan (seconds per sample times its weight), recorded; None where it does not fit."""

    def bound_of(self, plan: Plan) -> float | None:
        """A lower bound of a plan's value, worth having before evaluating it; 0 where evaluating costs as little,
        None where the plan does not fit."""


@dataclass(frozen=True)
class _Closed:
    """A class whose blocks are not mapped yet, with bounds of its rows."""

    plan_class: PlanClass
    rows: Rows
    bounds: np.ndarray


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
    cut_before_mapping: int = 0
    cut_by_bound: int = 0
    cut_by_memory: int = 0
    unmappable: int = 0
    evaluated: int = 0
    infeasible: int = 0


@dataclass
class BestFirst:
    """One search. `weight(chips)` multiplies seconds per sample into the value that is minimised; `threshold()` is the
    value a plan must beat to matter; `late()` ends the search."""

    space: PlanSpace
    assumptions: Assumptions
    timer: KernelTimer
    evaluator: Evaluator
    weight: Callable[[np.ndarray], np.ndarray]
    threshold: Callable[[], float]
    late: Callable[[], bool]
    capacity: float
    blocks_at: Callable[[int], Sequence[Block]]
    prune: bool = True
    counts: Counts = field(default_factory=Counts)
    #: The least bound of what was not settled; infinite where everything was.
    open_bound: float = np.inf
    _heap: list[tuple[float, int, _Closed | _Opened | _Single]] = field(default_factory=list)
    _least: dict[tuple[int, int, str], list[LeastCost]] = field(default_factory=dict)
    _known: dict[tuple[tuple[int, ...], int], tuple[Rows, np.ndarray, int]] = field(default_factory=dict)
    _order: Iterator[int] = field(default_factory=itertools.count)

    def run(self) -> None:
        """Evaluate plans until the rest cannot beat the threshold."""
        for c in self.space.classes():
            rows = self.space.rows(c)
            if not len(rows):
                continue
            self.counts.classes += 1
            self.counts.counted += rows.plans
            rows, bounds, cut = self._before_cached(c, rows)
            self.counts.cut_by_memory += cut
            rows, bounds = self._promising(rows, bounds)
            if len(rows):
                self._push(float(bounds.min()), _Closed(c, rows, bounds))
        while self._heap:
            bound, _, node = self._heap[0]
            if self.prune and bound >= self.threshold() * (1 - CLOSER):
                break
            if self.late():
                self.open_bound = bound
                break
            heapq.heappop(self._heap)
            if isinstance(node, _Closed):
                self._open(node)
            elif isinstance(node, _Opened):
                self._next_row(node)
            else:
                self._evaluate(node.plan)
        for _, _, node in self._heap:
            if isinstance(node, _Closed):
                self.counts.cut_before_mapping += node.rows.plans
            else:
                self.counts.cut_by_bound += node.plans

    def _push(self, bound: float, node: _Closed | _Opened | _Single) -> None:
        heapq.heappush(self._heap, (bound, next(self._order), node))

    @property
    def _bubble(self) -> bool:
        """Whether the schedule's bubble is at least 1F1B's or an interleaved one's."""
        return not (self.space.request.schedule or "").startswith("zb") and self.space.workload.training

    @property
    def _gradient_bytes(self) -> float:
        return DTYPE_BYTES[self.assumptions.memory.gradient]

    def _promising(self, rows: Rows, bounds: np.ndarray) -> tuple[Rows, np.ndarray]:
        """Rows whose bound is below what must be beaten; the others are counted."""
        if not self.prune:
            return rows, bounds
        below = bounds < self.threshold() * (1 - CLOSER)
        self.counts.cut_by_bound += int(rows.places[~below].sum())
        return _taken(rows, np.nonzero(below)[0]), bounds[below]

    def _before_cached(self, c: PlanClass, rows: Rows) -> tuple[Rows, np.ndarray, int]:
        """`_before` and how many plans memory cut in it; sequence sharding changes neither."""
        key = (c.tensor, c.micro_batch)
        if key not in self._known:
            had = self.counts.cut_by_memory
            kept, bounds = self._before(c, rows)
            self._known[key] = kept, bounds, self.counts.cut_by_memory - had
            self.counts.cut_by_memory = had
        return self._known[key]

    def _before(self, c: PlanClass, rows: Rows) -> tuple[Rows, np.ndarray]:
        """Rows of a class that may fit memory, and bounds of their values, before its blocks are mapped."""
        repeats = [n for _, n in self.space.workload.blocks]
        kept, bounds = [], []
        for number, mode in enumerate(self.space.recomputes):
            own = _taken(rows, np.nonzero(rows.recompute == number)[0])
            key = (c.degree, c.micro_batch, mode)
            if key not in self._least:
                self._least[key] = [least_cost(b, c.degree, self.timer, mode) for b in self.blocks_at(c.micro_batch)]
            own = _taken(own, self._fitting(own, self._least[key]))
            kept.append(own)
            seconds = before_mapping(own, self._least[key], repeats, self._gradient_bytes, self._bubble)
            bounds.append(self._value(c, own, seconds))
        return _joined(kept), np.concatenate(bounds)

    def _fitting(self, rows: Rows, costs: Sequence[BlockCosts | LeastCost]) -> np.ndarray:
        """Numbers of the rows that memory leaves possible; the others are counted."""
        if not self.prune or not len(rows):
            return np.arange(len(rows))
        repeats = [n for _, n in self.space.workload.blocks]
        schedule, training = self.space.request.schedule or "1f1b", self.space.workload.training
        fits = may_fit(rows, costs, repeats, self.assumptions, self.capacity, schedule, training)
        self.counts.cut_by_memory += int(rows.places[~fits].sum())
        return np.nonzero(fits)[0]

    def _value(self, c: PlanClass, rows: Rows, seconds: np.ndarray) -> np.ndarray:
        """Bounds of seconds per iteration as bounds of the value."""
        samples = rows.data * rows.micro_batches * c.micro_batch
        return seconds / samples * self.weight(rows.data * rows.pipeline * c.degree)

    def _open(self, node: _Closed) -> None:
        """Map a class: its rows that may fit, ranked by bound, one entry per recomputation mode."""
        self.counts.opened += 1
        c, rows = node.plan_class, node.rows
        repeats = [n for _, n in self.space.workload.blocks]
        training = self.space.workload.training
        for number, mode in enumerate(self.space.recomputes):
            index = np.nonzero(rows.recompute == number)[0]
            own = _taken(rows, index)
            costs = self.evaluator.costs_of(c, mode) if len(index) else None
            if costs is None:
                self.counts.unmappable += own.plans
                continue
            fits = self._fitting(own, costs)
            own, floor = _taken(own, fits), node.bounds[index][fits]
            least = optimizer_s(own, costs, repeats, self.assumptions, self.timer) if training else np.zeros(len(own))
            seconds = after_mapping(own, costs, repeats, self._gradient_bytes, self._bubble) + least
            own, bounds = self._promising(own, np.maximum(self._value(c, own, seconds), floor))
            ranked = np.argsort(bounds, kind="stable")
            if len(ranked):
                self._push(float(bounds[ranked[0]]), _Opened(c, own, bounds, ranked, 0))

    def _next_row(self, node: _Opened) -> None:
        """Evaluate the plans of an entry's best row, or bound them better first; its next row goes back to the heap."""
        for plan in self.space.plans_of(node.plan_class, node.rows, int(node.ranked[node.at])):
            bound = self.evaluator.bound_of(plan)
            if bound is None:
                self.counts.evaluated += 1
                self.counts.infeasible += 1
            elif bound == 0.0:
                self._evaluate(plan)
            elif self.prune and bound >= self.threshold() * (1 - CLOSER):
                self.counts.cut_by_bound += 1
            else:
                self._push(bound, _Single(plan))
        if node.at + 1 < len(node.ranked):
            self._push(float(node.bounds[node.ranked[node.at + 1]]), replace(node, at=node.at + 1))

    def _evaluate(self, plan: Plan) -> None:
        self.counts.evaluated += 1
        if self.evaluator.try_plan(plan) is None:
            self.counts.infeasible += 1


def _joined(parts: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate([getattr(p, name) for p in parts]) for name in Rows.__dataclass_fields__))


def _taken(rows: Rows, index: np.ndarray) -> Rows:
    return Rows(*(getattr(rows, name)[index] for name in Rows.__dataclass_fields__))
