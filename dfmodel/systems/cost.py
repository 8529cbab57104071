"""What a system costs to buy and how much power it draws: chips, memory, links and switch ports.

Formula of the original DFModel (github.com/kosho2013/DFModel, src/intra_chip.py): chips * price, plus chips *
memory bandwidth * its price, plus per dimension links * bandwidth * link price + ports * bandwidth * port
price; power alike. Hosts, racks, cooling and cables are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dfmodel.systems.chip import Chip
from dfmodel.systems.memory import Memory
from dfmodel.systems.network import Link
from dfmodel.systems.system import System
from dfmodel.systems.wiring import wiring

#: Parts of a bill beside the chips.
_PARTS = ("memory", "links", "switches")

#: Where a figure comes from: a source, an assumption, the chip's own figure, or nowhere (counted as nothing).
Status = Literal["stated", "assumed", "in the chip", "unknown"]


@dataclass(frozen=True)
class CostItem:
    """One line of a system's bill. `amount` counts chips or memory tiers, of links and switch ports the bytes/s of all
    of them in `dimension`; `usd` and `w` are for all, None where unknown."""

    part: Literal["chips", "memory", "links", "switches"]
    name: str
    amount: float
    usd: float | None
    w: float | None
    usd_status: Status
    w_status: Status
    dimension: str = ""


@dataclass(frozen=True)
class SystemCost:
    """USD by part. `total_usd` is None when a part is; `missing` says what has no known price.

    `uncounted` lists memories and links that state no price and are counted as 0 USD, `assumed` what is
    counted at a price that no source states.
    """

    chips_usd: float | None
    memory_usd: float
    links_usd: float
    switches_usd: float
    missing: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def total_usd(self) -> float | None:
        if self.chips_usd is None:
            return None
        return self.chips_usd + self.memory_usd + self.links_usd + self.switches_usd


@dataclass(frozen=True)
class SystemPower:
    """Watts by part, with `missing`, `uncounted` and `assumed` as in SystemCost."""

    chips_w: float | None
    memory_w: float
    links_w: float
    switches_w: float
    missing: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def total_w(self) -> float | None:
        if self.chips_w is None:
            return None
        return self.chips_w + self.memory_w + self.links_w + self.switches_w


def system_cost(system: System) -> SystemCost:
    """Price of all chips, memories, links and switch ports of `system`, in USD."""
    items = cost_items(system)
    memory, links, switches = (sum(i.usd or 0.0 for i in items if i.part == part) for part in _PARTS)
    return SystemCost(items[0].usd, memory, links, switches, *_told("price", items, [i.usd_status for i in items]))


def system_power(system: System) -> SystemPower:
    """Power of all chips, memories, links and switch ports of `system`, in watts."""
    items = cost_items(system)
    memory, links, switches = (sum(i.w or 0.0 for i in items if i.part == part) for part in _PARTS)
    return SystemPower(items[0].w, memory, links, switches, *_told("power", items, [i.w_status for i in items]))


def cost_items(system: System) -> list[CostItem]:
    """The system's bill: its chips first, then their memories, the links and the switch ports of each dimension."""
    return [
        _chips(system.chip, system.chips),
        *(_memory(m, system.chips) for m in system.chip.memories),
        *_network(system),
    ]


def _chips(chip: Chip, chips: int) -> CostItem:
    usd = None if chip.price_usd is None else chips * chip.price_usd
    watts = None if chip.power_w is None else chips * chip.power_w
    return CostItem(
        "chips",
        chip.name,
        chips,
        usd,
        watts,
        _status(usd, "price", chip.assumed),
        _status(watts, "power", chip.assumed),
    )


def _memory(memory: Memory, chips: int) -> CostItem:
    usd = None if memory.price_usd is None else chips * memory.price_usd
    watts = None if memory.power_w is None else chips * memory.power_w
    usd_status, w_status = (_status(v, key, memory.assumed) for v, key in ((usd, "price"), (watts, "power")))
    if memory.in_chip:
        usd_status = usd_status if usd else "in the chip"
        w_status = w_status if watts else "in the chip"
    return CostItem("memory", memory.name, chips, usd, watts, usd_status, w_status)


def _network(system: System) -> Iterator[CostItem]:
    """Links, then switch ports, of each dimension that has any."""
    for dimension, wires in zip(system.dimensions, wiring(system.dimensions, system.wiring), strict=True):
        link = dimension.link
        per_place = link.bytes_per_s * wires.lanes
        if wires.links:
            yield _wires("links", link, wires.links * per_place, dimension.name)
        if wires.ports:
            yield _wires("switches", link, wires.ports * per_place, dimension.name)


def _wires(part: Literal["links", "switches"], link: Link, bytes_per_s: float, dimension: str) -> CostItem:
    prefix = "switch " if part == "switches" else ""
    each = (
        (link.switch_usd_per_byte_per_s, link.switch_w_per_byte_per_s)
        if prefix
        else (link.usd_per_byte_per_s, link.w_per_byte_per_s)
    )
    usd, watts = (None if e is None else bytes_per_s * e for e in each)
    return CostItem(
        part,
        link.name,
        bytes_per_s,
        usd,
        watts,
        _status(usd, f"{prefix}price", link.assumed),
        _status(watts, f"{prefix}power", link.assumed),
        dimension,
    )


def _status(value: float | None, key: str, assumed: Sequence[str]) -> Status:
    return "unknown" if value is None else "assumed" if key in assumed else "stated"


_CALLED = {"chips": "chip", "memory": "memory", "links": "link", "switches": "switch ports of"}


def item_name(item: CostItem) -> str:
    """What reports call a line of the bill."""
    return f"{_CALLED[item.part]} '{item.name}'"


def _told(
    what: str, items: Sequence[CostItem], statuses: Sequence[Status]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """What is missing, uncounted and assumed, in words, each once."""
    found: dict[str, dict[str, None]] = {"missing": {}, "uncounted": {}, "assumed": {}}
    for item, status in zip(items, statuses, strict=True):
        kind = ("missing" if item.part == "chips" else "uncounted") if status == "unknown" else status
        if kind in found:
            found[kind][f"{what} of {item_name(item)}"] = None
    return tuple(found["missing"]), tuple(found["uncounted"]), tuple(found["assumed"])
