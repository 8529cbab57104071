"""The original's graphs of HPL and FFT: kernels one after another, each the largest or the sum of its resources.

Sources: DFModel artifact (github.com/fengqian-ayce/DFModel), generator/generate_HPL.py and generate_FFT.py at 04f93d5
and its intra-chip program: sizes on a chip are ceilings, every kernel is its own partition, so what goes from one to
the next is written and read, and the iteration is the sum of the kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.choice_mip import choose
from dfmodel.mapping.context import combine
from dfmodel.mapping.families import FamilyRun
from dfmodel.mapping.family_result import Found, Work, result_of
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.mapping.result import Certificate, Result
from dfmodel.systems.system import System
from dfmodel.units import format_quantity


@dataclass(frozen=True)
class ChainKernel:
    """A kernel: FLOP of a chip, bytes it gives to the next, seconds of its communication, FLOP of the whole system."""

    name: str
    flops: float
    output_bytes: float
    network_s: float
    whole_flops: float
    communication: str


def chain_result(run: FamilyRun, kernels: Sequence[ChainKernel], plan: dict[str, object], held_bytes: float) -> Result:
    """The iteration of a chain as a result; `held_bytes` is what a chip keeps."""
    system, assumptions = run.system, run.assumptions
    work = [_work(system, assumptions, run.workload.dtype, k, before) for k, before in
            zip(kernels, [0.0, *(k.output_bytes for k in kernels[:-1])], strict=True)]  # fmt: skip
    work[-1] = _work(system, assumptions, run.workload.dtype, kernels[-1], work_input(kernels), last=True)
    overlap = (
        assumptions.partitions.overlap if system.chip.execution == "dataflow" else assumptions.partitions.kernel_overlap
    )
    seconds = [combine(overlap, w.compute_s, w.memory_s, w.network_s) for w in work]
    breakdown = dict.fromkeys(("compute", "memory", "network"), 0.0)
    for w, s in zip(work, seconds, strict=True):
        if overlap == "none":
            for kind, part in (("compute", w.compute_s), ("memory", w.memory_s), ("network", w.network_s)):
                breakdown[kind] += part
        elif overlap == "full":
            breakdown[w.bound_by] += s
        else:
            breakdown["compute" if w.compute_s >= w.memory_s else "memory"] += s - w.network_s
            breakdown["network"] += w.network_s
    total = sum(breakdown.values())
    flops = sum(k.whole_flops for k in kernels)
    utilisation = flops / (total * system.chips * system.chip.matrix_peak(run.workload.dtype))
    _, mip = choose("kernel_chain", {(0, 0): total}, "order of kernels (fixed by their chain)", run.workload.name)
    return result_of(
        run,
        Found(
            seconds=total,
            bound=total,
            workload={"iteration": "iteration", "flops": flops},
            plan={**plan, "chips_used": system.chips, "chips_idle": 0},
            metrics={"utilisation": utilisation, "flops_per_s": flops / total},
            breakdown_s=breakdown,
            memory_bytes={"data": held_bytes},
            capacity_bytes=system.chip.memories[0].capacity_bytes,
            work=work,
            certificate=Certificate(
                "evaluated", "one chain of kernels, each a partition of its own: nothing is left to choose", 1, 0, 1, 0,
                {}, 0, 0, (mip,), 1, ("other numbers of partitions than one per kernel",),
            ),
            summary=[
                ("kernels", f"{len(kernels)} in a chain, overlap {overlap}"),
                ("utilisation", f"{100 * utilisation:.2f} % of peak, {format_quantity(flops / total, 'flop_rate', 4)}"),
            ],
            edges=[(a.name, b.name) for a, b in itertools.pairwise(kernels)],
            alternatives=[],
        ),
    )  # fmt: skip


def work_input(kernels: Sequence[ChainKernel]) -> float:
    """Bytes the last kernel reads."""
    return kernels[-2].output_bytes if len(kernels) > 1 else 0.0


def _work(
    system: System, assumptions: Assumptions, dtype: str, k: ChainKernel, input_bytes: float, last: bool = False
) -> Work:
    timer = KernelTimer(system.chip, dtype, assumptions)
    moved = input_bytes + (0.0 if last else k.output_bytes)
    return Work(
        k.name, "matrix", "", k.flops, moved, timer.compute_s(k.flops, "matrix"), timer.memory_s(moved), k.network_s,
        k.communication,
    )  # fmt: skip
