"""A Result from what a family found: the parts that all families state alike are filled in here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dfmodel import __version__
from dfmodel.mapping.describe import assumed_of, describe_system
from dfmodel.mapping.families import FamilyRun
from dfmodel.mapping.result import Certificate, KernelRow, PartitionRow, Result
from dfmodel.mapping.solver import relative_gap_of, versions
from dfmodel.mapping.unit_costs import cost_of, power_of, stated_energy_of, unit_metrics
from dfmodel.systems.cost import system_cost, system_power
from dfmodel.units import format_quantity


@dataclass(frozen=True)
class Work:
    """One kind of work on the chip that has most of it, over the whole run: seconds by resource, FLOP and bytes."""

    name: str
    unit: str
    sharding: str = ""
    flops: float = 0.0
    memory_bytes: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0
    network_s: float = 0.0
    communication: str = ""

    @property
    def bound_by(self) -> str:
        resources = {"compute": self.compute_s, "memory": self.memory_s, "network": self.network_s}
        return max(resources, key=lambda r: resources[r])


@dataclass(frozen=True)
class Found:
    """What a family's search found. `workload` and `plan` are shown as they are; `breakdown_s` adds up to `seconds`.

    `bound` is a proven lower bound of `seconds` (None: none is known); `alternatives` are plans from the best on, each
    with `iteration_s` and its value over the optimum's as `of_optimum`; `kept_s` are seconds per kind of work where a
    kind's resources overlap.
    """

    seconds: float
    bound: float | None
    workload: Mapping[str, Any]
    plan: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    breakdown_s: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    capacity_bytes: float
    work: Sequence[Work]
    certificate: Certificate
    summary: Sequence[tuple[str, str]]
    hidden_s: Mapping[str, float] = field(default_factory=dict)
    edges: Sequence[tuple[str, str]] = ()
    alternatives: Sequence[Mapping[str, Any]] = ()
    baselines: Sequence[Mapping[str, Any]] = ()
    assumed: Sequence[str] = ()


def result_of(run: FamilyRun, found: Found) -> Result:
    """The ordinary result of a family's search."""
    system, name = run.system, run.workload.name
    gap = relative_gap_of(found.seconds, found.bound)
    proven = gap is not None and gap <= max(run.settings.relative_gap, 1e-9)
    batch, unit = run.workload.batch, run.workload.unit
    done = (found.seconds, batch * run.workload.units_per_sample, unit)
    cost, energy = cost_of(system, system.chips, *done), stated_energy_of(system, *done)
    return Result(
        status="optimal" if proven else "limit",
        objective=found.seconds,
        bound=found.bound,
        gap=gap,
        workload={
            "name": name,
            "title": run.workload.title,
            "batch": run.workload.batch,
            "unit": run.workload.unit,
            "dtype": run.workload.dtype,
            "training": False,
            **found.workload,
        },
        system=describe_system(system, run.workload.dtype),
        plan=dict(found.plan),
        metrics={"iteration_s": found.seconds, **found.metrics, **unit_metrics(run.workload, batch, cost, energy)},
        breakdown_s=dict(found.breakdown_s),
        memory_bytes=dict(found.memory_bytes),
        memory_tiers={system.chip.memories[0].name: dict(found.memory_bytes)},
        memory_capacity_bytes=found.capacity_bytes,
        hidden_s=dict(found.hidden_s),
        partitions=tuple(_partition(name, i, w) for i, w in enumerate(found.work)),
        kernels=tuple(_kernel(name, i, w) for i, w in enumerate(found.work)),
        edges=tuple((name, a, b) for a, b in found.edges),
        certificate=found.certificate,
        assumptions=run.assumptions.model_dump(),
        assumed=(*found.assumed, *assumed_of(system, run.assumptions)),
        cost=cost,
        power=power_of(system),
        energy=energy,
        versions={"dfmodel": __version__, **versions()},
        wall_s=time.perf_counter() - run.began,
        alternatives=tuple(found.alternatives),
        summary=tuple(found.summary),
        baselines=tuple(found.baselines),
    )


def _partition(block: str, index: int, w: Work) -> PartitionRow:
    seconds = max(w.compute_s, w.memory_s) + w.network_s
    return PartitionRow(
        block, 1, index, "forward", (w.name,), w.compute_s, w.memory_s, w.network_s, seconds, w.bound_by, 0.0,
        w.memory_bytes,
    )  # fmt: skip


def _kernel(block: str, index: int, w: Work) -> KernelRow:
    return KernelRow(
        block, w.name, "forward", w.unit, w.sharding, index, w.flops, w.memory_bytes, w.compute_s, w.memory_s,
        w.network_s, w.communication,
    )  # fmt: skip


def rates_per_money(units_per_s: float, run: FamilyRun, name: str) -> dict[str, float | None]:
    """Units per second by price and by power of the whole system; None where either is not known."""
    usd, watts = system_cost(run.system).total_usd, system_power(run.system).total_w
    return {
        f"{name}_per_usd": units_per_s / usd if usd else None,
        f"{name}_per_w": units_per_s / watts if watts else None,
    }


def memory_words(memory: Mapping[str, float]) -> str:
    """Categories with their bytes, in words."""
    return ", ".join(f"{name} {format_quantity(size, 'bytes')}" for name, size in memory.items() if size)
