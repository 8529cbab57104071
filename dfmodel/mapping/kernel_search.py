"""The search of plans: the space best first, with an objective, and baselines beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dfmodel.errors import InfeasibleError, InputError
from dfmodel.mapping.best_first import BestFirst
from dfmodel.mapping.between import Between
from dfmodel.mapping.block_costs import BlockCosts, Longer, longer_over, repriced
from dfmodel.mapping.class_table import ClassTable
from dfmodel.mapping.context import ONE_CHIP, exposed_share
from dfmodel.mapping.least_cost import LeastCost, LeastCosts, Message, scaled, scaled_s
from dfmodel.mapping.map_block import MappedBlock
from dfmodel.mapping.objective import Objective, chip_share, objective_of
from dfmodel.mapping.pipeline import boundary_tensors
from dfmodel.mapping.plan import Plan, PlanRequest, plan_request
from dfmodel.mapping.sharding import NoShardingError
from dfmodel.mapping.space import PlanClass, PlanSpace
from dfmodel.systems.algorithms import reachable_bytes_per_s
from dfmodel.systems.network import Group, Part, innermost, place
from dfmodel.systems.system import System
from dfmodel.units import format_quantity
from dfmodel.workloads.graph import DTYPE_BYTES, main_block

if TYPE_CHECKING:
    from dfmodel.mapping.search import Evaluated, Search


def limited_request(system: System, request: PlanRequest) -> PlanRequest:
    """Limits on power and cost as a limit on chips, each at its share of the system's total. Raises InfeasibleError
    where they are not enough for one chip."""
    most = request.at_most_chips or system.chips
    for key, what, kind in (("at_most_cost", "price", "money"), ("at_most_power", "power", "power")):
        limit = getattr(request, key)
        if limit is None:
            continue
        each = chip_share(system, what, f"plan.{key}")
        if limit < each * (1 - 1e-12):
            raise InfeasibleError(
                f"plan.{key} {format_quantity(limit, kind)}: not enough for a single chip, which takes "
                f"{format_quantity(each, kind)} with its share of memory, links and switches"
            )
        most = min(most, math.floor(limit / each * (1 + 1e-12)))
    return replace(request, at_most_chips=most) if most < system.chips else request


@dataclass(frozen=True)
class Baseline:
    """A plan a user would have tried, or why there is none. `share` is its value over the optimum's."""

    name: str
    plan: dict[str, Any] | None
    seconds: float | None
    samples_per_s: float | None
    share: float | None
    why_not: str = ""


