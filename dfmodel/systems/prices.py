"""What is assumed of price, power, energy and running cost where no catalog file states it.

One file of catalogs/costs/ holds all of it (`cost: NAME` in a study, `--set cost=NAME`); `priced` fills a system with
it and marks every value it fills as assumed. Tables by name hold for what a catalog name begins with: the longest
beginning that fits, else `other`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dfmodel.systems.chip import Chip, OperationEnergy
from dfmodel.systems.memory import Memory
from dfmodel.systems.merge import OTHER, by_beginning, covered
from dfmodel.systems.network import Link
from dfmodel.systems.schema import CostFile, OperationInputs
from dfmodel.systems.system import Operation, System


def priced(system: System, inputs: CostFile) -> System:
    """`system` with every price, power and energy that its files do not state taken from `inputs`, marked assumed, and
    with the operation that `inputs` describe."""
    chip = system.chip
    chip = replace(_chip(chip, inputs), memories=tuple(_memory(m, inputs) for m in chip.memories))
    dimensions = tuple(replace(d, link=_link(d.link, inputs)) for d in system.dimensions)
    return replace(system, chip=chip, dimensions=dimensions, operation=_operation(inputs))


def _chip(chip: Chip, inputs: CostFile) -> Chip:
    fills: dict[str, object] = {}
    assumed = list(chip.assumed)
    for key, field, stated, one, by_kind in (
        ("price", "price_usd", chip.price_usd, inputs.price.chip, inputs.price.chip_of_kind),
        ("power", "power_w", chip.power_w, inputs.power.chip, inputs.power.chip_of_kind),
    ):
        value = by_kind.get(chip.kind, by_kind.get(OTHER)) if one is None else one
        if stated is None and value is not None:
            fills[field] = value
            assumed.append(key)
    energy = inputs.energy
    own = chip.energy
    matrix: dict[str, float] = {**{str(k): v for k, v in energy.matrix.items()}, **own.matrix_j_per_flop}
    fills["energy"] = OperationEnergy(
        matrix,
        energy.vector if own.vector_j_per_flop is None else own.vector_j_per_flop,
        energy.sram if own.sram_j_per_byte is None else own.sram_j_per_byte,
    )
    missing = [
        f"energy.{name}"
        for name, stated in (("vector", own.vector_j_per_flop), ("sram", own.sram_j_per_byte))
        if stated is None and getattr(energy, name) is not None
    ]
    missing += [f"energy.matrix.{dtype}" for dtype in matrix if dtype not in own.matrix_j_per_flop]
    return replace(chip, assumed=tuple(dict.fromkeys([*assumed, *missing])), **fills)  # type: ignore[arg-type]


def _memory(memory: Memory, inputs: CostFile) -> Memory:
    """The price of its capacity, the power of its bandwidth at its energy per byte; none where it is in the package."""
    inside = any(memory.name.startswith(name) for name in inputs.in_package)
    found, assumed = memory, list(memory.assumed)
    if memory.price_usd is None:
        per_byte = by_beginning(inputs.price.memory_per_capacity, memory.name)
        if inside:
            found = replace(found, usd=0.0, in_chip=True)
        elif per_byte is not None and math.isfinite(memory.capacity_bytes):
            found = replace(found, usd=per_byte * memory.capacity_bytes)
            assumed.append("price")
    if memory.j_per_byte is None:
        per_byte = memory.w_per_byte_per_s
        if per_byte is None:
            per_byte = by_beginning(inputs.energy.memory, memory.name)
            assumed += ["energy"] if per_byte is not None else []
        found = replace(found, j_per_byte=per_byte)
    if memory.power_w is None:
        if inside:
            found = replace(found, w=0.0, in_chip=True)
        elif found.j_per_byte is not None:
            found = replace(found, w_per_byte_per_s=found.j_per_byte)
            assumed.append("power")
    return replace(found, assumed=tuple(dict.fromkeys(assumed)))


def _link(link: Link, inputs: CostFile) -> Link:
    """Prices of a link and its switch ports; a watt per byte/s is a joule per byte, so power and energy are one."""
    fills: dict[str, float] = {}
    assumed = list(link.assumed)
    energy = link.w_per_byte_per_s if link.j_per_byte is None else link.j_per_byte
    if energy is None:
        energy = by_beginning(inputs.energy.link, link.name)
        assumed += ["energy"] if energy is not None else []
    for key, field, value in (
        ("price", "usd_per_byte_per_s", by_beginning(inputs.price.link_per_bandwidth, link.name)),
        ("switch price", "switch_usd_per_byte_per_s", by_beginning(inputs.price.switch_per_bandwidth, link.name)),
        ("power", "w_per_byte_per_s", energy),
        ("switch power", "switch_w_per_byte_per_s", by_beginning(inputs.energy.switch, link.name)),
    ):
        if getattr(link, field) is None and value is not None:
            fills[field] = value
            assumed.append(key)
    if energy is not None:
        fills["j_per_byte"] = energy
    return replace(link, assumed=tuple(dict.fromkeys(assumed)), **fills)  # type: ignore[arg-type]


def _operation(inputs: CostFile) -> Operation:
    o = inputs.operation
    assumed = tuple(
        key
        for key in OperationInputs.model_fields
        if getattr(o, key) is not None and covered(f"operation.{key}", inputs.status) == "assumed"
    )
    return Operation(o.pue, o.electricity, o.amortisation, o.utilisation, assumed, inputs.name or "")
