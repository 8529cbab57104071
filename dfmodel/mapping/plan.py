"""Plans: degrees of parallelism, where they sit on the topology, micro-batch and recomputation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from dfmodel.errors import InputError, did_you_mean
from dfmodel.mapping.model_state import ZERO_STAGES
from dfmodel.mapping.objective import PerUnit, parse_per_unit
from dfmodel.mapping.partition_request import PartitionRequest
from dfmodel.mapping.recompute import RECOMPUTE, is_selective
from dfmodel.mapping.schedules import SCHEDULES, in_flight_table
from dfmodel.systems.network import Group, factorizations, place
from dfmodel.systems.system import System
from dfmodel.units import parse
from dfmodel.workloads.context_parallel import context_degrees, undivided
from dfmodel.workloads.graph import Workload

#: Degrees from the innermost outwards: in a dimension that several share, tensor parallel chips are neighbours.
DEGREES = ("tensor", "context", "data", "pipeline")

LARGEST_MICRO_BATCH = 8

#: What is minimised per sample: seconds, USD or joules of the chips used (mapping/objective.py).
OBJECTIVES = ("time", "cost", "energy")

#: Asks for every schedule, those included that need a backward pass in two parts.
ANY_SCHEDULE = "any"

#: ZeRO stages that are tried without being asked for: with a pipeline gradients wait for all micro-batches.
SEARCHED_ZERO = (0, 1, 2, 3)
SEARCHED_ZERO_PIPELINED = (0, 1)


@dataclass(frozen=True)
class Plan:
    """One plan. `factors[d][i]` is what degree DEGREES[d] takes of dimension i of `system`.

    Chips of the context and data parallel groups hold the same weights: together they are the replicas over which
    gradients are reduced and ZeRO divides states. `expert` of the data parallel chips share the experts of a layer
    between them; workloads without experts have 1.
    """

    system: System
    factors: tuple[tuple[int, ...], ...]
    sequence: bool
    micro_batch: int
    micro_batches: int
    recompute: str
    schedule: str = "1f1b"
    chunks: int = 1
    zero: int = 0
    expert: int = 1

    @cached_property
    def groups(self) -> dict[str, Group]:
        return place(list(zip(DEGREES, self.factors, strict=True)), self.system.dimensions)

    @cached_property
    def replicas(self) -> Group:
        """The chips that hold the same weights: context and data parallel ones."""
        tensor, context, data, _ = self.factors
        together = tuple(c * d for c, d in zip(context, data, strict=True))
        return place([("tensor", tensor), ("replicas", together)], self.system.dimensions)["replicas"]

    def degree(self, name: str) -> int:
        return self.groups[name].size

    @cached_property
    def chips(self) -> int:
        return math.prod(group.size for group in self.groups.values())

    @property
    def batch(self) -> int:
        """Samples of one iteration."""
        return self.degree("data") * self.micro_batch * self.micro_batches

    @cached_property
    def in_flight(self) -> tuple[float, ...]:
        """Micro-batches of which each stage holds activations."""
        counts = np.array([self.micro_batches])
        table = in_flight_table(self.schedule, self.degree("pipeline"), counts, self.chunks)
        return tuple(float(held) for held in table[:, 0])

    def describe(self) -> dict[str, Any]:
        """The plan as the result shows it."""
        return {
            "tensor": self.degree("tensor"),
            "sequence_sharding": self.sequence,
            "context": self.degree("context"),
            "pipeline": self.degree("pipeline"),
            "data": self.degree("data"),
            "micro_batch": self.micro_batch,
            "micro_batches": self.micro_batches,
            "recompute": self.recompute,
            "schedule": self.schedule,
            "chunks": self.chunks,
            "zero": self.zero,
            "placement": {name: str(self.groups[name]) for name in DEGREES},
            "batch": self.batch,
            "chips_used": self.chips,
            "chips_idle": self.system.chips - self.chips,
        }


@dataclass(frozen=True)
class PlanRequest:
    """What a user fixes of the plan; None leaves it to the search. `most_chunks` is up to how many chunks per stage
    interleaving is tried (None: 8).

    `placement` maps a degree to its factor per dimension name, for example {"tensor": {"nvlink": 8}}.
    `sharding` pins kernels' strategies by name, `partition` kernels' partition numbers. `limits` are the most a block
    may take in one pass on one chip: {"traffic": bytes through memory, "energy": joules}. `use_all_chips` leaves out
    plans with idle chips, `at_most_chips` those that use more; with `batch_at_most` the workload's batch is the most a
    plan may take, else what it takes. `at_most_cost` and `at_most_power` limit price (USD) and power (W) of the chips
    used, `at_most_unit_cost` and `at_most_unit_energy` USD and joules per unit of work.
    """

    tensor: int | None = None
    context: int | None = None
    pipeline: int | None = None
    data: int | None = None
    sequence_sharding: bool | None = None
    micro_batch: int | None = None
    recompute: str | None = None
    schedule: str | None = None
    chunks: int | None = None
    most_chunks: int | None = None
    zero: int | None = None
    expert: int | None = None
    use_all_chips: bool | None = None
    at_most_chips: int | None = None
    batch_at_most: bool | None = None
    at_most_power: float | None = None
    at_most_cost: float | None = None
    at_most_unit_cost: PerUnit | None = None
    at_most_unit_energy: PerUnit | None = None
    objective: str | None = None
    best: int | None = None
    within: float | None = None
    compare: Mapping[str, Any] | None = None
    placement: Mapping[str, Mapping[str, int]] | None = None
    sharding: Mapping[str, str] | None = None
    partition: Mapping[str, int] | None = None
    limits: Mapping[str, float] | None = None

    @property
    def use_all(self) -> bool:
        return bool(self.use_all_chips)

    @property
    def partitioning(self) -> PartitionRequest:
        return PartitionRequest(self.partition, self.limits)


def plan_request(settings: Mapping[str, Any]) -> PlanRequest:
    """A checked request from `plan.*` settings. Raises InputError with every problem found."""
    known = {f.name for f in fields(PlanRequest)}
    problems = [f"plan.{k}: unknown key{did_you_mean(k, known)}" for k in settings if k not in known]
    for key in (
        "tensor",
        "context",
        "pipeline",
        "data",
        "micro_batch",
        "chunks",
        "most_chunks",
        "expert",
        "at_most_chips",
        "best",
    ):
        value = settings.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            problems.append(f"plan.{key}: must be a whole number of at least 1, got {value!r}")
    for key, valid in (
        ("recompute", RECOMPUTE),
        ("schedule", (*SCHEDULES, ANY_SCHEDULE)),
        ("zero", ZERO_STAGES),
        ("objective", OBJECTIVES),
    ):
        if settings.get(key) not in (None, *valid) or isinstance(settings.get(key), bool):
            shown = ", ".join(map(str, valid))
            problems.append(f"plan.{key}: must be one of {shown}, got {settings[key]!r}")
    problems += _chunk_problems(settings)
    problems += [
        f"plan.{key}: must be true or false, got {settings[key]!r}"
        for key in ("sequence_sharding", "use_all_chips", "batch_at_most")
        if settings.get(key) not in (None, True, False)
    ]
    for key in ("placement", "sharding", "partition", "limits", "compare"):
        if settings.get(key) is not None and not isinstance(settings[key], Mapping):
            problems.append(f"plan.{key}: must be a mapping, got {settings[key]!r}")
    placement = settings.get("placement")
    if isinstance(placement, Mapping):
        problems += [
            f"plan.placement.{degree}: unknown degree{did_you_mean(degree, DEGREES)}"
            for degree in placement
            if degree not in DEGREES
        ]
    if isinstance(settings.get("partition"), Mapping):
        problems += [
            f"plan.partition.{kernel}: must be a whole number of at least 0, got {slot!r}"
            for kernel, slot in settings["partition"].items()
            if not isinstance(slot, int) or isinstance(slot, bool) or slot < 0
        ]
    limits, faults = _limits(settings.get("limits"))
    quantities, more = _at_most(settings)
    problems += faults + more
    if problems:
        raise InputError(problems)
    return PlanRequest(**{**settings, "limits": limits, **quantities})


def _at_most(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Limits on power and cost and the margin of the best plans as numbers, and what is wrong with them."""
    found: dict[str, Any] = {}
    problems = []
    for key, kind, read in (
        ("at_most_power", "power", parse),
        ("at_most_cost", "money", parse),
        ("at_most_unit_cost", "money", parse_per_unit),
        ("at_most_unit_energy", "energy", parse_per_unit),
    ):
        if settings.get(key) is not None:
            try:
                found[key] = read(settings[key], kind, f"plan.{key}")
            except InputError as error:
                problems += error.problems
    within = settings.get("within")
    if within is not None and (not isinstance(within, int | float) or isinstance(within, bool) or not 0 <= within < 10):
        problems.append(f"plan.within: must be a share of 0 or more, for example 0.05, got {within!r}")
    return found, problems


