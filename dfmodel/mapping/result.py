"""What a run gives: one plain, versioned object that JSON, tables, CSV and plots are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class KernelRow:
    """One kernel on one chip, for one micro-batch. Bytes are memory traffic, FLOP are of that chip."""

    block: str
    kernel: str
    phase: str
    unit: str
    sharding: str
    partition: int
    flops: float
    memory_bytes: float
    compute_s: float
    memory_s: float
    network_s: float
    communication: str


@dataclass(frozen=True)
class PartitionRow:
    """One partition (on a kernel-by-kernel chip: one kernel) on one chip, for one micro-batch."""

    block: str
    repeats: int
    index: int
    phase: str
    kernels: tuple[str, ...]
    compute_s: float
    memory_s: float
    network_s: float
    seconds: float
    bound_by: str
    sram_bytes: float
    memory_bytes: float


@dataclass(frozen=True)
class Certificate:
    """How far from optimal the answer can be, and what that covers.

    `kind` is "exhaustive" (every plan evaluated), "mip" or "evaluated" (a given plan, nothing searched).
    `mips` lists every program solved for the winning mapping; `not_covered` says in words what no bound covers.
    """

    kind: str
    space: str
    plans_counted: int
    plans_infeasible: int
    plans_evaluated: int
    #: Plans that an admissible bound showed to be no better.
    plans_settled_by_bound: int
    #: Plans by what settled them (or showed that they do not fit) without evaluating them.
    cut_by: Mapping[str, int]
    #: Tensor and context placements with a sequence choice and a micro-batch, mapped once; those that were.
    classes: int
    classes_opened: int
    mips: tuple[Mapping[str, Any], ...]
    mips_solved: int
    not_covered: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """The whole answer; seconds and bytes throughout, names carry their units."""

    status: str
    objective: float
    bound: float | None
    gap: float | None
    workload: Mapping[str, Any]
    system: Mapping[str, Any]
    plan: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    #: Category -> seconds of the iteration; they add up to metrics["iteration_s"].
    breakdown_s: Mapping[str, float]
    #: Category -> bytes on the fullest chip; they add up to what is held against the capacity.
    memory_bytes: Mapping[str, float]
    #: Memory tier -> category -> bytes on that chip.
    memory_tiers: Mapping[str, Mapping[str, float]]
    memory_capacity_bytes: float
    #: Category -> seconds of communication behind other work on the slowest stage, beside what breakdown_s has exposed.
    hidden_s: Mapping[str, float]
    partitions: tuple[PartitionRow, ...]
    kernels: tuple[KernelRow, ...]
    #: (block, producer, consumer) of every edge, for the dataflow picture.
    edges: tuple[tuple[str, str, str], ...]
    certificate: Certificate
    assumptions: Mapping[str, Any]
    #: Inputs no source states, and curves that are not calibrated: shown in every report.
    assumed: tuple[str, ...]
    cost: Mapping[str, Any]
    power: Mapping[str, Any]
    #: Joules of the iteration: stated power for its time, and what it computes and moves.
    energy: Mapping[str, Any]
    versions: Mapping[str, str]
    wall_s: float
    alternatives: tuple[Mapping[str, Any], ...] = field(default=())
    #: Lines of the summary (name, text) of a family with plans of its own: its plan, throughput and utilisation. Empty
    #: for layered models, whose plan and metrics say it.
    summary: tuple[tuple[str, str], ...] = field(default=())
    #: Plans a user would have tried: name, plan, seconds, samples per second, value over the optimum's, or why not.
    baselines: tuple[Mapping[str, Any], ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The object `--json` prints and result.json holds; an unlimited quantity is null."""
        plain: dict[str, Any] = _without_infinities({"schema_version": SCHEMA_VERSION, **asdict(self)})
        return plain


def _without_infinities(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _without_infinities(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(v) for v in value]
    return value
