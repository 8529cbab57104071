"""Bytes a chip must hold, stage by stage, and in which memory tier they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dfmodel.assumptions import MemoryAssumptions
from dfmodel.mapping.block_costs import BlockCosts
from dfmodel.mapping.evaluate import BlockEvaluation, BlockEvaluator
from dfmodel.mapping.model_state import GRADIENT_PASSES, OPTIMIZER_STATE_TRAFFIC, StateBytes, state_bytes
from dfmodel.mapping.plan import Plan
from dfmodel.mapping.tiers import Held, Placement, Tier, place
from dfmodel.systems.chip import Chip
from dfmodel.workloads.graph import PARAMETER_ROLES, main_block

#: Blocks whose gathered weights ZeRO 3 holds at once: the one that runs and the one fetched ahead.
GATHERED_BLOCKS = 2


def live_bytes(evaluator: BlockEvaluator, evaluation: BlockEvaluation) -> float:
    """Largest sum over partitions of the tensors that wait in memory while it runs (the original's rule)."""
    block, assignment = evaluator.block, evaluation.assignment
    steps = sorted(set(assignment.values()))
    most = 0.0
    for step in steps:
        held = 0.0
        for tensor, consumers in block.consumers.items():
            producer = block.producer.get(tensor)
            if producer is None or block.tensors[tensor].role in PARAMETER_ROLES:
                continue
            for consumer in consumers:
                first, last = assignment[producer], assignment[consumer]
                if first != last and first <= step <= last:
                    held += evaluator.padded(tensor, evaluator.held_bytes(tensor, evaluator.gives[tensor]))
        most = max(most, held)
    return most


def layers_per_stage(repeats: Sequence[int], stages: int) -> list[list[int]]:
    """Copies of each block on each stage where all stages hold equally many of the most repeated one (the surplus on
    inner stages), blocks before it on the first stage, those after it on the last."""
    main = main_block(repeats)
    share, surplus = divmod(repeats[main], stages)
    order = sorted(range(stages), key=lambda i: (i in (0, stages - 1), i))
    extra = set(order[:surplus])
    table = []
    for stage in range(stages):
        row = [0] * len(repeats)
        row[main] = share + (stage in extra)
        if stage == 0:
            row[:main] = repeats[:main]
        if stage == stages - 1:
            row[main + 1 :] = repeats[main + 1 :]
        table.append(row)
    return table


@dataclass(frozen=True)
class StageFootprint:
    """Bytes of one stage by category, and their placement in the chip's memory tiers."""

    categories: dict[str, float]
    placement: Placement

    @property
    def total(self) -> float:
        return sum(self.categories.values())

    @property
    def missing(self) -> float:
        return sum(self.placement.missing.values())


def tiers_of(chip: Chip, memory_share: float, reserved_fraction: float) -> list[Tier]:
    """The chip's tiers; `memory_share` of their bandwidth is sustained, part of the first is the framework's."""
    return [
        Tier(m.name, m.capacity_bytes * (1.0 - (reserved_fraction if i == 0 else 0.0)), m.bytes_per_s * memory_share)
        for i, m in enumerate(chip.memories)
    ]


def block_state(cost: BlockCosts, plan: Plan, memory: MemoryAssumptions, training: bool) -> StateBytes:
    """Weights, gradients and optimizer state of one copy of a block on a chip."""
    if not training:
        return StateBytes(cost.parameter_bytes, 0.0, 0.0)
    return state_bytes(
        cost.parameter_bytes,
        cost.parameters,
        plan.zero,
        plan.replicas.size,
        memory.gradient,
        memory.optimizer_bytes_per_parameter,
    )


def bytes_on_stages(cost: BlockCosts, plan: Plan, memory: MemoryAssumptions, training: bool) -> list[float]:
    """Bytes of one copy of a block on each stage, working space apart."""
    state = block_state(cost, plan, memory, training).total
    return [state + held * cost.saved_bytes for held in plan.in_flight]


def working_bytes(costs: Sequence[BlockCosts], plan: Plan) -> float:
    """Space for what recomputation brings back and for gathered weights, in the largest block."""
    return max(c.workspace_bytes for c in costs) + _gathered(costs, plan)


def _gathered(costs: Sequence[BlockCosts], plan: Plan) -> float:
    return GATHERED_BLOCKS * max(c.parameter_bytes for c in costs) if plan.zero >= 3 else 0.0


def stage_footprint(
    costs: Sequence[BlockCosts],
    counts: Sequence[int],
    stage: int,
    plan: Plan,
    memory: MemoryAssumptions,
    tiers: Sequence[Tier],
    training: bool,
) -> StageFootprint:
    """What a stage with counts[i] copies of block i holds, and where."""
    here = [(c, n) for c, n in zip(costs, counts, strict=True) if n]
    states = [(block_state(c, plan, memory, training), n) for c, n in here]
    held = plan.in_flight[stage]
    saved = sum(c.saved_bytes * n for c, n in here)
    workspace = max((c.workspace_bytes for c, _ in here), default=0.0)
    m = plan.micro_batches
    weights, gradients, optimizer = (
        sum(getattr(s, part) * n for s, n in states) for part in ("weights", "gradients", "optimizer")
    )
    passes = 2 if training else 1
    parts: dict[str, Held] = {
        "weights": Held(weights, passes * m * weights),
        "gradients": Held(gradients, (2 * m + GRADIENT_PASSES) * gradients),
        "optimizer state": Held(
            optimizer, optimizer * OPTIMIZER_STATE_TRAFFIC / max(memory.optimizer_bytes_per_parameter, 1e-9)
        ),
        "activations": Held(held * saved, 2 * m * saved),
        "working space": Held(workspace, 2 * m * workspace * sum(n for _, n in here)),
        "gathered weights": Held(_gathered([c for c, _ in here], plan) if here else 0.0, math.inf),
    }
    if not training:
        parts["activations"] = parts.pop("working space")
    shown = {name: h.bytes for name, h in parts.items() if h.bytes or name in ("weights", "activations")}
    return StageFootprint(shown, place(parts, tiers))
