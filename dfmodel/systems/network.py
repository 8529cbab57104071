"""Networks: links, dimensions, groups of chips, and what collectives cost on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DimensionKind = Literal["ring", "mesh", "switch", "fully_connected", "fat_tree"]
Collective = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "point_to_point"
]


@dataclass(frozen=True)
class Link:
    """One link. `bytes_per_s` is per link and direction; prices and powers are per byte/s of it."""

    name: str
    bytes_per_s: float
    latency_s: float = 0.0
    usd_per_byte_per_s: float = 0.0
    w_per_byte_per_s: float = 0.0
    switch_usd_per_byte_per_s: float = 0.0
    switch_w_per_byte_per_s: float = 0.0
    j_per_byte: float | None = None


@dataclass(frozen=True)
class Dimension:
    """One factor of a topology: `size` chips (or groups of inner ones) joined as `kind` by `link`s.

    `links_per_chip` is how many links a chip has in this dimension (None: what the kind implies: ring and
    torus 2, mesh 2 inside, fully connected size - 1, switch 1); injection per chip and direction is
    `links_per_chip * link.bytes_per_s`. `oversubscription` divides what leaves a fat tree's pod.
    """

    name: str
    kind: DimensionKind
    size: int
    link: Link
    links_per_chip: int | None = None
    oversubscription: float = 1.0
    in_network_reduction: bool = False
