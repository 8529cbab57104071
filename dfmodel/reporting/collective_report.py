"""One collective on a group of chips: the chosen algorithm, its phases, other ways, and bandwidth by message size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dfmodel.errors import InputError, did_you_mean
from dfmodel.systems.collectives import (
    bus_bytes_per_s,
    collective,
    collective_seconds,
    legal_algorithms,
)
from dfmodel.systems.network import Group, Part
from dfmodel.systems.system import System
from dfmodel.units import format_quantity

#: Messages of a sweep: 1 KiB to 16 GiB.
SWEEP_BYTES = 2.0 ** np.arange(10, 35)


def parse_group(text: str | None, system: System) -> Group:
    """A group from "nvlink=8,infiniband=4" (factors of the system's dimensions, the others 1); None is every chip.

    Raises InputError for unknown dimensions, factors that are not whole numbers, or larger than the dimension.
    """
    if text is None:
        return Group(tuple(Part(d, d.size) for d in system.dimensions))
    names = [d.name for d in system.dimensions]
    chosen: dict[str, int] = {}
    problems = []
    for pair in text.split(","):
        name, sign, size = (part.strip() for part in pair.partition("="))
        if not sign or not size.isdigit():
            problems.append(f"--group {pair.strip()}: expected dimension=chips, for example {names[0]}=4")
        elif name not in names:
            problems.append(f"--group {name}: no dimension '{name}' in {system.name}{did_you_mean(name, names)}")
        elif name in chosen:
            problems.append(f"--group {name}: named twice")
        else:
            chosen[name] = int(size)
    if problems:
        raise InputError(problems)
    return Group(tuple(Part(d, chosen[d.name]) for d in system.dimensions if d.name in chosen))


def describe(
    op: str, message_bytes: float, group: Group, efficiency: float, algorithm: str | None = None
) -> dict[str, Any]:
    """Everything a report shows: the cheapest (or named) way, its phases, and every other algorithm's time."""
    cost = collective(op, message_bytes, group, efficiency=efficiency, algorithm=algorithm)
    others = {
        name: collective(op, message_bytes, group, efficiency=efficiency, algorithm=name).seconds
        for name in legal_algorithms(op, group)
    }
    bus = bus_bytes_per_s(op, message_bytes, group.size, cost.seconds) if cost.seconds else 0.0
    return {
        "op": op,
        "bytes": message_bytes,
        "group": str(group),
        "chips": group.size,
        "algorithm": cost.algorithm,
        "pieces": cost.pieces,
        "seconds": cost.seconds,
        "start_s": cost.start_s,
        "bus_bytes_per_s": bus,
        "phases": [
            {"dimension": p.dimension, "op": p.op, "algorithm": p.algorithm, "bytes": p.bytes, "seconds": p.seconds}
            for p in cost.phases
        ],
        "algorithms_s": dict(sorted(others.items(), key=lambda item: item[1])),
    }


def render(found: Mapping[str, Any], links: Sequence[str]) -> str:
    """`describe` as text."""
    lines = [
        f"{found['op']} of {format_quantity(found['bytes'], 'bytes')} per chip over {found['group']} "
        f"({found['chips']} chips): {format_quantity(found['seconds'], 'time')}",
        f"algorithm      {found['algorithm']}" + (f", {found['pieces']} pieces" if found["pieces"] > 1 else ""),
        f"bus bandwidth  {found['bus_bytes_per_s'] / 1e9:,.1f} GB/s",
        *links,
        "",
        f"{'phase':<16}{'on':<26}{'algorithm':<22}{'bytes':>12}{'time':>12}",
    ]
    if found["start_s"]:
        lines.append(f"{'start':<64}{'':>12}{format_quantity(found['start_s'], 'time'):>12}")
    for p in found["phases"]:
        size, seconds = format_quantity(p["bytes"], "bytes"), format_quantity(p["seconds"], "time")
        lines.append(f"{p['op']:<16}{p['dimension']:<26}{p['algorithm']:<22}{size:>12}{seconds:>12}")
    if found["pieces"] > 1:
        lines.append("phases overlap: the message goes through them in pieces")
    lines += ["", "every way that is possible here:"]
    lines += [f"  {name:<24}{format_quantity(s, 'time'):>12}" for name, s in found["algorithms_s"].items()]
    return "\n".join(lines)


def link_lines(group: Group, efficiency: float) -> list[str]:
    """What the group's links are said to achieve, dimension by dimension."""
    lines = []
    for part in group.parts:
        link = part.dimension.link
        inherited = all(a.inherited for a in link.achieved)
        known = "achieved as for another link, assumed" if inherited else "achieved as measured"
        if not link.achieved:
            known = f"{efficiency:g} of it, assumed"
        lines.append(
            f"links          {part.dimension.name}: {part.dimension.links} x {link.name}, "
            f"{format_quantity(link.bytes_per_s, 'bandwidth')} per link and direction, {known}"
        )
    return lines


def sweep(op: str, group: Group, efficiency: float, algorithm: str | None = None) -> pd.DataFrame:
    """Seconds and bus bandwidth by message size, 1 KiB to 16 GiB."""
    seconds = collective_seconds(op, SWEEP_BYTES, group, efficiency=efficiency, algorithm=algorithm)
    bus = [bus_bytes_per_s(op, m, group.size, s) / 1e9 for m, s in zip(SWEEP_BYTES, seconds, strict=True)]
    return pd.DataFrame({"bytes": SWEEP_BYTES.astype(int), "seconds": seconds, "bus_GB_per_s": bus})
