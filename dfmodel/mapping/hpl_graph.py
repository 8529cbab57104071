"""The original's HPL graph: one matrix product per block column, a broadcast and an exchange beside it.

Iteration k with side s = N - k B on X x Y chips (X: the product of all dimensions but the last; Y: the last):
2 ceil(s / X) ceil(s / Y) B FLOP on a chip, s B words broadcast over X on the links of Y, as many passed over Y on the
links of X, at the same time, without (p - 1) / p. Panel factorisation and row swaps are not in it.
Source: DFModel artifact, generator/generate_HPL.py and its intra-chip program at 04f93d5.
"""

from __future__ import annotations

import math

from dfmodel.errors import InfeasibleError, InputError
from dfmodel.mapping.families import FamilyRun
from dfmodel.mapping.kernel_chain import ChainKernel, chain_result
from dfmodel.mapping.result import Result
from dfmodel.units import format_quantity
from dfmodel.workloads.graph import DTYPE_BYTES
from dfmodel.workloads.hpl import HplSettings


def graph_result(run: FamilyRun, settings: HplSettings) -> Result:
    """The graph's iteration. Raises InputError where N and B are not stated or there are more iterations than blocks,
    InfeasibleError where the matrix does not fit."""
    n, block = settings.n, run.request.block or settings.block
    problems = [
        f"workload.{name}: the original's graph needs it stated"
        for name, v in (("n", n), ("block", block))
        if v is None
    ]
    given = [k for k in ("grid_rows", "grid_columns") if getattr(run.request, k) is not None]
    problems += [f"plan.{k}: the original's graph lies on the dimensions as they are; remove it" for k in given]
    if problems:
        raise InputError(problems)
    assert n is not None and block is not None
    possible = math.ceil(n / block)
    count = settings.iterations or possible
    if count > possible:
        raise InputError(f"workload.iterations: {count}; N {n:,} in blocks of {block} has at most {possible}")
    word = DTYPE_BYTES[settings.dtype]
    dimensions = run.system.dimensions
    columns = dimensions[-1].size
    rows = run.system.chips // columns
    held = n * n * word / run.system.chips
    capacity = run.system.chip.memories[0].capacity_bytes
    if held > capacity:
        raise InfeasibleError(
            f"workload.n: N {n:,} is short of memory by {format_quantity(held - capacity, 'bytes')} per chip; the "
            f"largest that fits is {math.isqrt(int(capacity * run.system.chips / word)):,}"
        )
    across, along = dimensions[-1].injection_bytes_per_s, dimensions[0].injection_bytes_per_s
    kernels = []
    for k in range(count):
        side = n - k * block
        tall, wide = math.ceil(side / rows), math.ceil(side / columns)
        message = side * block * word
        kernels.append(
            ChainKernel(
                f"GEMM_{k + 1}",
                2.0 * tall * wide * block,
                tall * block * word,
                max(message / rows / across, message / columns / along),
                2.0 * side * side * block,
                "broadcast and exchange of a panel",
            )
        )
    plan = {"grid_rows": rows, "grid_columns": columns, "block": block, "n": n}
    return chain_result(run, kernels, plan, held)