def one_schedule_each(request: PlanRequest) -> list[PlanRequest]:
    """The request once for every kind of schedule it leaves open: 1F1B with its interleaved forms, and, where any is
    asked for, the zero-bubble ones (GPipe takes no less than 1F1B and holds no less)."""
    if request.schedule != ANY_SCHEDULE:
        return [request]
    return [replace(request, schedule=schedule) for schedule in (None, "zb_h1", "zb_h2")]


def _chunk_problems(settings: Mapping[str, Any]) -> list[str]:
    """Chunks and a schedule that do not go together."""
    chunks, schedule = settings.get("chunks"), settings.get("schedule")
    if isinstance(chunks, int) and chunks > 1 and schedule not in (None, "interleaved"):
        return [f"plan.chunks: only schedule interleaved has chunks, got {chunks} with {schedule}; remove one of them"]
    if schedule == "interleaved" and (chunks is None or chunks == 1):
        return ["plan.chunks: schedule interleaved needs the number of chunks per stage, 2 or more"]
    return []


#: What a block's totals may be limited in, and the kind of quantity.
LIMITS = {"traffic": "bytes", "energy": "energy"}


def _limits(stated: Any) -> tuple[dict[str, float] | None, list[str]]:
    """Limits as numbers, and what is wrong with them."""
    found: dict[str, float] = {}
    problems = []
    for name, value in stated.items() if isinstance(stated, Mapping) else ():
        if name not in LIMITS:
            problems.append(f"plan.limits.{name}: unknown total{did_you_mean(str(name), LIMITS)}")
            continue
        try:
            found[name] = parse(value, LIMITS[name])
        except InputError as error:
            problems.append(f"plan.limits.{name}: {error}")
            continue
        if found[name] <= 0:
            problems.append(f"plan.limits.{name}: must be more than zero, got {value!r}")
    return found or None, problems


