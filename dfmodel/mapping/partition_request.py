"""What a user fixes or limits of a block's partitioning, and what to say when nothing satisfies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dfmodel.errors import InfeasibleError, InputError
from dfmodel.mapping.columns import all_columns
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.ideals import LatticeTooLargeError, enumerate_ideals
from dfmodel.mapping.lattice import best_free_path
from dfmodel.mapping.partitioning import partitions_of
from dfmodel.mapping.problem import PartitionProblem, TotalLimit
from dfmodel.units import format_quantity


@dataclass(frozen=True)
class PartitionRequest:
    """Kernels pinned to partitions by name, and limits on a block's totals in one pass on one chip: "traffic" in
    bytes, "energy" in joules."""

    pinned: Mapping[str, int] | None = None
    limits: Mapping[str, float] | None = None

    def __bool__(self) -> bool:
        return bool(self.pinned or self.limits)


def with_request(p: PartitionProblem, request: PartitionRequest, context: Context) -> PartitionProblem:
    """`p` with what the request says of its kernels. Raises InputError where pins contradict the graph."""
    index = {name: k for k, name in enumerate(p.kernels)}
    pinned = tuple((index[name], slot) for name, slot in (request.pinned or {}).items() if name in index)
    asked = replace(p, pinned=pinned, limits=tuple(total_limits(request.limits or {}, context)))
    problems = pin_problems(asked)
    if problems:
        raise InputError(problems)
    return asked


def total_limits(limits: Mapping[str, float], context: Context) -> list[TotalLimit]:
    """Limits with their prices: traffic counts bytes, energy the chip's power for the time and the memory's energy
    per byte where the chip's power does not include it. Raises InputError where the chip states no power or its memory
    no energy."""
    found = []
    chip = context.system.chip
    for name, most in limits.items():
        if name == "traffic":
            found.append(TotalLimit(name, 0.0, 1.0, most))
            continue
        per_byte = chip.memories[0].j_per_byte
        if chip.power_w is None or per_byte is None:
            missing = f"power of chip '{chip.name}'" if chip.power_w is None else f"energy of '{chip.memories[0].name}'"
            raise InputError(
                f"plan.limits.energy: the {missing} is not stated; give it with "
                + (
                    "--set 'system.chip.power=700 W'"
                    if chip.power_w is None
                    else "energy: 7 pJ/bit in the memory's file"
                )
            )
        found.append(TotalLimit(name, chip.power_w, 0.0 if chip.memories[0].in_chip else per_byte, most))
    return found


def pin_problems(p: PartitionProblem) -> list[str]:
    """Why the pins of `p` cannot hold together: numbers out of range, orders and phases broken."""
    slots = partitions_of(p)
    problems = [
        f"plan.partition.{p.kernels[k]}: there are {slots} partitions, numbered 0 to {slots - 1}; got {slot} "
        f"(--set assumptions.partitions.{'maximum' if p.count is None else 'count'}={slot + 1} allows it)"
        for k, slot in p.pinned
        if slot >= slots
    ]
    after = _descendants(p)
    for k, slot in p.pinned:
        for j, other in p.pinned:
            first, second = p.kernels[k], p.kernels[j]
            names = f"plan.partition: '{second}' is pinned to {other}, '{first}' to {slot}"
            if j in after[k] and other < slot:
                problems.append(f"{names}, but '{second}' needs what '{first}' makes; pin it to {slot} or later")
            elif p.phase[k] < p.phase[j] and not p.mixed_phases and other <= slot:
                problems.append(
                    f"{names}, but forward kernels come before backward ones; pin '{second}' to {slot + 1} or later"
                )
    return problems


def _descendants(p: PartitionProblem) -> list[set[int]]:
    """Kernels that depend on each kernel, directly or not."""
    found: list[set[int]] = [set() for _ in p.kernels]
    for k in reversed(range(len(p.kernels))):
        for i, j in p.edges:
            if i == k:
                found[k] |= {j} | found[j]
    return found


def explain_infeasible(evaluator: BlockEvaluator, problem: PartitionProblem | None = None) -> InfeasibleError:
    """The error for a block without a partitioning: a kernel that does not fit alone and by how much, or how many
    partitions it would take."""
    chip = evaluator.context.system.chip
    sram = chip.sram_bytes
    need = {k.name: evaluator.sram({k.name}) / _passes(evaluator, problem, k.name) for k in evaluator.block.kernels}
    worst = max(need, key=need.__getitem__)
    block = f"block '{evaluator.block.name}': no partitioning fits"
    if need[worst] > sram or problem is None:
        return InfeasibleError(
            f"{block} the SRAM of {chip.name} ({format_quantity(sram, 'bytes')}): kernel '{worst}' needs "
            f"{format_quantity(need[worst], 'bytes')} alone, {format_quantity(need[worst] - sram, 'bytes')} more than "
            f"there is. With {format_quantity(need[worst], 'bytes')} of SRAM it would fit "
            "(--set system.chip.sram=...); so may "
            "tensor parallelism (plan.tensor), or more tiles (assumptions.partitions.tiles)"
        )
    return InfeasibleError(f"{block} {_shortage(problem)}")


def _passes(evaluator: BlockEvaluator, problem: PartitionProblem | None, name: str) -> int:
    return 1 if problem is None else problem.passes[problem.kernels.index(name)]


def _shortage(p: PartitionProblem) -> str:
    """Every kernel fits alone, so it is the number of partitions, the halves or the pins."""
    free = replace(p, count=None, maximum=len(p.kernels), halves=False, pinned=(), limits=())
    try:
        ideals = enumerate_ideals(free)
    except LatticeTooLargeError:
        return "in so few partitions; allow more (assumptions.partitions.maximum or count)"
    columns = all_columns(free, ideals)
    fewest, _ = best_free_path(ideals, columns, np.ones(len(columns.seconds)))
    if not np.isfinite(fewest):
        return "its kernels together with the rules on which may share a partition"
    used = int(fewest)
    asked = partitions_of(p)
    if p.pinned:
        return f"the pinned kernels in {asked} partitions; without pins SRAM needs at least {used}"
    if p.halves and used <= asked:
        return (
            f"{asked} partitions with half of them for each pass; {used} without that rule would "
            "(assumptions.partitions.halves=false)"
        )
    key = "maximum" if p.count is None else "count"
    return f"{asked} partitions; {used} would (--set assumptions.partitions.{key}={used})"


def explain_limits(block: str, p: PartitionProblem, least: Mapping[str, float]) -> InfeasibleError:
    """The error for limits no partitioning keeps: the least each total can be."""
    unit = {"traffic": "bytes", "energy": "energy"}
    shown = "; ".join(
        f"{limit.name} at most {format_quantity(limit.at_most, unit[limit.name])}, the least possible is "
        f"{format_quantity(least[limit.name], unit[limit.name])}"
        for limit in p.limits
    )
    return InfeasibleError(f"block '{block}': no partitioning keeps plan.limits: {shown}")
