"""A system: equal chips, each with its memory, joined by a product of network dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dfmodel.systems.chip import Chip
from dfmodel.systems.memory import merged
from dfmodel.systems.network import Dimension
from dfmodel.systems.wiring import WiringRule


@dataclass(frozen=True)
class Operation:
    """How a system is run, with what it costs to run it.

    `pue` is the facility's power over that of what it computes with; `amortisation_s` the time over which the price is
    written off, of which the system works the share `utilisation`; None where nothing is stated. `assumed` are the keys
    that no source states, `source` the file of catalogs/costs they come from.
    """

    pue: float = 1.0
    usd_per_j: float | None = None
    amortisation_s: float | None = None
    utilisation: float | None = None
    assumed: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class System:
    """`dimensions` go from the innermost (fastest) outwards; their sizes multiply to the number of chips.

    `high_bandwidth_domain` is the number of consecutive chips whose group traffic uses the innermost
    dimension's links even where a group is placed on an outer dimension (rail-only networks); None: no such.
    """

    name: str
    title: str
    chip: Chip
    dimensions: tuple[Dimension, ...]
    high_bandwidth_domain: int | None = None
    #: How many copies of the job the system runs side by side on equal shares of its chips.
    copies: int = 1
    operation: Operation = Operation()
    #: How the links of switched and fully connected dimensions are counted.
    wiring: WiringRule = "per chip"
    #: Other user-facing parameters (nodes, ...), shown with the run.
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def chips(self) -> int:
        return math.prod(d.size for d in self.dimensions)

    @property
    def memory_bytes(self) -> float:
        """Capacity of all memory tiers of one chip."""
        return sum(m.capacity_bytes for m in self.chip.memories)


def with_tiers(system: System, reading: str) -> System:
    """The system as the assumption `memory.tiers` reads its chips' memories: all of them (placed), one of their
    capacities and mean bandwidth (mean), or the first alone (first)."""
    memories = system.chip.memories
    if len(memories) == 1 or reading == "placed":
        return system
    kept = (merged(memories),) if reading == "mean" else memories[:1]
    return replace(system, chip=replace(system.chip, memories=kept))
