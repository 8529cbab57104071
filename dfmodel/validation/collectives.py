"""Collectives beside their measurements: every row of collectives.csv as a group on a catalog system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfmodel.catalog_files import Dirs
from dfmodel.errors import DfmodelError
from dfmodel.systems.catalog import load_system
from dfmodel.systems.collectives import bus_bytes_per_s, collective
from dfmodel.systems.network import Dimension, Group, Link, Part
from dfmodel.systems.system import System
from dfmodel.units import parse
from dfmodel.validation.files import CannotModelError, Comparison, load_rules, number, read_table

TABLE = "collectives"
COLUMNS = (
    "collective",
    "system",
    "chip",
    "n_chips",
    "n_nodes",
    "fabric",
    "algo",
    "msg_bytes",
    "busbw_GBps",
    "algbw_GBps",
)

#: Messages above this many bytes are judged; smaller ones measure the software's start.
LARGE_BYTES = 1e6


@dataclass(frozen=True)
class Setup:
    """One row as the model takes it."""

    op: str
    bytes: float
    group: Group
    algorithm: str | None
    efficiency: float
    seconds: float
    assumed: tuple[str, ...]

    def predicted_s(self) -> float:
        found = collective(self.op, self.bytes, self.group, efficiency=self.efficiency, algorithm=self.algorithm)
        return found.seconds

    def on_link(self, link: Link) -> Setup:
        """The same with another link in the innermost dimension."""
        first, *others = self.group.parts
        changed = Part(replace(first.dimension, link=link), first.size, first.stride)
        return replace(self, group=Group((changed, *others)))


def setup_of(row: Mapping[str, Any], rules: Mapping[str, Any], dirs: Dirs = ()) -> Setup:
    """A row's collective on its system. Raises CannotModelError where the row does not say enough or names what no
    catalog has."""
    op = rules["operations"].get(row["collective"], row["collective"])
    if op is None:
        raise CannotModelError(f"'{row['collective']}' is not a collective between chips")
    system = _system(row, rules, dirs)
    group = _group(row, system)
    stated = number(row, "msg_bytes")
    size = parse(rules["plateau"], "bytes") if stated is None else stated
    assumed = [] if stated is not None else [f"message {rules['plateau']}: a plateau"]
    if group.parts and not group.parts[0].dimension.link.achieved:
        assumed.append(f"efficiency {system.chip.efficiency.link_max:g} of '{group.parts[0].dimension.link.name}'")
    algorithm = _algorithm(row, rules)
    reduces = any(word in f"{row['algo']} {row['fabric']}".lower() for word in ("nvls", "sharp"))
    if group.parts and group.parts[0].dimension.kind == "switch":
        group = _changed(group, in_network_reduction=reduces)
    return Setup(
        op, size, group, algorithm, system.chip.efficiency.link_max, _measured_s(row, op, size, group), tuple(assumed)
    )


def _system(row: Mapping[str, Any], rules: Mapping[str, Any], dirs: Dirs) -> System:
    words = f"{row['fabric']} {row['system']}".lower()
    special: Mapping[str, Any] = next((f for f in rules["fabrics"] if all(w in words for w in f["words"])), {})
    if "why_not" in special:
        raise CannotModelError(special["why_not"])
    name = special.get("system") or rules["systems"].get(row["chip"])
    if name is None:
        raise CannotModelError(f"no system of the catalog has chip '{row['chip']}'")
    return load_system(name, {"nodes": max(1, int(row["n_nodes"] or 1)), **special.get("set", {})}, dirs)


def _group(row: Mapping[str, Any], system: System) -> Group:
    chips, nodes = int(row["n_chips"]), int(row["n_nodes"] or 1)
    inner, outer = system.dimensions[0], system.dimensions[1]
    if chips % nodes or chips // nodes > inner.size:
        raise CannotModelError(f"{chips} chips in {nodes} nodes do not fit nodes of {inner.size}")
    return Group((Part(inner, chips // nodes), Part(outer, nodes)))


def _algorithm(row: Mapping[str, Any], rules: Mapping[str, Any]) -> str | None:
    text = (row["algo"] or "").lower()
    for words, name in rules["algorithms"].items():
        if text.startswith(words):
            return None if name is None else str(name)
    return None


def _changed(group: Group, **values: Any) -> Group:
    """The group with its innermost dimension changed."""
    first, *others = group.parts
    dimension: Dimension = replace(first.dimension, **values)
    return Group((Part(dimension, first.size, first.stride), *others))


def _measured_s(row: Mapping[str, Any], op: str, size: float, group: Group) -> float:
    """Seconds from the row's algorithm bandwidth, its time, or its bus bandwidth."""
    algorithm_bw, micros, bus = (number(row, c) for c in ("algbw_GBps", "time_us", "busbw_GBps"))
    if micros is not None:
        return micros * 1e-6
    if algorithm_bw is not None:
        return size / algorithm_bw / 1e9
    if bus is None:
        raise CannotModelError("the row states neither time nor bandwidth")
    return bus_bytes_per_s(op, size, group.size, 1.0) / (bus * 1e9)


def compare(folder: Path | None = None, dirs: Dirs = ()) -> list[Comparison]:
    """Every row with its bus bandwidth as measured and as predicted, in GB/s."""
    rules = load_rules(TABLE)
    found = []
    for row in read_table(TABLE, folder, COLUMNS):
        facts = {k: row[k] for k in ("collective", "system", "chip", "n_chips", "fabric", "algo", "msg_bytes")}
        try:
            s = setup_of(row, rules, dirs)
        except DfmodelError as error:
            bus = number(row, "busbw_GBps") or 0.0
            found.append(Comparison(row["id"], TABLE, row["use"], bus, None, "GB/s", (), str(error), facts))
            continue
        measured, predicted = (
            bus_bytes_per_s(s.op, s.bytes, s.group.size, t) / 1e9 for t in (s.seconds, s.predicted_s())
        )
        found.append(Comparison(row["id"], TABLE, row["use"], measured, predicted, "GB/s", s.assumed, "", facts))
    return found


def is_large(comparison: Comparison) -> bool:
    """Whether a row's message is large enough to be judged."""
    stated = comparison.facts["msg_bytes"]
    return stated is None or float(stated) > LARGE_BYTES
