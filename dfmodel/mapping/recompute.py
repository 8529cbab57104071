"""Recomputation: what a block keeps between its passes, and what the backward pass does again.

| mode | kept | done again |
|---|---|---|
| none | every tensor a backward kernel reads | nothing |
| selective | the same without attention's tensors over pairs of positions | the kernels that touch those |
| full | the block's inputs | the forward pass |
| full_but_last | the block's inputs | the forward pass without its last matrix kernel |

Selective: Korthikanti et al., MLSys 2023, section 5. Full but last is what checkpointing a module does in FSDP: it
stops once every tensor the backward pass reads exists, and none reads the last kernel's result.
"""

from __future__ import annotations

from collections.abc import Callable

from dfmodel.mapping.evaluate import BlockEvaluation, BlockEvaluator, PartitionEvaluation
from dfmodel.workloads.context_parallel import context_message
from dfmodel.workloads.differentiate import saved_for_backward
from dfmodel.workloads.graph import Block, Unit

RECOMPUTE = ("none", "selective", "full", "full_but_last")

#: Dimensions of a tensor over pairs of positions of a sequence.
_PAIR = ("token", "key")


def quadratic_tensors(block: Block) -> set[str]:
    """Tensors over pairs of positions: scores, probabilities, their dropout mask."""
    return {t for t, x in block.tensors.items() if all(d in x.dims for d in _PAIR)}


def is_selective(block: Block) -> bool:
    """Whether selective recomputation keeps less than none would."""
    return bool(quadratic_tensors(block) & set(saved_for_backward(block)))


def saved_bytes(evaluator: BlockEvaluator, mode: str) -> float:
    """Activation bytes of one block and micro-batch held between forward and backward pass, each tensor in the layout
    its producer leaves it."""
    return sum(_held(evaluator, t) for t in kept_tensors(evaluator.block, mode))


def kept_tensors(block: Block, mode: str) -> list[str]:
    """Tensors a block keeps between its passes."""
    if mode in ("full", "full_but_last"):
        return [t for t in block.inputs if any(block.by_name[c].phase == "forward" for c in block.consumers[t])]
    left_out = quadratic_tensors(block) if mode == "selective" else set()
    return [t for t in saved_for_backward(block) if t not in left_out]


def workspace_bytes(evaluator: BlockEvaluator, mode: str) -> float:
    """What one block of a micro-batch holds besides while its backward pass runs: what recomputation brings back."""
    return max(0.0, saved_bytes(evaluator, "none") - saved_bytes(evaluator, mode))


def gathered_bytes(evaluator: BlockEvaluator) -> float:
    """What one block holds while a pass runs of tensors gathered over a context parallel group or waiting to be
    scattered: all of a pass, of the larger pass."""
    block = evaluator.block
    held = {"forward": 0.0, "backward": 0.0}
    for kernel in block.kernels:
        message = context_message(block, kernel, evaluator.strategies[kernel.name], evaluator.context.chips)
        if message is not None:
            held[kernel.phase] += message[2]
    return max(held.values())


def _held(evaluator: BlockEvaluator, tensor: str) -> float:
    block = evaluator.block
    if tensor in block.producer:
        layout = evaluator.gives[tensor]
    elif block.tensors[tensor].dtype.startswith(("int", "uint")):
        layout = "replicated"
    else:
        layout = evaluator.boundary(tensor)
    return evaluator.held_bytes(tensor, layout)


def repeated_s(evaluation: BlockEvaluation, mode: str) -> float:
    """Seconds of forward work that the backward pass of one micro-batch does again."""
    again = repeats(evaluation.block, mode)
    return sum(p.seconds for p in evaluation.partitions if _is_forward(evaluation, p) and again(p.kernels))


def repeated_flops(block: Block, mode: str, unit: Unit) -> float:
    """FLOP of kernels of `unit` that are done again for one micro-batch, over all chips."""
    if not any(k.phase == "backward" for k in block.kernels):
        return 0.0
    again = repeats(block, mode)
    return sum(k.flops for k in block.kernels if k.phase == "forward" and k.unit == unit and again((k.name,)))


def _is_forward(evaluation: BlockEvaluation, partition: PartitionEvaluation) -> bool:
    return partition.phase == "forward" and any(p.phase != "forward" for p in evaluation.partitions)


def repeats(block: Block, mode: str) -> Callable[[tuple[str, ...]], bool]:
    """Whether a group of forward kernels that run together runs again."""
    if mode == "none":
        return lambda kernels: False
    if mode == "selective":
        quadratic = quadratic_tensors(block)
        touching = {k.name for k in block.kernels if quadratic & {o.tensor for o in (*k.inputs, *k.outputs)}}
        return lambda kernels: bool(touching & set(kernels))
    if mode == "full_but_last":
        matrix = [n for n in block.topological_order if block.by_name[n].unit == "matrix"]
        forward = [n for n in matrix if block.by_name[n].phase == "forward"]
        last = forward[-1:] if forward else []
        return lambda kernels: not set(last) & set(kernels)
    return lambda kernels: True
