"""Linpack runs of published lists beside their predictions: every row of hpl.csv, rated by its Rmax.

Where a row states no Nmax the matrix fills the share of memory that the setup names; with one it is not held to the
memory of the chips, since it ran (some machines keep the matrix in the memory of their hosts).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.errors import DfmodelError
from dfmodel.mapping.families import FamilyRun
from dfmodel.mapping.hpl import HplPlan, HplSearch
from dfmodel.mapping.map_block import SolverSettings
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.system import System
from dfmodel.validation.files import CannotModelError, Comparison, load_rules, number, read_table
from dfmodel.workloads.hpl import HplSettings, build, solve_flops

TABLE = "hpl"

#: The table of mixed precision, which is rated by other work and judged apart.
MIXED = "HPL-MxP"
COLUMNS = ("chip", "n_chips", "rmax_tflops", "nmax", "nb", "p", "q", "precision")

#: Memory that rows with a stated matrix are not held to: they ran.
ENOUGH_BYTES = 1e15


@dataclass(frozen=True)
class Case:
    """A row as the model takes it. `measured` is in TFLOP/s."""

    id: str
    use: str
    system: System
    assumptions: Assumptions
    settings: HplSettings
    plan: HplPlan
    measured: float
    filled: tuple[str, ...]

    def rmax_tflops(self) -> float:
        """Rmax of the best grid. Raises InfeasibleError where the matrix fits nowhere."""
        run = FamilyRun(
            build(self.settings.model_dump(exclude_none=True)),
            self.system,
            self.assumptions,
            self.plan,
            SolverSettings(),
            0.0,
        )
        best = HplSearch(run, self.settings, self.plan).search()
        return solve_flops(best.sizes.n) / best.cost.seconds / 1e12

    def with_share(self, share: float) -> Case:
        """The same on chips whose matrix products in the row's format reach `share` of their peak."""
        chip = self.system.chip
        curve = replace(chip.efficiency, matrix_max_of={**chip.efficiency.matrix_max_of, self.settings.dtype: share})
        return replace(self, system=replace(self.system, chip=replace(chip, efficiency=curve)))


def case_of(row: Mapping[str, Any], rules: Mapping[str, Any]) -> Case:
    """A row as a case. Raises CannotModelError where the row does not say enough or its chip has no calibration."""
    machine = _machine(row, rules)
    measured = number(row, "rmax_tflops")
    if measured is None:
        raise CannotModelError("the row states no Rmax")
    chips = number(row, "n_chips") or machine.get("chips")
    if not chips:
        raise CannotModelError("the row states no number of chips")
    system = _system(machine, int(chips) * int(machine.get("dies", 1)))
    n, block = number(row, "nmax"), number(row, "nb")
    filled = [text for text in [machine.get("assumed")] if text]
    stated: dict[str, Any] = dict(machine.get("workload") or {})
    if n is None:
        stated["memory_fill"] = rules["memory_fill"]
        filled.append(f"N that fills {100 * rules['memory_fill']:.0f} % of memory")
    else:
        stated["n"] = int(n)
        memory = replace(system.chip.memories[0], capacity_bytes=ENOUGH_BYTES)
        system = replace(system, chip=replace(system.chip, memories=(memory,)))
    p, q = number(row, "p"), number(row, "q")
    plan = HplPlan(
        grid_rows=None if p is None else int(p),
        grid_columns=None if q is None else int(q),
        block=None if block is None else int(block),
    )
    return Case(
        row["id"], row["use"], system, load_assumptions("default"),
        HplSettings(**stated), plan, measured, tuple(filled),
    )  # fmt: skip


def _machine(row: Mapping[str, Any], rules: Mapping[str, Any]) -> Mapping[str, Any]:
    for machine in rules["machines"]:
        if any(fnmatch.fnmatch(row["id"], pattern) for pattern in machine["rows"]):
            return dict(machine)
    if str(row.get("precision") or "fp64") != "fp64":
        raise CannotModelError("mixed precision: the row states no number of chips, or a machine nobody described")
    for other in rules["others"]:
        if row["chip"] is not None and fnmatch.fnmatch(row["chip"], other["chip"]):
            return {**other, "assumed": f"nodes and network of {other['system']}, by the row's chip"}
    raise CannotModelError(f"no calibrate row for the chip '{row['chip']}'")


def _system(machine: Mapping[str, Any], chips: int) -> System:
    """The machine's system with so many chips. Raises InputError or CannotModelError where that cannot be."""
    changed = dict(machine.get("set") or {})
    base = load_system(machine["system"], changed)
    node, dies = machine.get("node"), int(machine.get("dies", 1))
    if node is not None:
        if chips % (int(node) * dies):
            raise CannotModelError(f"{chips} chips are no whole number of nodes of {node}")
        inner, outer = base.dimensions[-2], base.dimensions[-1]
        changed |= {
            f"topology.{inner.name}.size": int(node),
            f"topology.{outer.name}.size": chips // (int(node) * dies),
        }
        if "port" in machine:
            changed[f"topology.{outer.name}.link.bandwidth"] = machine["port"]
            changed[f"topology.{outer.name}.link.convention"] = "per chip and direction"
    system = load_system(machine["system"], changed)
    if system.chips != chips:
        raise CannotModelError(f"the machine described has {system.chips} chips, the row {chips}")
    return system


def compare(folder: Path | None = None) -> list[Comparison]:
    """Every row with its Rmax in TFLOP/s, as measured and as predicted."""
    rules = load_rules(TABLE)
    found = []
    for row in read_table(TABLE, folder, COLUMNS):
        stated = number(row, "rmax_tflops")
        measured = float("nan") if stated is None else stated
        table = TABLE if row["benchmark"] == "HPL" else MIXED
        predicted: float | None = None
        filled: tuple[str, ...] = ()
        why_not = ""
        try:
            case = case_of(row, rules)
            predicted, filled = case.rmax_tflops(), case.filled
        except DfmodelError as error:
            why_not = str(error)
        facts = {"table": table, "filled": bool(filled)}
        found.append(Comparison(row["id"], table, row["use"], measured, predicted, "TFLOP/s", filled, why_not, facts))
    return found
