"""Energy from the bottom: the work of an iteration over all chips, and the joules of each kind of it.

Counted are the FLOP of all kernels (recomputed ones again), every operand and result of a kernel once through on-chip
memory, the bytes that cross the first memory tier (the optimizer's too), and what collectives and stages send, as an
algorithm of least volume moves it: dimension by dimension, each with what the inner ones leave. Not counted are
leakage, clocks, control, idle time, operands read again inside a kernel, and lower memory tiers: this is less than what
a system draws, and shows where the joules of moving and computing go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluation
from dfmodel.mapping.model_state import optimizer_traffic, state_messages
from dfmodel.mapping.pipeline import boundary_bytes
from dfmodel.mapping.plan import Plan
from dfmodel.mapping.recompute import repeats
from dfmodel.systems.network import SWITCHED, Group
from dfmodel.systems.system import System
from dfmodel.workloads.graph import Workload


@dataclass
class Work:
    """What all chips of a plan do in one iteration; `link_bytes` by name of the dimension whose links carry them."""

    matrix_flops: float = 0.0
    vector_flops: float = 0.0
    sram_bytes: float = 0.0
    memory_bytes: float = 0.0
    link_bytes: dict[str, float] = field(default_factory=dict)

    def send(self, operation: str, message_bytes: float, group: Group, chips: float) -> None:
        """Add a collective of so many bytes per chip over `group`, run by `chips` chips in all."""
        for name, sent in sent_bytes(operation, message_bytes, group).items():
            self.link_bytes[name] = self.link_bytes.get(name, 0.0) + sent * chips


def sent_bytes(operation: str, message_bytes: float, group: Group) -> dict[str, float]:
    """Bytes a chip sends on each dimension's links, on average over the group, by an algorithm of least volume.

    Of n members each sends (n - 1)/n of what it holds (twice in an all-reduce), and 1/n of it goes on to the next
    dimension; an all-to-all crosses every dimension with all it holds. Neighbouring stages send their message over the
    outermost dimension in which they differ.
    """
    found = {}
    held = message_bytes
    for i, part in enumerate(group.parts):
        n = part.size
        if operation == "point_to_point":
            crossing = (n - 1) * math.prod(p.size for p in group.parts[i + 1 :])
            found[part.dimension.name] = message_bytes * crossing / (group.size - 1)
            continue
        found[part.dimension.name] = held * (n - 1) / n * (2 if operation == "all_reduce" else 1)
        if operation != "all_to_all":
            held /= n
    return found


def work_of(
    workload: Workload,
    plan: Plan,
    context: Context,
    blocks: tuple[BlockEvaluation, ...],
    assumptions: Assumptions,
) -> Work:
    """The work of one iteration of an evaluated plan."""
    work = Work()
    stage_chips = plan.degree("tensor") * plan.degree("context") * plan.degree("data")
    for evaluation, (_, copies) in zip(blocks, workload.blocks, strict=True):
        _add_block(work, evaluation, plan, copies * plan.micro_batches * stage_chips)
        if workload.training:
            _add_state(work, evaluation, plan, assumptions, copies * stage_chips)
    borders = plan.degree("pipeline") * plan.chunks - 1
    if plan.degree("pipeline") > 1:
        passes = 2 if workload.training else 1
        sends = borders * plan.micro_batches * stage_chips * passes
        work.send("point_to_point", boundary_bytes(workload, context, blocks), plan.groups["pipeline"], sends)
    return work


def _add_block(work: Work, evaluation: BlockEvaluation, plan: Plan, times: float) -> None:
    """A block's kernels, partitions and collectives, `times` over."""
    again = repeats(evaluation.block, plan.recompute)
    trained = any(p.phase == "backward" for p in evaluation.partitions)
    runs: dict[str, int] = {}
    for p in evaluation.partitions:
        count = 2 if trained and p.phase == "forward" and again(p.kernels) else 1
        runs |= dict.fromkeys(p.kernels, count)
        work.memory_bytes += p.memory_bytes * count * times
    for k in evaluation.kernels:
        done = runs[k.kernel.name] * times
        if k.kernel.unit == "matrix":
            work.matrix_flops += k.flops * done
        else:
            work.vector_flops += k.flops * done
        work.sram_bytes += k.memory_bytes * done
    for c in evaluation.communications:
        work.send(c.operation, c.message_bytes, plan.groups[c.over], runs[c.kernel] * times)


def _add_state(work: Work, evaluation: BlockEvaluation, plan: Plan, assumptions: Assumptions, chips: float) -> None:
    """What keeps weights in step over the replicas, and the optimizer's traffic."""
    gradient = assumptions.memory.gradient
    if plan.replicas.size > 1 and evaluation.parameters:
        for m in state_messages(evaluation.parameter_bytes, evaluation.parameters, plan.zero, gradient):
            times = plan.micro_batches if m.every_micro_batch else 1
            work.send(m.operation, m.bytes, plan.replicas, times * chips)
    if assumptions.iteration.model == "scheduled":
        moved = optimizer_traffic(evaluation.parameters, plan.zero, plan.replicas.size, gradient)
        work.memory_bytes += moved * chips


def joules_of(work: Work, system: System, dtype: str) -> tuple[Mapping[str, float], tuple[str, ...]]:
    """Joules by part ("matrix work", "memory hbm3_h100", "links nvlink"...), and the parts whose coefficient is not
    known, which count nothing."""
    energy, memory = system.chip.energy, system.chip.memories[0]
    links = {d.name: d for d in system.dimensions}
    parts: list[tuple[str, float, float | None]] = [
        ("matrix work", work.matrix_flops, energy.matrix_j_per_flop.get(dtype)),
        ("vector work", work.vector_flops, energy.vector_j_per_flop),
        ("on-chip memory", work.sram_bytes, energy.sram_j_per_byte),
        (f"memory {memory.name}", work.memory_bytes, memory.j_per_byte),
    ]
    for name, sent in work.link_bytes.items():
        dimension = links[name]
        parts.append((f"links {name}", sent, dimension.link.j_per_byte))
        if dimension.kind in SWITCHED:
            parts.append((f"switches {name}", sent, dimension.link.switch_w_per_byte_per_s))
    counted = [(name, amount, each) for name, amount, each in parts if amount]
    return (
        {name: amount * each for name, amount, each in counted if each is not None},
        tuple(name for name, _, each in counted if each is None),
    )