def check_space(workload: Workload, system: System, request: PlanRequest) -> None:
    """Raises InputError where nothing can fit what is asked of the degrees, the batch or the chunks."""
    names = [d.name for d in system.dimensions]
    for degree, by_dimension in (request.placement or {}).items():
        for dimension in by_dimension:
            if dimension not in names:
                raise InputError(f"plan.placement.{degree}: no dimension '{dimension}'{did_you_mean(dimension, names)}")
    if request.expert not in (None, 1):
        raise InputError(f"plan.expert: {workload.title} has no experts to divide; remove it")
    if request.context is not None and request.context not in context_degrees(workload, request.context):
        raise InputError(_no_context(workload, request.context))
    wanted = [(d, getattr(request, d)) for d in DEGREES if getattr(request, d) is not None]
    needed = math.prod(w for _, w in wanted)
    if needed > system.chips:
        raise InputError(f"plan: {_asked(request)} needs {needed} chips, the system has {system.chips}")
    if request.pipeline is not None and request.pipeline > workload.layers:
        raise InputError(
            f"plan: every allowed split needs more pipeline stages than the workload has layers ({workload.layers}); "
            "lower plan.pipeline or use fewer chips"
        )
    batch, micro = workload.batch, request.micro_batch or 1
    step = (request.data or 1) * micro
    if not request.batch_at_most and batch % step:
        raise InputError(
            f"workload.batch: no plan divides a batch of {batch}: it must be a multiple of data degree x micro-batch "
            f"({step}); nearest batch that works: {_nearest_batch(batch, request.data or 1, micro)}"
        )
    if request.batch_at_most and batch < step:
        raise InputError(f"workload.batch: at most {batch} samples are fewer than data degree x micro-batch ({step})")
    if request.chunks and request.pipeline:
        counts = batch // step if request.data else request.pipeline
        _, why_not = _schedules(workload, request.pipeline, counts, request)
        if why_not:
            raise InputError(why_not[0])


