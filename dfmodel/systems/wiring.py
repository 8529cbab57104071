"""How many links and switch ports a topology needs.

The counts `per group` are the cost table of the original DFModel (github.com/kosho2013/DFModel, src/intra_chip.py),
which lists eleven topologies; the rules below give all of them and extend to any product of dimensions. It buys one
link for a whole group of inner chips where a dimension is switched or fully connected. A link's bandwidth is that of a
chip everywhere else in the model, so real systems are counted `per chip`: every chip of the group has its own (a
network card each, on its own rail).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dfmodel.systems.network import Dimension, DimensionKind

#: Kinds that have their links per chip under either rule.
_BY_CHIP = ("ring", "mesh")

#: A system of fewer chips is joined without switch ports.
_FEWEST_SWITCHED_CHIPS = 5


@dataclass(frozen=True)
class Wiring:
    """Links and switch ports of one dimension, in the whole system; `lanes` parallel ones in each place."""

    links: int
    ports: int
    lanes: float


WiringRule = Literal["per chip", "per group"]


def wiring(dimensions: Sequence[Dimension], rule: WiringRule = "per group") -> list[Wiring]:
    """Links and ports of each dimension of a system, innermost first.

    With n chips, `outer` the product of the sizes outside a dimension and `here` its size: a ring takes a
    link per chip and two ports where each ring closes; a mesh the same without the closing link; a switch a
    link and a port per unit below it (here * outer); a fully connected dimension here * (here - 1) links
    per group, and here^2 ports per group unless it is innermost. A dimension of size 1 needs nothing, and
    up to four chips need no ports. That is `per group`; `per chip` a switched or fully connected dimension has all of
    it for each of the chips below a unit.
    """
    chips = math.prod(d.size for d in dimensions)
    found = []
    inner = 1
    for position, dimension in enumerate(dimensions):
        here = dimension.size
        outer = chips // (inner * here)
        links, ports = _counts(dimension.kind, inner, here, outer, innermost=position == 0)
        if rule == "per chip" and dimension.kind not in _BY_CHIP:
            links, ports = links * inner, ports * inner
        if chips < _FEWEST_SWITCHED_CHIPS:
            ports = 0
        lanes = dimension.links / dimension.neighbours if dimension.neighbours else 1.0
        found.append(Wiring(links, ports, lanes))
        inner *= here
    return found


def _counts(kind: DimensionKind, inner: int, here: int, outer: int, *, innermost: bool) -> tuple[int, int]:
    if here == 1:
        return 0, 0
    rings = inner * outer
    if kind == "ring":
        return rings * here, 2 * rings
    if kind == "mesh":
        return rings * (here - 1), 0
    if kind == "fully_connected":
        return outer * here * (here - 1), 0 if innermost else outer * here * here
    return outer * here, outer * here
