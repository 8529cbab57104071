"""What the command line and notebooks call: `optimize` searches, `evaluate` takes a fully given plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from dfmodel import __version__
from dfmodel.assumptions import Assumptions
from dfmodel.catalog_files import Dirs
from dfmodel.config import RunConfig, build_config
from dfmodel.errors import InputError
from dfmodel.mapping.best_first import Counts
from dfmodel.mapping.describe import assumed_of, describe_system
from dfmodel.mapping.energy import work_of
from dfmodel.mapping.evaluate import BlockEvaluation
from dfmodel.mapping.families import FamilyRun, MappedFamily, mapped_family
from dfmodel.mapping.joint import is_segmented
from dfmodel.mapping.map_block import SolverSettings
from dfmodel.mapping.plan import plan_request
from dfmodel.mapping.recompute import repeated_flops
from dfmodel.mapping.result import Certificate, KernelRow, PartitionRow, Result
from dfmodel.mapping.search import Evaluated, Search, search
from dfmodel.mapping.solver import quiet_pyomo, relative_gap_of, versions
from dfmodel.mapping.unit_costs import cost_of, energy_of, power_of, unit_metrics
from dfmodel.presets import load_assumptions, load_costs
from dfmodel.systems.catalog import load_system
from dfmodel.systems.cost import system_cost, system_power
from dfmodel.systems.prices import priced
from dfmodel.systems.system import System, with_tiers
from dfmodel.workloads.families import FAMILIES, LAYERS, family_of
from dfmodel.workloads.graph import Workload
from dfmodel.workloads.registry import build_workload, model_kind

Made = TypeVar("Made")


def optimize(
    workload: str | None = None,
    system: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    assumptions: str | None = None,
    study: str | None = None,
    catalogs: Dirs = (),
    time_limit_s: float | None = None,
    gap: float = 0.0,
    certify_all: bool = False,
    prune: bool = True,
    log: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """The best mapping of `workload` (default llm) on `system` (default dgx), with what proves it.

    `settings` are dotted overrides ({"system.nodes": 64, "plan.tensor": 8}); `study` a case file; `gap` the
    relative gap at which a program may stop; `certify_all` proves the sharding of every plan, not only of the
    winner (slower); without `prune` every plan is evaluated (much slower, the same answer). Raises InputError,
    InfeasibleError or LimitError.
    """
    config = build_config(workload, system, assumptions, settings, study, catalogs)
    return run(
        config,
        catalogs,
        time_limit_s=time_limit_s,
        gap=gap,
        certify_all=certify_all,
        prune=prune,
        log=log,
        progress=progress,
    )


def evaluate(
    workload: str | None = None,
    system: str | None = None,
    *,
    plan: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    assumptions: str | None = None,
    catalogs: Dirs = (),
) -> Result:
    """The result of one given plan: of layered models tensor, pipeline, data, micro_batch and recompute must all be
    stated, of other families the keys their errors name."""
    config = build_config(workload, system, assumptions, settings, None, catalogs)
    family = _family(config)
    needed = family.plan_keys if family else ("tensor", "pipeline", "data", "micro_batch", "recompute")
    missing = [k for k in needed if k not in plan]
    if missing:
        raise InputError(f"plan: evaluate needs {', '.join(missing)} as well; optimize finds what is left open")
    config.plan.update({**({} if family else {"context": 1}), **plan})
    return run(config, catalogs)


def run(
    config: RunConfig,
    catalogs: Dirs = (),
    *,
    time_limit_s: float | None = None,
    gap: float = 0.0,
    certify_all: bool = False,
    prune: bool = True,
    compare: bool = True,
    log: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Run a merged configuration; without `compare` no other plans are put beside the optimum."""
    began = time.perf_counter()
    quiet_pyomo()
    inputs = read_inputs(config, catalogs)
    settings = SolverSettings(time_limit_s, gap, log, certify_all, prune, compare)
    deadline = None if time_limit_s is None else began + time_limit_s
    family = _family(config)
    if family is not None:
        return family.search(FamilyRun(*inputs, settings, began, deadline, progress))
    state, best, proofs = search(*inputs, settings, progress, deadline)
    return build_result(state, best, proofs, time.perf_counter() - began, gap)


