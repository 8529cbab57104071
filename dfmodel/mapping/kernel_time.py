"""Seconds of one kernel on one chip: compute and memory, by the chip's efficiency curve or a flat share of peak.

Roofline per kernel (Williams, Waterman, Patterson, CACM 2009): the two are returned apart, how they combine
is the execution style's choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from dfmodel.assumptions import Assumptions
from dfmodel.systems.chip import Chip
from dfmodel.systems.gemm import GemmShape
from dfmodel.workloads.graph import DTYPE_BYTES, Kernel, Unit


@dataclass(frozen=True)
class KernelTimer:
    """Rates of `chip` in `dtype` under `assumptions`; all methods take per-chip FLOP and bytes."""

    chip: Chip
    dtype: str
    assumptions: Assumptions

    def compute_s(self, flops: float, unit: Unit) -> float:
        """Seconds of `flops` FLOP. The efficiency model is (flops + half) / (max * peak).

        Under the tile model this is the ideal rate, used to price shardings; partitions count cycles.
        """
        if flops == 0:
            return 0.0
        compute = self.assumptions.compute
        if compute.model == "flat":
            return flops / (compute.utilisation * self._peak(unit))
        if compute.model == "tiles":
            return flops / self._peak(unit)
        curve = self.chip.efficiency
        if unit == "vector" and not compute.vector_at_matrix_rate:
            return flops / (curve.vector_max * self._peak(unit))
        return (flops + curve.matrix_half_flops) / (self.matrix_share * self._peak(unit))

    def kernel_s(self, kernel: Kernel, split: str | None, chips: int) -> float:
        """Seconds of a kernel's arithmetic on one of `chips` chips over which `split` is divided: by its shape where
        the chip's curve knows shapes, and no less than its dependent steps one after another."""
        return max(self._rate_s(kernel, split, chips), self._steps_s(kernel))

    def _steps_s(self, kernel: Kernel) -> float:
        known = self.assumptions.compute.model == "efficiency" and kernel.sequential
        return kernel.steps * self.chip.efficiency.step_s if known else 0.0

    def _rate_s(self, kernel: Kernel, split: str | None, chips: int) -> float:
        """Seconds of a kernel's FLOP at the rate the chip reaches."""
        flops = kernel.flops_split(split, chips)
        curve, peak = self.chip.efficiency, self._peak("matrix")
        fused_attention = kernel.unit == "matrix" and kernel.op.startswith("attention")
        if not (self._by_shape and kernel.unit == "matrix"):
            seconds = self.compute_s(flops, kernel.unit)
            return seconds * peak / self.attention_peak if fused_attention else seconds
        if fused_attention:
            return flops / (curve.attention_share(kernel.dims["feature"]) * self._stack * self.attention_peak)
        shape = gemm_shape(kernel, split, chips)
        gemm = curve.gemm
        if shape is None or gemm is None:
            return flops / (self.matrix_share * peak)
        return gemm.compute_s(shape, self.matrix_share * peak) * kernel.runs

    @cached_property
    def matrix_share(self) -> float:
        """Share of the matrix peak that large products reach under the assumed software stack."""
        return self.chip.efficiency.matrix_share(self.product_dtype) * self._stack

    @cached_property
    def product_dtype(self) -> str:
        """Format in which matrix products other than fused attention are computed."""
        return self.assumptions.compute.products or self.dtype

    @cached_property
    def attention_peak(self) -> float:
        """Matrix FLOP/s of fused attention, which software runs in 16 bits where products have fewer."""
        narrow = DTYPE_BYTES[self.dtype] < DTYPE_BYTES["bf16"]
        known = [d for d in ("bf16", "fp16") if d in self.chip.matrix_flops_per_s]
        return self.chip.matrix_peak(known[0] if narrow and known else self.dtype)

    @cached_property
    def _stack(self) -> float:
        stack = self.assumptions.compute.stack
        return 1.0 if stack is None else self.chip.efficiency.stacks.get(stack, 1.0)

    @cached_property
    def _by_shape(self) -> bool:
        return self.assumptions.compute.model == "efficiency" and self.chip.efficiency.gemm is not None

    def least_matrix_s(self, flops: float) -> float:
        """Seconds that matrix work of so many FLOP takes at least, whatever its shape."""
        return flops * self.matrix_s_per_flop if self._by_shape else self.compute_s(flops, "matrix")

    @cached_property
    def matrix_s_per_flop(self) -> float:
        """Seconds of a FLOP of large matrix work, the least there is."""
        if self._by_shape:
            attention = (self.chip.efficiency.attention_max or 0.0) * self._stack * self.attention_peak
            return 1.0 / max(self.matrix_share * self._peak("matrix"), attention)
        return self.compute_s(1e30, "matrix") / 1e30

    def memory_s(self, moved_bytes: float) -> float:
        """Seconds to move `moved_bytes` to or from the first memory tier in one kernel."""
        if moved_bytes == 0:
            return 0.0
        if self.assumptions.compute.model == "efficiency":
            return (moved_bytes + self.chip.efficiency.memory_half_bytes) / self.memory_bytes_per_s
        return moved_bytes / self.memory_bytes_per_s

    @cached_property
    def memory_bytes_per_s(self) -> float:
        """Sustained bandwidth of the first memory tier for large transfers."""
        peak = self.chip.memories[0].bytes_per_s
        return peak * (self.chip.efficiency.memory_max if self.assumptions.compute.model == "efficiency" else 1.0)

    @cached_property
    def launch_s(self) -> float:
        """What starting one kernel (or one partition) adds."""
        return self.chip.efficiency.launch_s if self.assumptions.compute.model == "efficiency" else 0.0

    def _peak(self, unit: Unit) -> float:
        if unit == "matrix" or self.assumptions.compute.vector_at_matrix_rate:
            return self.chip.matrix_peak(self.product_dtype)
        return self.chip.vector_peak(self.dtype)


def gemm_shape(kernel: Kernel, split: str | None, chips: int) -> GemmShape | None:
    """The matrix product an einsum of two operands is on one chip: dims of both operands and the result are its batch,
    those of the result and one operand its rows and columns, those of no result its depth. None for other kernels."""
    factors = [o for o in kernel.inputs if o.tensor not in kernel.added]
    if kernel.op != "einsum" or len(factors) != 2 or len(kernel.outputs) != 1:
        return None
    extent = dict(kernel.dims)
    if split is not None:
        extent[split] = math.ceil(extent[split] / chips)
    left, right, result = (set(o.dims) for o in (*factors, kernel.outputs[0]))

    def size(dims: set[str]) -> int:
        return math.prod(extent[d] for d in dims)

    return GemmShape(
        size((result & left) - right),
        size((result & right) - left),
        size(set(extent) - result),
        size(result & left & right),
    )
