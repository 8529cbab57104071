"""A system: equal chips, each with its memory, joined by a product of network dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dfmodel.systems.chip import Chip
from dfmodel.systems.memory import merged
from dfmodel.systems.network import Dimension


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
