"""What a run costs and takes per unit of work, and the bill behind it: dictionaries for result.json and rows for CSV.

Figures per unit are of the chips a plan uses, each at its share of the system's memory, links and switches; idle chips
cost their owner, not the run. Electricity is of the time the run takes at stated power and the facility's PUE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfmodel.mapping.energy import Work, joules_of
from dfmodel.systems.cost import CostItem, cost_items, item_name, system_cost, system_power
from dfmodel.systems.system import System
from dfmodel.units import format_quantity
from dfmodel.workloads.graph import Workload

#: Title and kind of quantity of what running a system takes, by key of `operation`.
_OPERATION = {
    "pue": ("PUE", ""),
    "electricity": ("price of electricity", "money_per_energy"),
    "amortisation": ("amortisation", ""),
    "utilisation": ("utilisation", ""),
}
#: Figures of the silicon model whose names end in their unit.
_SILICON_UNITS = ("die_mm2", "die_usd", "package_usd", "price_usd")

_YEAR_S = 365 * 86400


def bill(system: System) -> list[dict[str, Any]]:
    """Every line of the system's bill with USD, W and where each figure comes from."""
    return [
        {
            "item": item_name(i) + (f" of {i.dimension}" if i.dimension else ""),
            "usd": i.usd,
            "usd_status": i.usd_status,
            "w": i.w,
            "w_status": i.w_status,
        }
        for i in cost_items(system)
    ]


def cost_of(system: System, chips_used: int, seconds: float, units: float, unit: str) -> dict[str, Any]:
    """USD of the system by part and per unit of work; None where an input is not known."""
    c = system_cost(system)
    operation, share = system.operation, chips_used / system.chips
    joules = _facility_j(system, chips_used, seconds)
    price = electricity = None
    if c.total_usd is not None and operation.amortisation_s is not None:
        price = c.total_usd * share * seconds / (operation.amortisation_s * (operation.utilisation or 1.0))
    if joules is not None and operation.usd_per_j is not None:
        electricity = joules * operation.usd_per_j
    whole = None if price is None else price + (electricity or 0.0)
    return {
        "unit": "USD",
        "total": c.total_usd,
        "chips": c.chips_usd,
        "memory": c.memory_usd,
        "links": c.links_usd,
        "switches": c.switches_usd,
        "missing": list(c.missing),
        "uncounted": list(c.uncounted),
        "assumed": list(c.assumed),
        "of_chips_used": None if c.total_usd is None else c.total_usd * share,
        f"usd_per_{unit}": _per(whole, units),
        f"usd_per_{unit}_written_off": _per(price, units),
        f"usd_per_{unit}_electricity": _per(electricity, units),
        "operation": operation_of(system),
        "bill": bill(system),
        "silicon": silicon_of(system),
    }


def silicon_of(system: System) -> dict[str, Any] | None:
    """How the chip is made, where its price follows from that: mm2 by part of one die, yield, USD."""
    made = system.chip.silicon
    if made is None:
        return None
    return {
        "process": made.process,
        "dies": made.dies,
        "stacks": made.stacks,
        "die_mm2": made.die_m2 * 1e6,
        "parts_mm2": {name: size * 1e6 for name, size in made.parts_m2.items()},
        "dies_per_wafer": made.dies_per_wafer,
        "die_yield": made.die_yield,
        "die_usd": made.die_usd,
        "package_usd": made.package_usd,
        "price_usd": made.price_usd,
    }


def power_of(system: System) -> dict[str, Any]:
    """Watts of the system by part."""
    p = system_power(system)
    return {
        "unit": "W",
        "total": p.total_w,
        "chips": p.chips_w,
        "memory": p.memory_w,
        "links": p.links_w,
        "switches": p.switches_w,
        "missing": list(p.missing),
        "uncounted": list(p.uncounted),
        "assumed": list(p.assumed),
    }


def energy_of(
    system: System, work: Work, dtype: str, chips_used: int, seconds: float, units: float, unit: str
) -> dict[str, Any]:
    """Two figures of one iteration, both at the facility's PUE: stated power for its time, and the sum of what it
    computes and moves (mapping/energy.py)."""
    pue = system.operation.pue
    stated = _facility_j(system, chips_used, seconds)
    parts, unknown = joules_of(work, system, dtype)
    moved = sum(parts.values()) * pue if parts else None
    return {
        "unit": "J",
        "pue": pue,
        "stated_power_j": stated,
        "bottom_up_j": moved,
        "bottom_up_parts_j": dict(parts),
        "bottom_up_unknown": list(unknown),
        f"j_per_{unit}": _per(stated, units),
        f"bottom_up_j_per_{unit}": _per(moved, units),
        "work": {
            "matrix_flop": work.matrix_flops,
            "vector_flop": work.vector_flops,
            "on_chip_bytes": work.sram_bytes,
            "memory_bytes": work.memory_bytes,
            "link_bytes": dict(work.link_bytes),
        },
    }


def stated_energy_of(system: System, seconds: float, units: float, unit: str) -> dict[str, Any]:
    """As `energy_of` on all chips, from stated power alone, for workloads whose moved bytes are not added up."""
    stated = _facility_j(system, system.chips, seconds)
    return {
        "unit": "J",
        "pue": system.operation.pue,
        "stated_power_j": stated,
        "bottom_up_j": None,
        "bottom_up_parts_j": {},
        "bottom_up_unknown": ["bytes moved at each level are not added up for this workload"],
        f"j_per_{unit}": _per(stated, units),
        f"bottom_up_j_per_{unit}": None,
    }