def _no_context(workload: Workload, asked: int) -> str:
    """Why a context degree cannot be had, with the next lower ones that can."""
    possible = context_degrees(workload, asked)
    whole = next((name for block, _ in workload.blocks if (name := undivided(block))), None)
    if whole is not None:
        return (
            f"plan.context: {workload.title} cannot be divided along its sequences: kernel '{whole}' needs every token "
            "(a scan or convolution); use 1, and plan.tensor to divide channels"
        )
    if possible == [1]:
        return f"plan.context: the sequences of {workload.title} cannot be divided over chips; remove it"
    shown = ", ".join(map(str, possible[-3:]))
    return f"plan.context: sequences do not divide into {asked} parts; possible below it: {shown}"


def candidate_plans(workload: Workload, system: System, request: PlanRequest) -> Iterator[Plan]:
    """Every plan that uses all chips without context parallelism: each split of each dimension, with or without
    sequence sharding, micro-batches of 1 to 8 sequences that divide the batch, recomputation none or full.

    Raises InputError where nothing fits the request, saying which part of it cannot be.
    """
    layers = workload.layers
    found = False
    table = list(_factors(system, request))
    if not table:
        raise InputError(
            f"plan: no split of {_sizes(system)} chips gives {_asked(request)}; "
            "the degrees must multiply to the number of chips and each must divide the dimensions it is placed on"
        )
    deep_only = True
    undivided: list[str] = []
    for factors in table:
        tensor, _, data, pipeline = (_product(f) for f in factors)
        if pipeline > layers:
            continue
        deep_only = False
        for micro_batch in micro_batches(workload, request):
            if workload.batch % (data * micro_batch):
                continue
            count = workload.batch // (data * micro_batch)
            schedules, why_not = _schedules(workload, pipeline, count, request)
            undivided += why_not
            for schedule, chunks in schedules:
                for sequence in sequence_choices(workload, tensor, request):
                    for recompute in recompute_choices(workload, request):
                        for zero in zero_choices(workload, data, pipeline, request):
                            found = True
                            yield Plan(system, factors, sequence, micro_batch, count, recompute, schedule, chunks, zero)
    if deep_only:
        raise InputError(
            f"plan: every allowed split needs more pipeline stages than the workload has layers ({layers}); "
            "lower plan.pipeline or use fewer chips"
        )
    if not found and undivided:
        raise InputError(undivided[0])
    if not found:
        degrees = sorted({_product(f[DEGREES.index("data")]) for f in table})
        shown = ", ".join(map(str, degrees[:12]))
        raise InputError(
            f"workload.batch: no plan divides a batch of {workload.batch}: it must be a multiple of data degree x "
            f"micro-batch; data degrees possible on {_sizes(system)} chips: {shown}; "
            f"nearest batch that works: {_nearest_batch(workload.batch, min(degrees), request.micro_batch or 1)}"
        )


