"""What a chip costs to make, from the area of its compute, SRAM and interfaces on a process: all of it assumed.

    area      (peak * a_compute + SRAM * a_sram + memory bytes/s * a_memory + link bytes/s * a_link) / (1 - other share)
    dies      pi (d/2)^2 / s - pi d / sqrt(2 s): dies of area s (scribe lines included) on a wafer of usable diameter d
    yield     with D defects per area on the area A that no spare covers:
              negative_binomial (1 + D A / c)^-c     Stapper, IBM J. Res. Dev. 27, 1983; c is the clustering
              poisson           exp(-D A)
              murphy            ((1 - exp(-D A)) / (D A))^2     Murphy, Proc. IEEE 52, 1964
    package   (dies + stacks + package area * its price) / bonding yield^(dies + stacks) + test
    price     package / (1 - gross margin)

The dies per wafer are the usual approximation (de Vries, IEEE Trans. Semicond. Manuf. 18, 2005). Design, masks and
software are not part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from dfmodel.errors import InputError
from dfmodel.systems.merge import by_beginning
from dfmodel.units import format_quantity

YieldModel = Literal["negative_binomial", "poisson", "murphy"]
YIELD_MODELS: tuple[YieldModel, ...] = get_args(YieldModel)


@dataclass(frozen=True)
class Process:
    """A process with the package around it: m, m2, USD, and defects per m2. Areas are of compute per FLOP/s of the
    16-bit matrix peak, of SRAM per byte, of interfaces per byte/s (memory by how its name begins)."""

    name: str
    wafer_usd: float
    wafer_diameter_m: float
    edge_exclusion_m: float
    scribe_m: float
    reticle_m2: float
    defects_per_m2: float
    yield_model: YieldModel
    clustering: float
    compute_m2_per_flops: float
    sram_m2_per_byte: float
    memory_m2_per_byte_per_s: Mapping[str, float]
    link_m2_per_byte_per_s: float
    other_share: float
    stack_usd: float
    stack_m2: float
    package_usd_per_m2: float
    bonding_yield: float
    test_usd: float
    gross_margin: float


@dataclass(frozen=True)
class Demand:
    """What a package has to hold; `dies` equal dies share it. `repairable` is the share of a die where a defect costs
    no die because spares take over, `stitched` allows dies beyond the reticle, `area_m2` is a die's known area."""

    flops_per_s: float
    sram_bytes: float
    memory_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    link_bytes_per_s: float = 0.0
    dies: int = 1
    stacks: int = 0
    repairable: float = 0.0
    stitched: bool = False
    area_m2: float | None = None


@dataclass(frozen=True)
class Silicon:
    """A chip made on `process`: areas of one die by part, and USD of the package on its way to the price."""

    process: str
    parts_m2: Mapping[str, float]
    dies: int
    stacks: int
    dies_per_wafer: int
    die_yield: float
    die_usd: float
    package_usd: float
    price_usd: float

    @property
    def die_m2(self) -> float:
        return sum(self.parts_m2.values())


def silicon(process: Process, demand: Demand, where: str = "silicon") -> Silicon:
    """What `demand` costs on `process`. Raises InputError, naming `where`, for dies beyond the reticle or the wafer."""
    parts = _parts(process, demand)
    area = sum(parts.values())
    if area > process.reticle_m2 and not demand.stitched:
        fewest = math.ceil(area * demand.dies / process.reticle_m2)
        raise InputError(
            f"{where}: a die of {_mm2(area)} on {process.name} is larger than the reticle "
            f"({_mm2(process.reticle_m2)}); divide it (silicon.dies={fewest}), give it less to hold, or stitch fields "
            "(silicon.stitched=true)"
        )
    count = dies_per_wafer(area, process)
    if count < 1:
        raise InputError(f"{where}: no die of {_mm2(area)} fits the wafer of {process.name}; divide it (silicon.dies)")
    good = die_yield(area * (1 - demand.repairable), process)
    die_usd = process.wafer_usd / (count * good)
    package = process.package_usd_per_m2 * (area * demand.dies + process.stack_m2 * demand.stacks)
    placed = demand.dies + demand.stacks
    made = (die_usd * demand.dies + process.stack_usd * demand.stacks + package) / process.bonding_yield**placed
    made += process.test_usd
    return Silicon(
        process.name, parts, demand.dies, demand.stacks, count, good, die_usd, made, made / (1 - process.gross_margin)
    )


def dies_per_wafer(area_m2: float, process: Process) -> int:
    """Whole dies of that area on a wafer, 0 where none fits."""
    diameter = process.wafer_diameter_m - 2 * process.edge_exclusion_m
    with_scribe = (math.sqrt(area_m2) + process.scribe_m) ** 2
    found = math.pi * (diameter / 2) ** 2 / with_scribe - math.pi * diameter / math.sqrt(2 * with_scribe)
    return max(0, math.floor(found))


def die_yield(critical_m2: float, process: Process) -> float:
    """Share of dies without a defect on that area: 1 for no area, never rising with it."""
    expected = critical_m2 * process.defects_per_m2
    if process.yield_model == "poisson":
        return math.exp(-expected)
    if process.yield_model == "murphy":
        return (-math.expm1(-expected) / expected) ** 2 if expected else 1.0
    return (1 + expected / process.clustering) ** -process.clustering


def _parts(process: Process, demand: Demand) -> dict[str, float]:
    """Areas of one die by part."""
    if demand.area_m2 is not None:
        return {"stated": demand.area_m2}
    memory = 0.0
    for name, bytes_per_s in demand.memory_bytes_per_s.items():
        memory += bytes_per_s * (by_beginning(process.memory_m2_per_byte_per_s, name) or 0.0)
    parts = {
        "compute": demand.flops_per_s * process.compute_m2_per_flops,
        "SRAM": demand.sram_bytes * process.sram_m2_per_byte,
        "memory interface": memory,
        "link interface": demand.link_bytes_per_s * process.link_m2_per_byte_per_s,
    }
    parts["other"] = sum(parts.values()) * process.other_share / (1 - process.other_share)
    return {name: size / demand.dies for name, size in parts.items()}


def _mm2(area: float) -> str:
    return f"{area * 1e6:,.0f} mm2" if area * 1e6 >= 1 else format_quantity(area, "area")
