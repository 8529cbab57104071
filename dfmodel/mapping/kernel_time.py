"""Seconds of one kernel on one chip: compute and memory, by the chip's efficiency curve or a flat share of peak.

Roofline per kernel (Williams, Waterman, Patterson, CACM 2009): the two are returned apart, how they combine
is the execution style's choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmodel.assumptions import Assumptions
from dfmodel.systems.chip import Chip
from dfmodel.workloads.graph import Unit


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
        return (flops + curve.matrix_half_flops) / (curve.matrix_max * self._peak(unit))

    @property
    def matrix_s_per_flop(self) -> float:
        """Seconds of a FLOP of large matrix work, the least there is."""
        return self.compute_s(1e30, "matrix") / 1e30

    def memory_s(self, moved_bytes: float) -> float:
        """Seconds to move `moved_bytes` to or from the first memory tier in one kernel."""
        if moved_bytes == 0:
            return 0.0
        if self.assumptions.compute.model == "efficiency":
            return (moved_bytes + self.chip.efficiency.memory_half_bytes) / self.memory_bytes_per_s
        return moved_bytes / self.memory_bytes_per_s

    @property
    def memory_bytes_per_s(self) -> float:
        """Sustained bandwidth of the first memory tier for large transfers."""
        peak = self.chip.memories[0].bytes_per_s
        return peak * (self.chip.efficiency.memory_max if self.assumptions.compute.model == "efficiency" else 1.0)

    @property
    def launch_s(self) -> float:
        """What starting one kernel (or one partition) adds."""
        return self.chip.efficiency.launch_s if self.assumptions.compute.model == "efficiency" else 0.0

    def _peak(self, unit: Unit) -> float:
        if unit == "matrix" or self.assumptions.compute.vector_at_matrix_rate:
            return self.chip.matrix_peak(self.dtype)
        return self.chip.vector_peak(self.dtype)
