"""Bytes a chip must hold: training state, in-flight activations, working set of recomputation.

State per parameter: 18 B (bf16 weight 2, fp32 gradient 4, fp32 master weight and two Adam moments 12), or the
weights alone in a forward pass. Under 1F1B stage i of p holds min(p - i, m) micro-batches (Narayanan et al.,
SC'21, section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from dfmodel.mapping.evaluate import BlockEvaluation, BlockEvaluator
from dfmodel.workloads.differentiate import saved_for_backward
from dfmodel.workloads.graph import PARAMETER_ROLES


def saved_bytes(evaluator: BlockEvaluator, recompute: str) -> float:
    """Activation bytes of one block and micro-batch held between forward and backward pass.

    None: every tensor the backward pass reads, in the layout its producer leaves it; full: the block's inputs.
    """
    block = evaluator.block
    if recompute == "full":
        kept = [t for t in block.inputs if any(block.by_name[c].phase == "forward" for c in block.consumers[t])]
    else:
        kept = list(saved_for_backward(block))
    return sum(_held(evaluator, t) for t in kept)


def _held(evaluator: BlockEvaluator, tensor: str) -> float:
    block = evaluator.block
    if tensor in block.producer:
        layout = evaluator.gives[tensor]
    elif block.tensors[tensor].dtype.startswith(("int", "uint")):
        layout = "replicated"
    else:
        layout = evaluator.boundary(tensor)
    return evaluator.held_bytes(tensor, layout)


def live_bytes(evaluator: BlockEvaluator, evaluation: BlockEvaluation) -> float:
    """Largest sum over partitions of the tensors that wait in memory while it runs (the original's rule)."""
    block, assignment = evaluator.block, evaluation.assignment
    steps = sorted(set(assignment.values()))
    most = 0.0
    for step in steps:
        held = 0.0
        for tensor, consumers in block.consumers.items():
            producer = block.producer.get(tensor)
            if producer is None or block.tensors[tensor].role in PARAMETER_ROLES:
                continue
            for consumer in consumers:
                first, last = assignment[producer], assignment[consumer]
                if first != last and first <= step <= last:
                    held += evaluator.padded(tensor, evaluator.held_bytes(tensor, evaluator.gives[tensor]))
        most = max(most, held)
    return most


def layers_per_stage(repeats: Sequence[int], stages: int) -> list[list[int]]:
    """Copies of each block on each stage: the most repeated block spread evenly (the surplus on inner stages,
    away from embedding and head), blocks before it on the first stage, those after it on the last.
    """
    main = max(range(len(repeats)), key=lambda i: repeats[i])
    share, surplus = divmod(repeats[main], stages)
    order = sorted(range(stages), key=lambda i: (i in (0, stages - 1), i))
    extra = set(order[:surplus])
    table = []
    for stage in range(stages):
        row = [0] * len(repeats)
        row[main] = share + (stage in extra)
        if stage == 0:
            row[:main] = repeats[:main]
        if stage == stages - 1:
            row[main + 1 :] = repeats[main + 1 :]
        table.append(row)
    return table


def stage_memory(
    evaluations: Sequence[BlockEvaluation],
    saved: Sequence[float],
    working: Sequence[float],
    counts: Sequence[int],
    in_flight: int,
    state_bytes_per_parameter: float,
    training: bool,
) -> dict[str, float]:
    """Bytes by category of a stage with counts[i] copies of block i and `in_flight` micro-batches."""
    parameters = sum(e.parameters * n for e, n in zip(evaluations, counts, strict=True))
    weights = sum(e.parameter_bytes * n for e, n in zip(evaluations, counts, strict=True))
    activations = in_flight * sum(b * n for b, n in zip(saved, counts, strict=True))
    if not training:
        return {"weights": weights, "activations": max(working, default=0.0)}
    return {
        "weights": weights,
        "gradients and optimizer state": parameters * state_bytes_per_parameter - weights,
        "activations": activations,
        "recomputation workspace": max((w for w, n in zip(working, counts, strict=True) if n), default=0.0),
    }
