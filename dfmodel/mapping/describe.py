"""What every result says alike, of whatever family: the system, and what is assumed of it."""

from __future__ import annotations

from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.unit_costs import assumed_inputs
from dfmodel.systems.network import Link
from dfmodel.systems.system import System


def describe_system(s: System, dtype: str) -> dict[str, Any]:
    return {
        "name": s.name,
        "title": s.title,
        "chip": s.chip.name,
        "chip_title": s.chip.title,
        "chips": s.chips,
        "execution": s.chip.execution,
        "matrix_dtype": dtype,
        "matrix_flops_per_s": s.chip.matrix_peak(dtype),
        "vector_flops_per_s": s.chip.vector_peak(dtype),
        "memory_bytes_per_s": s.chip.memories[0].bytes_per_s,
        "memory_capacity_bytes": s.chip.memories[0].capacity_bytes,
        "sram_bytes": s.chip.sram_bytes,
        "dimensions": [
            {"name": d.name, "kind": d.kind, "size": d.size, "bytes_per_s": d.injection_bytes_per_s}
            for d in s.dimensions
        ],
    }


def assumed_of(system: System, assumptions: Assumptions) -> list[str]:
    found = []
    if assumptions.compute.model == "efficiency":
        curve = system.chip.efficiency
        rest = f"memory {curve.memory_max:.0%}, links {curve.link_max:.0%}"
        found.append(
            f"efficiency curve '{curve.name}': matrix work calibrated ({curve.matrix_max:.0%} of peak), {rest} and "
            "launches assumed"
            if curve.status == "calibrated"
            else f"efficiency curve '{curve.name}' (assumed, not calibrated): matrix work reaches "
            f"{curve.matrix_max:.0%} of peak, {rest}"
        )
    else:
        found.append(f"{assumptions.compute.utilisation:.0%} of peak for all work (not calibrated)")
    if assumptions.network.collectives == "physical":
        found += [_links_known(d.link, system) for d in system.dimensions if d.size > 1]
    priced_keys = ("price", "power", "energy")
    found += [
        f"{system.chip.name}.{key}: no published value, assumed"
        for key in system.chip.assumed
        if key.partition(".")[0] not in priced_keys
    ]
    return list(dict.fromkeys([*found, *assumed_inputs(system)]))


def _links_known(link: Link, system: System) -> str:
    """Where what collectives achieve of a link comes from."""
    if not link.achieved:
        return (
            f"link '{link.name}': collectives reach {system.chip.efficiency.link_max:.0%} of it at every size, assumed"
        )
    own = [a for a in link.achieved if not a.inherited]
    return f"link '{link.name}': efficiency, ramp and start of collectives " + (
        "calibrated"
        if len(own) == len(link.achieved)
        else "calibrated in part, else another link's"
        if own
        else "are another link's, assumed"
    )