class _Levels:
    """Adapts a Search to what BestFirst asks of it."""

    def __init__(self, search: Search, space: PlanSpace, record: Callable[[Evaluated], float]):
        self.search, self.space, self.record = search, space, record
        self.mapper = search.mapper
        self.repeats = [n for _, n in search.workload.blocks]
        self.main = main_block(self.repeats)
        self._training = search.workload.training
        self._costs: dict[tuple[PlanClass, str], list[BlockCosts | LeastCost] | None] = {}
        self._least: dict[tuple[int, int, int, str], list[LeastCost]] = {}
        self._least_seconds: dict[tuple[int, int, int], list[float]] = {}
        self._gathered: dict[tuple[tuple[int, ...], tuple[int, ...], int], tuple[float, float]] = {}
        self._placed: dict[tuple[int, ...], Group] = {}
        self._inner: dict[int, Group] = {}
        self._sends: dict[tuple[int, int, int], float] = {}
        self._longer_over: dict[tuple[int, str, Group], tuple[MappedBlock, Longer]] = {}

    def least(self) -> list[LeastCosts]:
        """Least costs of every block under the recomputation that repeats least."""
        by_mode = [[self.mapper.least_costs(i, mode) for mode in self.space.recomputes] for i in self._blocks]
        return [min(modes, key=lambda costs: costs.repeated_flops) for modes in by_mode]

    def messages(self) -> list[list[Message]]:
        """What every block gathers over a context parallel group, where that adds to its time."""
        return [self.mapper.messages(i) if self.mapper.additive else [] for i in self._blocks]

    @property
    def _blocks(self) -> range:
        return range(len(self.repeats))

    def least_costs_of(self, c: PlanClass, recompute: str) -> list[LeastCost]:
        key = (c.degree, c.context_degree, c.micro_batch, recompute)
        if key not in self._least:
            self._least[key] = [
                self.mapper.least_costs(i, recompute).at(c.degree, c.micro_batch, c.context_degree)
                for i in self._blocks
            ]
        return self._least[key]

    def costs_of(self, c: PlanClass, recompute: str) -> list[BlockCosts | LeastCost] | None:
        """The most repeated block mapped (on dataflow chips: sharded, its partitioning at the least it can take), the
        others at the least they can take. Where communication adds to a kernel's time, a block is mapped once per
        tensor degree and its collectives priced for each placement of it."""
        key = (c, recompute)
        if key not in self._costs:
            self._costs[key] = self._costs_of(c, recompute)
        return self._costs[key]

    def _costs_of(self, c: PlanClass, recompute: str) -> list[BlockCosts | LeastCost] | None:
        if c.context_degree > 1 and not self.search.settings.certify_all:
            return self._shared_costs_of(c, recompute)
        group = self._group(c.tensor)
        where = group
        if self.mapper.additive and not self.search.settings.certify_all:
            where = self._innermost(c.degree)
        context = self.mapper.context_of(where, c.sequence, self._context_group(c))
        try:
            mapped = self.mapper.bounded_in(context, c.micro_batch, self.main)
        except (NoShardingError, InfeasibleError) as error:
            if isinstance(error, InfeasibleError):
                self.search.refused.append(error)
            return None
        costs = mapped.costs(recompute, self._training)
        if where != group:
            costs = repriced(costs, [self._longer(mapped, recompute, group)])
        return self._with_least(c, recompute, costs)

    def _shared_costs_of(self, c: PlanClass, recompute: str) -> list[BlockCosts | LeastCost] | None:
        """Least costs of a class with context parallelism from the same micro-batch of whole sequences, with what is
        gathered divided over all tensor parallel chips."""
        whole = self.costs_of(replace(c, context=(1,) * len(c.context)), recompute)
        if whole is None:
            return None
        share = 1 / c.context_degree
        started = self.mapper.least_costs(self.main, recompute).started_s
        costs = scaled(whole[self.main], share, started)
        if self.mapper.additive:
            costs = self._with_gathered(c, costs)
        return self._with_least(c, recompute, costs)

    def _with_gathered(self, c: PlanClass, costs: LeastCost) -> LeastCost:
        key = (c.tensor, c.context, c.micro_batch)
        if key not in self._gathered:
            group, share = self._context_group(c), c.micro_batch / c.degree
            forward, backward = (
                sum(
                    self.search.price(m.operation, m.bytes * share, group)
                    for m in self.mapper.messages(self.main)
                    if (m.phase == "forward") == first
                )
                for first in (True, False)
            )
            self._gathered[key] = forward, backward
        forward, backward = self._gathered[key]
        return replace(costs, forward_s=costs.forward_s + forward, backward_s=costs.backward_s + backward)

    def _context_group(self, c: PlanClass) -> Group:
        if c.context_degree == 1:
            return ONE_CHIP
        return place([("tensor", c.tensor), ("context", c.context)], self.search.system.dimensions)["context"]

    def _group(self, tensor: tuple[int, ...]) -> Group:
        if tensor not in self._placed:
            self._placed[tensor] = place([("tensor", tensor)], self.search.system.dimensions)["tensor"]
        return self._placed[tensor]

    def _innermost(self, tensor: int) -> Group:
        if tensor not in self._inner:
            self._inner[tensor] = innermost(tensor, self.search.system.dimensions)
        return self._inner[tensor]

    def _longer(self, mapped: MappedBlock, recompute: str, group: Group) -> Longer:
        key = (id(mapped), recompute, group)
        if key not in self._longer_over:
            # the mapping is kept beside it, so that no other one can get its number
            share = exposed_share(self.search.assumptions, mapped.evaluator.context)
            found = longer_over(
                mapped.evaluation, recompute, "tensor", lambda op, size: self.search.price(op, size, group) * share
            )
            self._longer_over[key] = mapped, found
        return self._longer_over[key][1]

    def _with_least(self, c: PlanClass, recompute: str, main: BlockCosts | LeastCost) -> list[BlockCosts | LeastCost]:
        least = self.least_costs_of(c, recompute)
        return [main if i == self.main else costs for i, costs in enumerate(least)]

    def least_seconds_of(self, c: PlanClass) -> list[float]:
        key = (c.degree, c.context_degree, c.micro_batch)
        if key not in self._least_seconds:
            self._least_seconds[key] = _shortest([self.least_costs_of(c, mode) for mode in self.space.recomputes])
        return self._least_seconds[key]

    def seconds_of(self, c: PlanClass) -> list[float] | None:
        found = [self.costs_of(c, mode) for mode in self.space.recomputes]
        known = [costs for costs in found if costs is not None]
        return _shortest(known) if known else None

    def scaled_seconds_of(self, c: PlanClass) -> list[float] | None:
        """The most repeated block at its share of what the largest multiple of the micro-batch takes, the others at the
        least they can take."""
        least = self.least_seconds_of(c)
        if self.search.settings.certify_all:
            return least
        # a whole multiple: work by shape in whole tiles and waves shrinks only so without loss
        largest = max(b for b in self.space.micro_batches if b % c.micro_batch == 0)
        whole = self.seconds_of(replace(c, micro_batch=largest))
        if whole is None:
            return None
        share = c.micro_batch / largest
        started = self.mapper.least_costs(self.main, self.space.recomputes[0]).started_s
        at_share = scaled_s(whole[self.main], share, sum(started))
        return [at_share if i == self.main else s for i, s in enumerate(least)]

    def between(self, c: PlanClass, replicas: np.ndarray) -> Between | None:
        """Between stages a chip's share of the main block's output at least goes over the best dimension; gradients and
        parameters go over the links that so many chips can have beside the tensor parallel ones."""
        if not self._training:
            return None
        rates = self.space.least_gather_rates(replicas, c.tensor)
        least = self.least_costs_of(c, self.space.recomputes[0])[self.main]
        gradient = DTYPE_BYTES[self.search.assumptions.memory.gradient]
        iteration = self.search.assumptions.iteration
        send = self._send_s(c)
        return Between(
            send,
            0.0 if iteration.hide_sends else send,
            least.parameters * gradient * rates,
            least.parameter_bytes * rates,
            iteration.overlap_share,
        )

    def between_placed(self, plans: Sequence[Plan]) -> Between | None:
        """As `between`, with the very groups of every plan, under ZeRO 0 and 1."""
        first = plans[0]
        if not self._training or first.zero > 1 or self.search.system.chip.execution == "dataflow":
            return None
        price, iteration = self.search.price, self.search.assumptions.iteration
        tensor, pipeline = first.degree("tensor"), first.degree("pipeline")
        least = self.mapper.least_costs(self.main, first.recompute).at(tensor, first.micro_batch)
        layers = self.repeats[self.main] / pipeline
        gradients = layers * least.parameters * DTYPE_BYTES[self.search.assumptions.memory.gradient]
        if first.zero == 0:
            reduced = [price("all_reduce", gradients, p.replicas) / 2 for p in plans]
            gathered = reduced
        else:
            reduced = [price("reduce_scatter", gradients, p.replicas) for p in plans]
            gathered = [price("all_gather", layers * least.parameter_bytes, p.replicas) for p in plans]
        share = self._message_bytes(first.micro_batch) / (tensor * first.degree("context"))
        sends = np.array([price("point_to_point", share, p.groups["pipeline"]) for p in plans])
        return Between(
            sends,
            np.zeros(len(plans)) if iteration.hide_sends else sends,
            np.array(reduced) / layers,
            np.array(gathered) / layers,
            iteration.overlap_share,
        )

    def _message_bytes(self, micro_batch: int) -> float:
        """Bytes of a micro-batch that go from one stage to the next, over all chips of a stage."""
        block, _ = self.search.workload.blocks[self.main]
        return sum(x.bytes for x in boundary_tensors(block.at_batch(micro_batch)))

    def _send_s(self, c: PlanClass) -> float:
        """Least seconds of one message between stages."""
        key = (c.degree, c.context_degree, c.micro_batch)
        if key not in self._sends:
            share = self._message_bytes(c.micro_batch) / (c.degree * c.context_degree)
            lines = [
                Group((Part(d, n, 1),)) for d in self.search.system.dimensions for n in {2, 3, d.size} if n <= d.size
            ]
            self._sends[key] = min(
                (self.search.price("point_to_point", share, g) for g in lines if g.size > 1), default=0.0
            )
        return self._sends[key]

    def bound_of(self, plan: Plan) -> float | None:
        """On dataflow chips the plan with its blocks sharded but not partitioned, everything else in full."""
        if self.search.system.chip.execution != "dataflow":
            return 0.0
        if self.search.is_refused(plan):
            return None
        try:
            found = self.search.evaluate(plan, relaxed=True)
        except (NoShardingError, InfeasibleError):
            return None
        return None if found is None else self.search.value(found)

    def try_plan(self, plan: Plan) -> float | None:
        try:
            found = self.search.evaluate(plan)
        except (NoShardingError, InfeasibleError) as error:
            if isinstance(error, InfeasibleError):
                self.search.refused.append(error)
            return None
        return None if found is None else self.record(found)


