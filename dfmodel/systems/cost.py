"""What a system costs to buy and how much power it draws: chips, memory, links and switch ports.

Formula of the original DFModel (github.com/kosho2013/DFModel, src/intra_chip.py): chips * price, plus chips *
memory bandwidth * its price, plus per dimension links * bandwidth * link price + ports * bandwidth * port
price; power alike. Hosts, racks, cooling and cables are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dfmodel.systems.network import Link
from dfmodel.systems.system import System
from dfmodel.systems.wiring import wiring


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
    chip = system.chip
    return SystemCost(
        chips_usd=None if chip.price_usd is None else system.chips * chip.price_usd,
        memory_usd=system.chips * sum(m.price_usd for m in chip.memories),
        links_usd=sum(b * link.usd_per_byte_per_s for link, b, _ in _bandwidths(system)),
        switches_usd=sum(b * link.switch_usd_per_byte_per_s for link, _, b in _bandwidths(system)),
        missing=() if chip.price_usd is not None else (f"price of chip '{chip.name}'",),
        assumed=(f"price of chip '{chip.name}'",) if "price" in chip.assumed else (),
        uncounted=tuple(
            [f"price of memory '{m.name}'" for m in chip.memories if not m.price_usd]
            + _once(
                f"price of link '{d.link.name}' and its switches"
                for d in system.dimensions
                if not (d.link.usd_per_byte_per_s or d.link.switch_usd_per_byte_per_s)
            )
        ),
    )


def system_power(system: System) -> SystemPower:
    """Power of all chips, memories, links and switch ports of `system`, in watts."""
    chip = system.chip
    return SystemPower(
        chips_w=None if chip.power_w is None else system.chips * chip.power_w,
        memory_w=system.chips * sum(m.power_w for m in chip.memories),
        links_w=sum(b * link.w_per_byte_per_s for link, b, _ in _bandwidths(system)),
        switches_w=sum(b * link.switch_w_per_byte_per_s for link, _, b in _bandwidths(system)),
        missing=() if chip.power_w is not None else (f"power of chip '{chip.name}'",),
        assumed=(f"power of chip '{chip.name}'",) if "power" in chip.assumed else (),
        uncounted=tuple(
            [f"power of memory '{m.name}'" for m in chip.memories if not m.power_w]
            + _once(
                f"power of link '{d.link.name}' and its switches"
                for d in system.dimensions
                if not (d.link.w_per_byte_per_s or d.link.switch_w_per_byte_per_s)
            )
        ),
    )


def _bandwidths(system: System) -> Iterator[tuple[Link, float, float]]:
    """Per dimension: its link, and the bytes/s of all its links and of all its switch ports."""
    for dimension, wires in zip(system.dimensions, wiring(system.dimensions), strict=True):
        per_place = dimension.link.bytes_per_s * wires.lanes
        yield dimension.link, wires.links * per_place, wires.ports * per_place


def _once(names: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(names))
