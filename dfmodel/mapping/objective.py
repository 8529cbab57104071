"""What a plan is worth: seconds, USD or joules per sample, and limits on what a unit of work may cost or take.

A chip in use costs the same every second: its share of the system's price over what the price buys (amortisation times
utilisation), and the electricity of its share of the system's power at the facility's PUE; it takes the joules of that
power. So USD and joules of a plan are its chip-seconds times a constant: they never fall as its seconds grow, and a
lower bound of its seconds is one of them. Power is what is stated, whatever a plan moves (mapping/energy.py adds that
up).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dfmodel.errors import InputError
from dfmodel.systems.cost import system_cost, system_power
from dfmodel.systems.system import System
from dfmodel.units import format_quantity, parse
from dfmodel.workloads.graph import Workload

if TYPE_CHECKING:
    from dfmodel.mapping.plan import PlanRequest

_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_PER_UNIT = re.compile(r"(.*?)\s*(?:/|\bper\b)\s*([kMG]?)([a-z]+?)s?", re.DOTALL)


@dataclass(frozen=True)
class PerUnit:
    """So much, in base units, per unit of work of that name."""

    value: float
    unit: str


def parse_per_unit(text: object, kind: str, where: str) -> PerUnit:
    """ "2 USD per Mtoken" or "0.5 J/token". Raises InputError for anything else."""
    example = "2 USD per Mtoken" if kind == "money" else "0.5 J per token"
    match = _PER_UNIT.fullmatch(text.strip()) if isinstance(text, str) and len(text) < 80 else None
    if match is None:
        raise InputError(f"{where}: {text!r}: expected so much per unit of work, such as '{example}'")
    amount, scale, unit = match.groups()
    return PerUnit(parse(amount, kind, where) / _SCALES[scale], unit)


@dataclass(frozen=True)
class Objective:
    """`per_chip_second` turns chip-seconds per sample into the value, None where seconds are the value; a plan that
    takes more than `most_chip_seconds` per sample is worth nothing (an infinite value)."""

    per_chip_second: float | None = None
    most_chip_seconds: float = math.inf

    def weight(self, chips: np.ndarray) -> np.ndarray:
        """What a second per sample on so many chips adds to the value."""
        return np.ones(len(chips)) if self.per_chip_second is None else self.per_chip_second * chips

    def value(self, chips: np.ndarray, seconds_per_sample: np.ndarray) -> np.ndarray:
        """Values of plans; with lower bounds of seconds, lower bounds of them."""
        found = np.asarray(seconds_per_sample * self.weight(chips))
        if self.most_chip_seconds == math.inf:
            return found
        # a plan that meets its limit to the last digits of its own sum keeps it
        return np.where(seconds_per_sample * chips > self.most_chip_seconds * (1 + 1e-12), math.inf, found)

    def value_of(self, chips: int, seconds_per_sample: float) -> float:
        """The value of one plan."""
        return float(self.value(np.array([chips]), np.array([seconds_per_sample]))[0])


def objective_of(workload: Workload, system: System, request: PlanRequest) -> Objective:
    """What `request` minimises and limits. Raises InputError where an input it needs is not stated, or a limit is per
    a unit the workload does not have."""
    name = request.objective or "time"
    most = math.inf
    problems = []
    for key, limit, priced in (
        ("at_most_unit_cost", request.at_most_unit_cost, usd_per_chip_second),
        ("at_most_unit_energy", request.at_most_unit_energy, j_per_chip_second),
    ):
        if limit is None:
            continue
        units = {"sample": 1.0, workload.unit: workload.units_per_sample}
        if limit.unit not in units:
            known = " or ".join(f"{u}s" for u in units)
            problems.append(f"plan.{key}: {workload.title} is counted in {known}, not in {limit.unit}s")
            continue
        try:
            most = min(most, limit.value * units[limit.unit] / priced(system, f"plan.{key}"))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    where = f"plan.objective {name}"
    if name == "cost":
        return Objective(usd_per_chip_second(system, where), most)
    return Objective(j_per_chip_second(system, where) if name == "energy" else None, most)


def chip_share(system: System, what: str, where: str) -> float:
    """A chip's share of the system's price ("price", USD) or power ("power", W).

    Raises InputError naming `where`, what the answer is needed for, when the chip's is not stated.
    """
    total = system_cost(system).total_usd if what == "price" else system_power(system).total_w
    if total is None:
        raise InputError(
            f"{where}: the {what} of chip '{system.chip.name}' is not stated; give it with "
            f"--set 'system.chip.{what}=...', or let it be assumed with --set cost=default"
        )
    if total <= 0:
        raise InputError(f"{where}: the {what} of the system is 0; give one with --set 'system.chip.{what}=...'")
    return total / system.chips


def j_per_chip_second(system: System, where: str) -> float:
    """Joules the facility takes for a second of one chip."""
    return chip_share(system, "power", where) * system.operation.pue


def usd_per_chip_second(system: System, where: str) -> float:
    """USD that a second of one chip costs: the price written off and the electricity; the price alone, per second,
    where neither its amortisation nor the price of electricity is stated."""
    price, operation = chip_share(system, "price", where), system.operation
    if operation.amortisation_s is None:
        return price
    written_off = price / (operation.amortisation_s * (operation.utilisation or 1.0))
    if operation.usd_per_j is None:
        return written_off
    return written_off + j_per_chip_second(system, where) * operation.usd_per_j


def limits_in_words(workload: Workload, system: System, request: PlanRequest, chip_seconds: float) -> str:
    """Limits per unit of work, each with the least that `chip_seconds` per sample make of it."""
    told = []
    for key, kind, priced in (
        ("at_most_unit_cost", "money", usd_per_chip_second),
        ("at_most_unit_energy", "energy", j_per_chip_second),
    ):
        limit: PerUnit | None = getattr(request, key)
        if limit is not None:
            units = workload.units_per_sample if limit.unit == workload.unit else 1.0
            least = PerUnit(chip_seconds * priced(system, f"plan.{key}") / units, limit.unit)
            told.append(
                f"plan.{key} {shown_per_unit(limit, kind)}, the least possible is {shown_per_unit(least, kind)}"
            )
    return "; ".join(told)


def shown_per_unit(amount: PerUnit, kind: str) -> str:
    """An amount per unit of work with the prefix that makes it readable."""
    if kind == "money":
        scale = "M" if amount.value < 0.01 else ""
        return f"{amount.value * _SCALES[scale]:.4g} USD per {scale}{amount.unit}"
    return f"{format_quantity(amount.value, kind)} per {amount.unit}"