def read_inputs(config: RunConfig, catalogs: Dirs = ()) -> tuple[Workload, System, Assumptions, Any]:
    """What a merged configuration stands for. Raises InputError with every problem of its sections."""
    problems: list[str] = []

    def tried(make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except InputError as error:
            problems.extend(error.problems)
            return None

    system = tried(lambda: load_system(config.system, config.system_overrides, catalogs))
    assumptions = tried(lambda: load_assumptions(config.assumptions, config.assumption_overrides, catalogs))
    costs = tried(lambda: load_costs(config.cost, config.cost_overrides, catalogs))
    family = _family(config)
    read_plan: Callable[[Mapping[str, Any]], Any] = family.read_plan if family else plan_request
    request = tried(lambda: read_plan(config.plan))
    overrides = dict(config.workload_overrides)
    kind = None if family else tried(lambda: model_kind(config.workload, catalogs))
    if system is not None and assumptions is not None and kind is not None:
        overrides = {**_chip_choices(kind, system, assumptions), **overrides}
    if system is not None and "dtype" not in overrides and family is not None:
        overrides |= _best_format(config.workload, system)
    workload = tried(lambda: build_workload(config.workload, overrides, catalogs))
    if problems or workload is None or system is None or assumptions is None or request is None or costs is None:
        raise InputError(problems)
    system = priced(system, costs)
    system.chip.matrix_peak(assumptions.compute.products or workload.dtype)
    return workload, with_tiers(system, assumptions.memory.tiers), assumptions, request


def _chip_choices(kind: str, system: System, assumptions: Assumptions) -> dict[str, str]:
    """Settings of a kind of model that follow from the chip where a run leaves them out."""
    if kind == "llm" and _fuses_attention(system, assumptions):
        return {"attention": "fused"}
    if kind == "hyena":
        return {"on_chip": f"{system.chip.sram_bytes:.0f} B"}
    return {}


def _family(config: RunConfig) -> MappedFamily | None:
    """How the workload is mapped; None for layered models."""
    name = family_of(config.workload)
    return None if name == LAYERS else mapped_family(name)


def _best_format(workload: str, system: System) -> dict[str, str]:
    """The first of the formats a family is run in that the chip has; the result shows it as one asked for."""
    had = [d for d in FAMILIES[workload].dtypes if d in system.chip.matrix_flops_per_s]
    return {"dtype": had[0]} if had else {}


def _fuses_attention(system: System, assumptions: Assumptions) -> bool:
    return (
        system.chip.execution == "kernel_by_kernel"
        and assumptions.partitions.fusion
        and "attention" in system.chip.fusions
    )


def build_result(state: Search, best: Evaluated, proofs: list[dict[str, Any]], wall_s: float, gap: float) -> Result:
    """The result object of a finished search."""
    objective = best.iteration.seconds
    known = not state.out_of_time or (state.as_arrays and not state.interrupted and state.bound < math.inf)
    bound = min(state.bound, objective) if known else None
    found_gap = relative_gap_of(objective, bound)
    proven = found_gap is not None and found_gap <= max(gap, 1e-9)
    workload, system = state.workload, state.system
    seconds, used = best.iteration.seconds, best.plan.chips
    done = (seconds, best.plan.batch * workload.units_per_sample, workload.unit)
    work = work_of(workload, best.plan, best.context, best.blocks, state.assumptions)
    cost, energy = cost_of(system, used, *done), energy_of(system, work, workload.dtype, used, *done)
    return Result(
        status="optimal" if proven else "interrupted" if state.interrupted else "limit",
        objective=objective,
        bound=bound,
        gap=found_gap,
        workload=_describe_workload(workload),
        system=describe_system(system, state.assumptions.compute.products or workload.dtype),
        plan={
            **best.plan.describe(),
            "layers_per_stage": [list(c) for c in best.iteration.stage_counts],
            "slowest_stage": best.iteration.slowest_stage,
            "fullest_stage": best.fullest_stage,
        },
        metrics={**_metrics(state, best), **unit_metrics(workload, best.plan.batch, cost, energy)},
        breakdown_s=best.iteration.breakdown_s,
        memory_bytes=best.memory_bytes,
        memory_tiers=best.memory_tiers,
        hidden_s=best.iteration.hidden_s,
        memory_capacity_bytes=state.capacity_bytes,
        partitions=tuple(_partition_rows(workload, best.blocks)),
        kernels=tuple(_kernel_rows(best.blocks)),
        edges=tuple((b.block.name, e.producer, e.consumer) for b in best.blocks for e in b.block.edges),
        certificate=_certificate(state, best, proofs),
        assumptions=state.assumptions.model_dump(),
        assumed=tuple(assumed_of(system, state.assumptions)),
        cost=cost,
        power=power_of(system),
        energy=energy,
        versions={"dfmodel": __version__, **versions()},
        wall_s=wall_s,
        alternatives=tuple(
            {
                **e.plan.describe(),
                "iteration_s": e.iteration.seconds,
                # only where the K best are asked for, or all are evaluated, is the next known to be the next best
                "rank": i + 1 if i == 0 or state.request.best or not state.as_arrays else None,
            }
            for i, e in enumerate(state.best_plans)
        ),
        baselines=tuple(asdict(b) for b in state.baselines),
    )


def _describe_workload(w: Workload) -> dict[str, Any]:
    return {
        "name": w.name,
        "title": w.title,
        "batch": w.batch,
        "unit": w.unit,
        "units_per_sample": w.units_per_sample,
        "parameters": w.parameters,
        "dtype": w.dtype,
        "training": w.training,
        "blocks": {b.name: n for b, n in w.blocks},
        "flops": w.flops_per_sample() * w.batch,
        **{k: v for k, v in w.facts.items() if k not in ("name", "title")},
    }


def _metrics(state: Search, best: Evaluated) -> dict[str, float | None]:
    """Throughput and utilisations over the chips used; MFU counts matrix FLOPs once, HFU adds what is repeated."""
    workload, seconds = state.workload, best.iteration.seconds
    used = best.plan.describe()["chips_used"]
    peak = state.system.chip.matrix_peak(state.assumptions.compute.products or workload.dtype)
    batch = best.plan.batch
    matrix = workload.model_flops_per_sample("matrix") * batch
    done = workload.flops_per_sample("matrix") * batch
    repeated = batch * sum(n * repeated_flops(b.at_batch(1), best.plan.recompute, "matrix") for b, n in workload.blocks)
    capacity = used * peak * seconds
    counted = matrix if state.assumptions.iteration.flops == "model" else workload.flops_per_sample() * batch
    unit = workload.unit
    units = batch * workload.units_per_sample
    usd, watts = system_cost(state.system).total_usd, system_power(state.system).total_w
    return {
        "iteration_s": seconds,
        f"{unit}s_per_s": units / seconds,
        "samples_per_s": batch / seconds,
        "mfu": matrix / capacity,
        "hfu": (done + repeated) / capacity,
        "utilisation": counted / capacity,
        "layer_s": sum(
            b.seconds() for b, (_, n) in zip(best.blocks, workload.blocks, strict=True) if n == workload.layers
        ),
        "bubble_share": best.iteration.bubble_share,
        f"{unit}s_per_s_per_usd": None if not usd else units / seconds / usd,
        f"{unit}s_per_s_per_w": None if not watts else units / seconds / watts,
    }


def _partition_rows(workload: Workload, blocks: tuple[BlockEvaluation, ...]) -> list[PartitionRow]:
    return [
        PartitionRow(
            b.block.name,
            repeats,
            i,
            p.phase,
            p.kernels,
            p.compute_s,
            p.memory_s,
            p.network_s,
            p.seconds,
            p.bound_by,
            p.sram_bytes,
            p.memory_bytes,
        )
        for b, (_, repeats) in zip(blocks, workload.blocks, strict=True)
        for i, p in enumerate(b.partitions)
    ]


def _kernel_rows(blocks: tuple[BlockEvaluation, ...]) -> list[KernelRow]:
    rows = []
    for b in blocks:
        place = {name: i for i, p in enumerate(b.partitions) for name in p.kernels}
        memory = {p.kernels: p.memory_s for p in b.partitions}
        moved = {p.kernels: p.memory_bytes for p in b.partitions}
        for k in b.kernels:
            partition = b.partitions[place[k.kernel.name]].kernels
            share = k.memory_bytes / moved[partition] if moved[partition] else 0.0
            rows.append(
                KernelRow(
                    b.block.name,
                    k.kernel.name,
                    k.kernel.phase,
                    k.kernel.unit,
                    b.sharding[k.kernel.name],
                    place[k.kernel.name],
                    k.flops,
                    k.memory_bytes,
                    k.compute_s,
                    memory[partition] * share if len(partition) == 1 else 0.0,
                    k.network_s,
                    ", ".join(f"{c.operation} {c.tensor}" for c in b.communications if c.kernel == k.kernel.name),
                )
            )
    return rows


def _certificate(state: Search, best: Evaluated, proofs: list[dict[str, Any]]) -> Certificate:
    dataflow = best.context.dataflow
    not_covered = (
        [
            "expert parallelism"
            + ("" if state.request.schedule else "; zero-bubble schedules, unless plan.schedule=any"),
            "tensor degrees that do not divide the attention heads, context degrees that do not divide the sequence",
            "nesting orders of degrees inside one dimension other than tensor, context, data, pipeline",
        ]
        if state.as_arrays
        else [
            "plans that leave chips idle, context and expert parallelism",
            "schedules other than the one asked for (1f1b)",
            "nesting orders of degrees inside one dimension other than tensor, data, pipeline",
        ]
    )
    if dataflow and best.context.chips > 1 and is_segmented(best.mapped[0].evaluator.block):
        not_covered.append(
            "sharding together with partitioning beyond the winner's norm and residual segments: matrix kernels keep "
            "the division that is optimal for the sharding level, and so do the segments of other plans"
        )
    elif not state.mapper.additive:
        not_covered.append(
            "sharding and partitioning together: the sharding is optimal for its own objective "
            f"({state.assumptions.sharding.objective}), the partitioning for that sharding"
        )
    elif not state.settings.certify_all:
        not_covered.append(
            "shardings of plans other than the winner: each is evaluated with the sharding proven best for its tensor "
            "degree on one placement and micro-batch (--certify-all proves every plan's own)"
        )
    else:
        not_covered.append("slower shardings of plans whose fastest one does not fit memory")
    if state.request.objective == "energy" or state.request.at_most_unit_energy is not None:
        not_covered.append(
            "energy by what a plan moves: objective and limit count stated power for the time of the run at the "
            "facility's PUE; the sum of computing and moving is reported beside it"
        )
    if state.out_of_time:
        not_covered.append("plans left when the time limit was reached")
    return Certificate(
        kind="exhaustive",
        space=_space_in_words(state),
        plans_counted=state.counted,
        plans_infeasible=state.infeasible,
        plans_evaluated=state.evaluated,
        plans_settled_by_bound=state.settled_by_bound,
        cut_by=_cut_by(state.counts) if state.as_arrays else {},
        classes=state.counts.classes,
        classes_opened=state.counts.opened,
        mips=tuple(proofs),
        mips_solved=state.mips_solved,
        not_covered=tuple(not_covered),
    )


def _cut_by(counts: Counts) -> dict[str, int]:
    """Plans by what settled them without evaluating them."""
    return {
        "another class of the space does the same with less gathered": counts.dominated,
        "matrix work alone, all chips busy": counts.cut_before_mapping,
        "mapped blocks": counts.cut_by_bound,
        "memory that no division into stages can do without": counts.cut_by_memory,
        "blocks that cannot be divided so": counts.unmappable,
    }


def _space_in_words(state: Search) -> str:
    fixed = f"; the user fixes {_fixed(state)}" if _fixed(state) else ""
    if not state.as_arrays:
        return (
            "every split of every topology dimension into tensor x data x pipeline over all chips, with and without "
            "sequence sharding, micro-batches of 1 to 8 that divide the batch, recomputation none, selective or full, "
            f"ZeRO 0 to 3 (0 and 1 with a pipeline) ({state.counted:,} plans{fixed})"
        )
    return (
        "every placement of tensor x context x data x pipeline on factors of every topology dimension, chips left idle "
        "or not, with and without sequence sharding, micro-batches of 1 to 8, 1F1B and interleaved with 2 to 8 chunks, "
        "recomputation none, selective or full, ZeRO 0 to 3 (0 and 1 with a pipeline) "
        f"({state.counted:,} plans{fixed}); each is evaluated, does not fit memory, or is cut by an admissible bound"
    )


def _fixed(state: Search) -> str:
    request = state.request
    return ", ".join(k for k, v in vars(request).items() if v is not None)