def _shortest(by_mode: Sequence[Sequence[BlockCosts | LeastCost]]) -> list[float]:
    """Seconds of each block under the recomputation that takes it least."""
    return [min(x.forward_s + x.backward_s + x.weights_s for x in own) for own in zip(*by_mode, strict=True)]


def search_plans(
    search: Search, request: PlanRequest, record: Callable[[Evaluated], float], threshold: Callable[[], float]
) -> BestFirst:
    """One best-first search of what `request` leaves open; `record` notes a feasible plan and gives its value."""
    levels, table, objective = _classes(search, request, record)
    found = BestFirst(
        space=levels.space,
        table=table,
        assumptions=search.assumptions,
        timer=search.timer,
        evaluator=levels,
        objective=objective,
        threshold=threshold,
        late=search.late,
        capacity=search.capacity_bytes,
        prune=search.settings.prune,
    )
    found.run()
    return found


def least_value(search: Search) -> float:
    """What no plan of the whole space is below, known before a block is mapped: the least floor of its classes."""
    _, table, _ = _classes(search, limited_request(search.system, search.request), lambda found: math.inf)
    return next((floor for floor, _ in table.by_floor(dominated=False)), math.inf)


def _classes(
    search: Search, request: PlanRequest, record: Callable[[Evaluated], float]
) -> tuple[_Levels, ClassTable, Objective]:
    """The space of what `request` leaves open, as classes with their floors, and the objective."""
    reachable = None
    if search.assumptions.network.collectives == "physical":
        reachable = reachable_bytes_per_s(search.system.dimensions, search.system.chip.efficiency.link_max)
    levels = _Levels(search, PlanSpace(search.workload, search.system, request, reachable), record)
    objective = objective_of(search.workload, search.system, request)
    # a fixed number of tiles cuts fewer tokens into smaller ones: then a class may be better than the one that
    # otherwise dominates it
    may_dominate = search.assumptions.partitions.tiles is None and not search.settings.certify_all
    table = ClassTable(levels.space, levels.least(), levels.messages(), objective.weight, may_dominate)
    return levels, table, objective


