"""Distributed transforms beside their measurements: rows of fft.csv by time, or relative to another of their series.

Rows of use `relative` state times of which only ratios are known: each is compared with the smallest run of its library
that spans several nodes. Runs on one node are shown, not judged.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.errors import DfmodelError
from dfmodel.mapping.families import FamilyRun
from dfmodel.mapping.fft import FftPlan, FftSearch
from dfmodel.mapping.map_block import SolverSettings
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import Achieved
from dfmodel.systems.system import System
from dfmodel.validation.files import CannotModelError, Comparison, load_rules, number, read_table
from dfmodel.workloads.fft import FftSettings, build

TABLE = "fft"
RELATIVE = "fft, relative"
COLUMNS = ("library", "nx", "ny", "nz", "batch", "precision", "chip", "n_chips", "n_nodes", "time_ms")

#: Points of each chip of weak-scaling rows that state no sides.
WEAK = (1024, 1024, 512)


@dataclass(frozen=True)
class Case:
    """A row as the model takes it. `measured_s` is None where it states no time."""

    id: str
    use: str
    series: str
    chips: int
    nodes: int
    relative: bool
    system: System
    assumptions: Assumptions
    settings: FftSettings
    measured_s: float | None
    filled: tuple[str, ...]

    def seconds(self) -> float:
        """Seconds of the best decomposition over all chips of the row."""
        plan = FftPlan(use_all_chips=True)
        workload = build(self.settings.model_dump(exclude_none=True))
        run = FamilyRun(workload, self.system, self.assumptions, plan, SolverSettings(), 0.0)
        return FftSearch(run, self.settings, plan).search().cost.seconds

    def with_exchange(self, efficiency: float) -> Case:
        """The same with all-to-alls between nodes at `efficiency` of the network's bandwidth."""
        *inner, outer = self.system.dimensions
        exchange = Achieved(efficiency, 0.0, 0.0, ("switch",), ("all_to_all",), ())
        link = replace(outer.link, achieved=(exchange,))
        return replace(self, system=replace(self.system, dimensions=(*inner, replace(outer, link=link))))


def case_of(row: Mapping[str, Any], rules: Mapping[str, Any]) -> Case:
    """A row as a case. Raises CannotModelError where the row does not say enough or nobody described its machine."""
    machine = next(
        (m for m in rules["machines"] if any(fnmatch.fnmatch(row["id"], pattern) for pattern in m["rows"])), None
    )
    if machine is None:
        raise CannotModelError(f"no catalog chip or calibrate row for '{row['chip']}'")
    chips, milliseconds = number(row, "n_chips"), number(row, "time_ms")
    if not chips:
        raise CannotModelError("the row states no number of chips")
    stated = dict(machine.get("workload") or {})
    stated.setdefault("dtype", "fp64" if row["precision"] == "fp64" else "fp32")
    sides = [number(row, k) for k in ("nx", "ny", "nz")]
    filled = [machine["assumed"]] if "assumed" in machine else []
    if all(sides):
        shape = [int(n) for n in sides if n]
    else:
        shape = [WEAK[0], WEAK[1], WEAK[2] * int(chips)]
        filled.append("sides of weak scaling: the last one grows")
    stated |= dict(zip(("nx", "ny", "nz"), shape, strict=True))
    return Case(
        row["id"], row["use"], f"{row['id'].split('_')[0]} {row['library']}", int(chips),
        int(number(row, "n_nodes") or 1), bool(machine.get("relative")), _system(machine, int(chips)),
        load_assumptions("default"), FftSettings(**stated), None if milliseconds is None else milliseconds / 1e3,
        tuple(filled),
    )  # fmt: skip


def _system(machine: Mapping[str, Any], chips: int) -> System:
    changed = dict(machine.get("set") or {})
    inner, outer = load_system(machine["system"], changed).dimensions
    node = min(int(machine["node"]), chips)
    if chips % node:
        raise CannotModelError(f"{chips} chips are no whole number of nodes of {node}")
    changed[f"topology.{inner.name}.size"] = node
    changed[f"topology.{outer.name}.size"] = chips // node
    if "port" in machine:
        changed[f"topology.{outer.name}.link.bandwidth"] = machine["port"]
        changed[f"topology.{outer.name}.link.convention"] = "per chip and direction"
    return load_system(machine["system"], changed)


def compare(folder: Path | None = None) -> list[Comparison]:
    """Every row with its time in milliseconds, or with its time over that of its series' first run on several nodes."""
    rules = load_rules(TABLE)
    cases: list[Case] = []
    predicted: dict[str, float] = {}
    found: dict[str, Comparison] = {}
    rows = read_table(TABLE, folder, COLUMNS)
    for row in rows:
        milliseconds = number(row, "time_ms")
        measured = float("nan") if milliseconds is None else milliseconds
        try:
            case = case_of(row, rules)
            predicted[case.id] = case.seconds()
        except DfmodelError as error:
            facts = {"table": TABLE, "filled": False}
            found[row["id"]] = Comparison(row["id"], TABLE, row["use"], measured, None, "ms", (), str(error), facts)
            continue
        cases.append(case)
        facts = {"table": TABLE, "filled": bool(case.filled)}
        if not case.relative:
            found[case.id] = Comparison(
                case.id, TABLE, case.use, measured, 1e3 * predicted[case.id], "ms", case.filled, "", facts
            )
    found |= {c.id: _ratio(c, _first(c, cases), predicted) for c in cases if c.relative}
    return [found[row["id"]] for row in rows]


def _first(case: Case, cases: Sequence[Case]) -> Case | None:
    """The smallest run on several nodes of a case's series."""
    several = [c for c in cases if c.series == case.series and c.nodes > 1]
    return min(several, key=lambda c: c.chips, default=None)


def _ratio(case: Case, first: Case | None, predicted: Mapping[str, float]) -> Comparison:
    """A run over the first of its series."""
    unit = "x first"
    facts = {"table": RELATIVE, "filled": bool(case.filled), "relative": case.nodes > 1 and case is not first}
    if first is None or first.measured_s is None or case.measured_s is None:
        why = "no run on several nodes to compare with"
        return Comparison(case.id, RELATIVE, case.use, float("nan"), None, unit, case.filled, why, facts)
    return Comparison(
        case.id, RELATIVE, case.use, case.measured_s / first.measured_s, predicted[case.id] / predicted[first.id], unit,
        (*case.filled, f"over {first.id}"), "", facts,
    )  # fmt: skip