def _factors(system: System, request: PlanRequest) -> Iterator[tuple[tuple[int, ...], ...]]:
    if request.expert not in (None, 1):
        raise InputError("plan.expert: no workload has experts yet; remove it")
    if request.context not in (None, 1):
        raise InputError("plan.context: only with assumptions.iteration.model=scheduled; remove one of them")
    if request.schedule == ANY_SCHEDULE:
        raise InputError("plan.schedule any: only with assumptions.iteration.model=scheduled; remove one of them")
    wanted = (request.tensor, request.data, request.pipeline)
    placed = request.placement or {}
    apart = tuple(d for d in DEGREES if d != "context")
    names = [d.name for d in system.dimensions]
    for degree, by_dimension in placed.items():
        for dimension in by_dimension:
            if dimension not in names:
                raise InputError(f"plan.placement.{degree}: no dimension '{dimension}'{did_you_mean(dimension, names)}")
    for row in factorizations(system.dimensions, apart).tolist():
        if any(w is not None and _product(f) != w for w, f in zip(wanted, row, strict=True)):
            continue
        if any(
            row[apart.index(degree)][names.index(dimension)] != factor
            for degree, by_dimension in placed.items()
            if degree in apart
            for dimension, factor in by_dimension.items()
        ):
            continue
        tensor, data, pipeline = (tuple(f) for f in row)
        yield (tensor, (1,) * len(names), data, pipeline)


def micro_batches(workload: Workload, request: PlanRequest) -> list[int]:
    if request.micro_batch is not None:
        return [request.micro_batch]
    if not _has_batch(workload):
        return [1]
    return [b for b in range(1, LARGEST_MICRO_BATCH + 1) if workload.batch % b == 0]


def _has_batch(workload: Workload) -> bool:
    return any("batch" in k.dims for block, _ in workload.blocks for k in block.kernels)


def sequence_choices(workload: Workload, tensor: int, request: PlanRequest, context: int = 1) -> list[bool]:
    if request.sequence_sharding is not None:
        return [request.sequence_sharding]
    if tensor == 1 or not _has_batch(workload):
        return [False]
    lengths = {x.dims["token"] for block, _ in workload.blocks for x in block.tensors.values() if "token" in x.dims}
    return [False, True] if lengths and all(n >= tensor * context for n in lengths) else [False]


def recompute_choices(workload: Workload, request: PlanRequest) -> list[str]:
    if request.recompute is not None:
        return [request.recompute]
    if not (workload.training and _has_batch(workload)):
        return ["none"]
    selective = any(is_selective(block) for block, _ in workload.blocks)
    return ["none", "selective", "full"] if selective else ["none", "full"]


def zero_choices(workload: Workload, replicas: int, pipeline: int, request: PlanRequest) -> tuple[int, ...]:
    if request.zero is not None:
        return (request.zero,)
    if replicas == 1 or not (workload.training and _has_batch(workload)):
        return (0,)
    return SEARCHED_ZERO_PIPELINED if pipeline > 1 else SEARCHED_ZERO


def _schedules(
    workload: Workload, pipeline: int, micro_batches: int, request: PlanRequest
) -> tuple[list[tuple[str, int]], list[str]]:
    """(schedule, chunks) to try, and why a wish cannot be had with these stages and micro-batches."""
    chunks = request.chunks or 1
    schedule = request.schedule or ("interleaved" if chunks > 1 else "1f1b")
    if schedule != "interleaved":
        return [(schedule, 1)], []
    layers = workload.layers
    if layers % (pipeline * chunks):
        possible = [v for v in range(2, layers // pipeline + 1) if layers % (pipeline * v) == 0]
        return [], [
            f"plan.chunks: {layers} layers do not divide into {pipeline} stages of {chunks} chunks; with {pipeline} "
            f"stages chunks may be {', '.join(map(str, possible)) or 'none'}"
        ]
    if micro_batches % pipeline:
        return [], [
            f"plan.chunks: interleaving needs micro-batches in multiples of the {pipeline} stages, there are "
            f"{micro_batches}; change workload.batch, plan.micro_batch or plan.data"
        ]
    return [(schedule, chunks)], []


def _product(factors: tuple[int, ...] | list[int]) -> int:
    result = 1
    for f in factors:
        result *= f
    return result


def _sizes(system: System) -> str:
    return " x ".join(str(d.size) for d in system.dimensions)


def _asked(request: PlanRequest) -> str:
    shown = [f"{name} {getattr(request, name)}" for name in DEGREES if getattr(request, name) is not None]
    if request.placement:
        shown.append(f"placement {dict(request.placement)}")
    return ", ".join(shown) or "any plan"


def _nearest_batch(batch: int, data: int, micro_batch: int) -> int:
    step = data * micro_batch
    return max(step, round(batch / step) * step)