def seed(search: Search, request: PlanRequest, record: Callable[[Evaluated], float]) -> None:
    """Record a plan to start from: tensor parallel in a node with the fewest stages that fit, where the request leaves
    that open. What must be beaten cuts plans before anything else is known of them."""
    node = search.system.dimensions[0].size
    if any(getattr(request, name) is not None for name in ("tensor", "pipeline", "placement", "micro_batch")):
        return
    found: list[float] = []

    def noted(plan: Evaluated) -> float:
        found.append(record(plan))
        return found[-1]

    for stages in _rising(search, node):
        rule = replace(request, tensor=node, context=request.context or 1, pipeline=stages, micro_batch=1)
        before = len(search.shortfalls)
        # the first that is feasible, which has the best bound of its kind, will do
        search_plans(search, rule, noted, lambda: 0.0 if found else math.inf)
        del search.shortfalls[before:]
        if found:
            return


def try_most_saving(search: Search, found: BestFirst) -> None:
    """Evaluate, per tensor degree, the plan that should need least memory, so that what is short can be said."""
    space = found.space
    seen: set[int] = set()
    for c in space.classes():
        rows = space.rows(c)
        if c.degree in seen or not len(rows):
            continue
        seen.add(c.degree)
        order = np.lexsort(
            (rows.micro_batches, -rows.zero, -rows.recompute, rows.chunks, -rows.pipeline * (rows.data + 1))
        )
        for plan in space.plans_of(c, rows, int(order[0])):
            try:
                search.evaluate(plan)
            except (NoShardingError, InfeasibleError):
                continue
            break


