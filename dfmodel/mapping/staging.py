"""A plan's blocks on its pipeline stages: division, footprint, and the iteration they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.block_costs import BlockCosts
from dfmodel.mapping.context import Context, network_model
from dfmodel.mapping.evaluate import BlockEvaluation, check_against
from dfmodel.mapping.footprint import (
    StageFootprint,
    bytes_on_stages,
    layers_per_stage,
    stage_footprint,
    tiers_of,
    working_bytes,
)
from dfmodel.mapping.pipeline import Iteration, boundary_send_s, scheduled
from dfmodel.mapping.plan import Plan
from dfmodel.mapping.schedules import messages
from dfmodel.mapping.stage_mip import MS, solve_stages
from dfmodel.mapping.stages import Run, divide, slowest_s
from dfmodel.systems.network import Group
from dfmodel.systems.system import System
from dfmodel.workloads.graph import Workload


@dataclass(frozen=True)
class Staged:
    """An iteration and the footprint of its fullest stage, number `stage`; where bytes of it fit no tier, no plan."""

    iteration: Iteration
    fullest: StageFootprint
    stage: int

    @property
    def missing(self) -> float:
        return self.fullest.missing


@dataclass
class Stager:
    """Stages for the plans of one search; divisions and prices of collectives are remembered."""

    workload: Workload
    system: System
    assumptions: Assumptions
    _divisions: dict[tuple[tuple[float, ...], int, float], list[list[int]]] = field(default_factory=dict)
    _prices: dict[tuple[str, float, Group], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network = network_model(self.system, self.assumptions)
        chip = self.system.chip
        share = chip.efficiency.memory_max if self.assumptions.compute.model == "efficiency" else 1.0
        self.tiers = tiers_of(chip, share, self.assumptions.memory.reserved_fraction)

    @property
    def capacity_bytes(self) -> float:
        """Bytes of all tiers of a chip that a job may fill."""
        return sum(t.capacity_bytes for t in self.tiers)

    def stage(
        self, plan: Plan, context: Context, costs: Sequence[BlockCosts], blocks: Sequence[BlockEvaluation]
    ) -> Staged:
        """The fastest division into stages; where some stage does not fit, the fastest in which every one does."""
        send_s = boundary_send_s(self.workload, plan, context, blocks)
        counts = self._divided(plan, costs, send_s)
        held = self._footprints(plan, costs, counts)
        if any(f.missing for f in held):
            within = self._divided_within(plan, costs, send_s)
            if within is not None:
                counts, held = within, self._footprints(plan, costs, within)
        steps = scheduled(
            self.workload, plan, context, costs, counts, send_s, self.price, [f.placement.seconds for f in held]
        )
        fullest = max(range(len(held)), key=lambda i: (held[i].missing, held[i].total))
        return Staged(steps, held[fullest], fullest)

    def prove(
        self, plan: Plan, context: Context, costs: Sequence[BlockCosts], staged: Sequence[Sequence[int]],
        blocks: Sequence[BlockEvaluation], time_limit_s: float | None, log: Path | None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """The integer program of the stages as a second opinion of a division that memory did not change; empty where
        there is none (one stage, chunks). Raises MismatchError where its optimum, proven, is another."""
        stages = len(staged)
        if stages == 1 or plan.chunks > 1:
            return []
        send_s = boundary_send_s(self.workload, plan, context, blocks)
        if [list(row) for row in staged] != self._divided(plan, costs, send_s):
            return []
        runs, extra = self._runs(costs), self._sends_s(stages, send_s)
        _, result = solve_stages(runs, stages, extra, time_limit_s=time_limit_s, log=log)
        if result.proven and result.objective is not None:
            check_against("stages (integer program)", result.objective / MS, slowest_s(runs, staged, extra))
        return [
            {
                "level": "layers to stages (integer program)",
                "block": "all",
                "status": result.status,
                "objective": None if result.objective is None else result.objective / MS,
                "bound": None if result.bound is None else result.bound / MS,
                "gap": result.gap,
                "wall_s": result.wall_s,
                "columns": result.columns,
                "integers": result.integers,
                "rows": result.rows,
                "nodes": result.nodes,
            }
        ]

    def price(self, operation: str, size: float, group: Group) -> float:
        """Seconds of a collective, remembered."""
        key = (operation, size, group)
        if key not in self._prices:
            self._prices[key] = float(self.network(operation, size, group))
        return self._prices[key]

    def _runs(self, costs: Sequence[BlockCosts], held: Mapping[int, Sequence[float]] | None = None) -> list[Run]:
        return [
            Run(n, c.seconds, () if held is None else held[i])
            for i, (c, (_, n)) in enumerate(zip(costs, self.workload.blocks, strict=True))
        ]

    def _divided(self, plan: Plan, costs: Sequence[BlockCosts], send_s: float) -> list[list[int]]:
        """Blocks to stages, the slowest as fast as can be; interleaved chunks hold equally many layers."""
        stages = plan.degree("pipeline")
        if plan.chunks > 1:
            return layers_per_stage([n for _, n in self.workload.blocks], stages)
        key = (tuple(c.seconds for c in costs), stages, send_s)
        if key not in self._divisions:
            found = divide(self._runs(costs), stages, self._sends_s(stages, send_s))
            assert found is not None  # plans have no more stages than blocks
            self._divisions[key] = found
        return self._divisions[key]

    def _divided_within(self, plan: Plan, costs: Sequence[BlockCosts], send_s: float) -> list[list[int]] | None:
        """The same where every stage must fit memory, with the working space of the largest block; None where no
        division does."""
        room = self.capacity_bytes - working_bytes(costs, plan)
        if plan.chunks > 1 or room <= 0:
            return None
        stages = plan.degree("pipeline")
        memory, training = self.assumptions.memory, self.workload.training
        held = {i: bytes_on_stages(c, plan, memory, training) for i, c in enumerate(costs)}
        if sum(n * min(held[i]) for i, (_, n) in enumerate(self.workload.blocks)) > stages * room:
            return None
        return divide(self._runs(costs, held), stages, self._sends_s(stages, send_s), room)

    def _sends_s(self, stages: int, send_s: float) -> list[float]:
        return [send_s * sum(messages(i, stages)) for i in range(stages)]

    def _footprints(
        self, plan: Plan, costs: Sequence[BlockCosts], counts: Sequence[Sequence[int]]
    ) -> list[StageFootprint]:
        """Footprint of every stage. Of stages with equal blocks the one with most micro-batches in flight stands for
        all where there is one memory tier: only whether the fullest fits matters then."""
        memory, training = self.assumptions.memory, self.workload.training
        alone = len(self.tiers) == 1
        most: dict[tuple[int, ...], int] = {}
        for stage, row in enumerate(counts):
            first = most.setdefault(tuple(row), stage)
            if plan.in_flight[stage] > plan.in_flight[first]:
                most[tuple(row)] = stage
        known: dict[int, StageFootprint] = {}
        found = []
        for stage, row in enumerate(counts):
            shown = most[tuple(row)] if alone else stage
            if shown not in known:
                known[shown] = stage_footprint(costs, row, shown, plan, memory, self.tiers, training)
            found.append(known[shown])
        return found