def unit_metrics(
    workload: Workload, batch: int, cost: Mapping[str, Any], energy: Mapping[str, Any]
) -> dict[str, float | None]:
    """Costs and energies per unit of work and per sample, named with their units."""
    unit = workload.unit
    each = workload.units_per_sample
    usd, joules, moved = cost[f"usd_per_{unit}"], energy[f"j_per_{unit}"], energy[f"bottom_up_j_per_{unit}"]
    return {
        f"usd_per_{unit}": usd,
        f"usd_per_M{unit}": None if usd is None else usd * 1e6,
        "usd_per_sample": None if usd is None else usd * each,
        "usd_per_iteration": None if usd is None else usd * each * batch,
        f"j_per_{unit}": joules,
        "j_per_sample": None if joules is None else joules * each,
        "kwh_per_iteration": None if joules is None else joules * each * batch / 3.6e6,
        f"bottom_up_j_per_{unit}": moved,
    }


def operation_of(system: System) -> dict[str, dict[str, Any]]:
    """How the system is run: value in base units and whether it is assumed."""
    o = system.operation
    values = {"pue": o.pue, "electricity": o.usd_per_j, "amortisation": o.amortisation_s, "utilisation": o.utilisation}
    return {
        key: {"value": value, "status": "unknown" if value is None else "assumed" if key in o.assumed else "stated"}
        for key, value in values.items()
    }


def assumed_inputs(system: System) -> list[str]:
    """Every input of cost, power and energy that no source states, with its value."""
    found = []
    for item in cost_items(system):
        for what, status, total, kind in (
            ("price", item.usd_status, item.usd, "money"),
            ("power", item.w_status, item.w, "power"),
        ):
            if status == "assumed" and total is not None:
                found.append(f"{what} of {item_name(item)}: {_each(item, total, kind)}")
            elif status == "in the chip":
                found.append(f"{what} of {item_name(item)}: taken to be part of the chip's")
    operation = operation_of(system)
    shown = [
        f"{_OPERATION[key][0]} {_operation_text(key, o['value'])}"
        for key, o in operation.items()
        if o["status"] == "assumed"
    ]
    if shown:
        found.append(f"{', '.join(shown)} (costs/{system.operation.source})")
    made = system.chip.silicon
    if made is not None:
        found.append(f"silicon of chip '{system.chip.name}': areas, yield and prices of processes/{made.process}")
    return list(dict.fromkeys([*found, *_assumed_energies(system)]))


def _assumed_energies(system: System) -> list[str]:
    """Coefficients of the bottom-up energy that no source states, in one line."""
    chip, memory = system.chip, system.chip.memories[0]
    named = ["matrix work"] if any(k.startswith("energy.matrix") for k in chip.assumed) else []
    named += [t for k, t in (("energy.vector", "vector work"), ("energy.sram", "on-chip memory")) if k in chip.assumed]
    named += [f"memory '{memory.name}'"] if "energy" in memory.assumed else []
    named += [f"link '{d.link.name}'" for d in system.dimensions if "energy" in d.link.assumed]
    return [f"energy per operation and byte: {', '.join(dict.fromkeys(named))}"] if named else []


def _each(item: CostItem, total: float, kind: str) -> str:
    """A figure of one chip or memory tier, of links and switch ports per GB/s."""
    if item.part in ("chips", "memory"):
        return f"{format_quantity(total / item.amount, kind)} each"
    return format_quantity(total / item.amount, f"{kind}_per_bandwidth")


def _operation_text(key: str, value: float) -> str:
    if key == "amortisation":
        return f"{value / _YEAR_S:.4g} years"
    if key == "electricity":
        return format_quantity(value, "money_per_energy")
    return f"{value:.4g}"


def cost_rows(cost: Mapping[str, Any], metrics: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """The bill, how the system is run and what a unit of work costs, one figure a row: figure, value, unit, status."""
    rows = []
    for line in cost["bill"]:
        rows.append(_row(f"price of {line['item']}", line["usd"], "USD", line["usd_status"]))
        rows.append(_row(f"power of {line['item']}", line["w"], "W", line["w_status"]))
    rows += [
        _row(f"silicon {key}", value, key.rpartition("_")[2] if key in _SILICON_UNITS else "", "assumed")
        for key, value in (cost["silicon"] or {}).items()
        if isinstance(value, int | float)
    ]
    units = {"pue": "", "electricity": "USD/J", "amortisation": "s", "utilisation": ""}
    rows += [_row(_OPERATION[key][0], o["value"], units[key], o["status"]) for key, o in cost["operation"].items()]
    rows += [
        _row(key, value, key.partition("_per_")[0].removeprefix("bottom_up_"), "modelled")
        for key, value in metrics.items()
        if key.removeprefix("bottom_up_").startswith(("usd_per_", "j_per_", "kwh_per_"))
    ]
    return rows


def _row(figure: str, value: float | None, unit: str, status: str) -> dict[str, Any]:
    return {"figure": figure, "value": value, "unit": unit, "status": status}


def _facility_j(system: System, chips_used: int, seconds: float) -> float | None:
    """Joules the facility takes while the chips in use work; None where their power is not known."""
    watts = system_power(system).total_w
    return None if watts is None else watts * chips_used / system.chips * seconds * system.operation.pue


def _per(amount: float | None, units: float) -> float | None:
    return None if amount is None else amount / units
