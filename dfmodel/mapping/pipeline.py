"""The iteration: from seconds per micro-batch of mapped blocks to seconds of a whole training step or batch.

Two models, named by the assumption `iteration.model`; both return seconds by category that add up to the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluation
from dfmodel.mapping.footprint import layers_per_stage
from dfmodel.mapping.plan import Plan
from dfmodel.workloads.graph import Workload

#: Memory traffic of an Adam step per parameter: gradient read, three fp32 states read and written, bf16 weight written.
OPTIMIZER_BYTES_PER_PARAMETER = 4 + 12 + 12 + 2
GRADIENT_BYTES = 4.0


@dataclass(frozen=True)
class Iteration:
    """Seconds of one iteration, by category (they add up), with the stage that sets the pace."""

    seconds: float
    breakdown_s: dict[str, float]
    stage_counts: tuple[tuple[int, ...], ...]
    slowest_stage: int
    bubble_share: float


def iteration(workload: Workload, plan: Plan, context: Context, blocks: Sequence[BlockEvaluation]) -> Iteration:
    """The iteration under the model the assumptions name."""
    return _MODELS[context.assumptions.iteration.model](workload, plan, context, blocks)


def one_f_one_b(workload: Workload, plan: Plan, context: Context, blocks: Sequence[BlockEvaluation]) -> Iteration:
    """1F1B: sum_i t_i + (m - 1) max_i t_i over stages, then the data-parallel all-reduce of fp32 gradients and the
    optimizer step, neither overlapped (Narayanan et al., SC'21; the sum form is the pipeline objective of Alpa,
    arXiv 2201.12023). Every stage but the last sends activations forward, every one but the first gradients back,
    each micro-batch, unoverlapped.
    """
    stages = plan.degree("pipeline")
    counts = layers_per_stage([n for _, n in workload.blocks], stages)
    send_s = _boundary_send_s(workload, plan, context, blocks)
    per_stage = [_stage(blocks, c, plan, send_s, i, stages) for i, c in enumerate(counts)]
    totals = [sum(parts.values()) for parts in per_stage]
    slowest = max(range(stages), key=totals.__getitem__)
    m = plan.micro_batches
    steady = {name: seconds * m for name, seconds in per_stage[slowest].items()}
    bubble = sum(totals) + (m - 1) * totals[slowest] - m * totals[slowest]
    breakdown = {**steady, "pipeline bubble": bubble}
    if workload.training:
        breakdown["data-parallel all-reduce"], breakdown["optimizer"] = _update_s(plan, context, blocks, counts)
    total = sum(breakdown.values())
    return Iteration(total, breakdown, tuple(tuple(c) for c in counts), slowest, bubble / total)


def _stage(
    blocks: Sequence[BlockEvaluation],
    counts: Sequence[int],
    plan: Plan,
    send_s: float,
    stage: int,
    stages: int,
) -> dict[str, float]:
    """Seconds of one micro-batch on a stage, by category."""
    parts = dict.fromkeys(
        (
            "compute",
            "memory",
            "tensor-parallel communication",
            "launch",
            "recomputation",
            "pipeline communication",
        ),
        0.0,
    )
    for block, count in zip(blocks, counts, strict=True):
        if count:
            parts["compute"] += count * block.exposed_s["compute"]
            parts["memory"] += count * block.exposed_s["memory"]
            parts["tensor-parallel communication"] += count * block.exposed_s["network"]
            parts["launch"] += count * block.exposed_s["launch"]
            parts["recomputation"] += count * block.forward_s if plan.recompute == "full" else 0.0
    borders = (stage > 0) + (stage < stages - 1)
    parts["pipeline communication"] = send_s * borders
    return parts


def _boundary_send_s(workload: Workload, plan: Plan, context: Context, blocks: Sequence[BlockEvaluation]) -> float:
    """Seconds to send one micro-batch's activations across a stage border (one direction), unoverlapped."""
    if plan.degree("pipeline") == 1:
        return 0.0
    main = max(range(len(blocks)), key=lambda i: workload.blocks[i][1])
    block = blocks[main].block
    size = sum(
        block.tensors[t].bytes_in(
            "token" if context.sequence and "token" in block.tensors[t].dims else "replicated", context.chips
        )
        for t in block.outputs
        if t in block.producer
        and block.by_name[block.producer[t]].phase == "forward"
        and block.tensors[t].role == "activation"
    )
    return float(context.model("point_to_point", size, plan.groups["pipeline"]))


def _update_s(
    plan: Plan, context: Context, blocks: Sequence[BlockEvaluation], counts: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """Seconds of the gradient all-reduce and of the optimizer step on the stage with most parameters."""
    parameters = max(sum(b.parameters * n for b, n in zip(blocks, c, strict=True)) for c in counts)
    data = plan.groups["data"]
    reduce_s = float(context.model("all_reduce", parameters * GRADIENT_BYTES, data)) if data.size > 1 else 0.0
    return reduce_s, context.timer.memory_s(parameters * OPTIMIZER_BYTES_PER_PARAMETER)


def amortised(workload: Workload, plan: Plan, context: Context, blocks: Sequence[BlockEvaluation]) -> Iteration:
    """The original's iteration (DFModel artifact, src/intra_chip.py): with layers per stage l, micro-batches m and
    v = max(l - 1, 1), T * (1 + (PP - 1) / (m v)) * l * batch / DP + point-to-point of the activations (and their
    gradients) of every layer once per batch, divided by the number of copies of the job.
    """
    (block,) = blocks
    layers = workload.layers
    stages = plan.degree("pipeline")
    per_stage = -(-layers // stages)
    factor = 1 + (stages - 1) / (plan.micro_batches * max(per_stage - 1, 1))
    scale = per_stage * workload.batch / plan.degree("data")
    parts = {
        "compute": block.exposed_s["compute"] * scale,
        "memory": block.exposed_s["memory"] * scale,
        "tensor-parallel communication": block.exposed_s["network"] * scale,
        "launch": block.exposed_s["launch"] * scale,
    }
    parts["pipeline bubble"] = sum(parts.values()) * (factor - 1)
    parts["pipeline communication"] = _once_per_batch_s(workload, plan, context, block)
    parts = {name: seconds / context.system.copies for name, seconds in parts.items()}
    total = sum(parts.values())
    counts = ((per_stage,),) * stages
    return Iteration(total, parts, counts, 0, parts["pipeline bubble"] / total)


def _once_per_batch_s(workload: Workload, plan: Plan, context: Context, block: BlockEvaluation) -> float:
    """Twice the first kernel's output (activation and gradient) per layer over one link; nothing for inference."""
    if plan.degree("pipeline") == 1 or not workload.training:
        return 0.0
    first = block.block.kernels[0].outputs[0].tensor
    size = 2 * block.block.tensors[first].bytes
    link = plan.groups["pipeline"].parts[-1].dimension.link
    return size / link.bytes_per_s * workload.layers


_MODELS = {"one_f_one_b": one_f_one_b, "amortised": amortised}