def baselines(search: Search, best_value: float) -> list[Baseline]:
    """Pure data parallelism, Megatron's rule of thumb, and what the user asks to compare with, each at its best."""
    request = search.request
    open_request = PlanRequest(
        objective=request.objective, batch_at_most=request.batch_at_most, at_most_chips=request.at_most_chips,
        micro_batch=request.micro_batch,
    )  # fmt: skip
    found = [_named(search, "pure data parallel", [replace(open_request, tensor=1, context=1, pipeline=1)], best_value)]
    node = search.system.dimensions[0].size
    rule = [
        replace(
            open_request,
            tensor=node,
            context=1,
            pipeline=p,
            schedule="1f1b",
            zero=1,
            placement={"tensor": {_first(search): node}},
        )
        for p in _rising(search, node)
    ]
    found.append(_named(search, "Megatron's rule: tensor in a node, fewest stages that fit", rule, best_value))
    if request.compare:
        asked = plan_request(
            {**request.compare, "objective": request.objective, "batch_at_most": request.batch_at_most}
        )
        found.append(_named(search, "the plan to compare with", [asked], best_value))
    return found


def _first(search: Search) -> str:
    return search.system.dimensions[0].name


def _rising(search: Search, tensor: int) -> list[int]:
    """Numbers of stages that divide the layers and the chips left, fewest first."""
    left = max(1, search.system.chips // tensor)
    return [p for p in range(1, min(left, search.workload.layers) + 1) if search.workload.layers % p == 0]


def least_chip_seconds(search: Search) -> float | None:
    """Chip-seconds per sample of the plan that takes fewest, without limits per unit of work; None where none fits."""
    request = replace(
        limited_request(search.system, search.request),
        objective="energy", at_most_unit_cost=None, at_most_unit_energy=None, best=None, within=None,
    )  # fmt: skip
    try:
        found = _named(search, "least", [request], 1.0)
    except InputError:
        found = _named(search, "least", [replace(request, objective="cost")], 1.0)
    return None if found.plan is None or not found.samples_per_s else found.plan["chips_used"] / found.samples_per_s


def _named(search: Search, name: str, requests: list[PlanRequest], best_value: float) -> Baseline:
    """The best plan of the first request that has one."""
    for request in requests:
        kept: list[tuple[float, Evaluated]] = []
        objective = objective_of(search.workload, search.system, request)

        def record(
            found: Evaluated, kept: list[tuple[float, Evaluated]] = kept, objective: Objective = objective
        ) -> float:
            value = objective.value_of(found.plan.chips, found.iteration.seconds / found.plan.batch)
            if not kept or value < kept[0][0]:
                kept[:] = [(value, found)]
            return value

        def threshold(kept: list[tuple[float, Evaluated]] = kept) -> float:
            return kept[0][0] if kept else math.inf

        before = len(search.shortfalls)
        search_plans(search, request, record, threshold)
        del search.shortfalls[before:]
        if kept:
            value, plan = kept[0]
            seconds = plan.iteration.seconds
            return Baseline(name, plan.plan.describe(), seconds, plan.plan.batch / seconds, value / best_value)
    return Baseline(name, None, None, None, None, "does not fit memory or does not divide the batch")
