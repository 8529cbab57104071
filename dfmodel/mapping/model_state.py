"""Weights, gradients and optimizer state of a stage: bytes, and what keeping them in step costs in communication.

ZeRO (Rajbhandari et al., SC 2020) divides over the N data-parallel chips: stage 1 the optimizer state, 2 the gradients
too, 3 the weights too. With w, g and k bytes per parameter of weight, gradient and optimizer state a chip holds

    0: w + g + k      1: w + g + k/N      2: w + (g + k)/N      3: (w + g + k)/N

(2 + 2 + 12 = 16 with 16-bit gradients; 2 + 4 + 12 = 18 with fp32 main gradients). Communication per step: an all-reduce
of the gradients (0); a reduce-scatter of them and an all-gather of the updated weights (1); with 2 and 3 gradients are
held divided, so they are reduced after every micro-batch; with 3 weights are gathered before every forward and backward
pass, block by block.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmodel.workloads.graph import DTYPE_BYTES

ZERO_STAGES = (0, 1, 2, 3)

#: Memory traffic of an Adam step per parameter it updates, beside the gradients: fp32 master weight and two moments
#: read and written, 16-bit weight written.
OPTIMIZER_STATE_TRAFFIC = 12 + 12 + 2

#: How often a step moves each gradient: read for the norm, read by the update, cleared.
GRADIENT_PASSES = 3


@dataclass(frozen=True)
class StateBytes:
    """Bytes on one chip."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def state_bytes(
    weight_bytes: float, parameters: float, zero: int, data: int, gradient_dtype: str, optimizer_bytes: float
) -> StateBytes:
    """State of `parameters` whose weights take `weight_bytes`, under ZeRO stage `zero` over `data` chips."""
    gradients = parameters * DTYPE_BYTES[gradient_dtype]
    optimizer = parameters * optimizer_bytes
    return StateBytes(
        weight_bytes / (data if zero >= 3 else 1),
        gradients / (data if zero >= 2 else 1),
        optimizer / (data if zero >= 1 else 1),
    )


def optimizer_traffic(parameters: float, zero: int, data: int, gradient_dtype: str) -> float:
    """Bytes one chip moves through memory in an optimizer step: its share of states; gradients where it holds them."""
    states = parameters * OPTIMIZER_STATE_TRAFFIC / (data if zero >= 1 else 1)
    gradients = parameters * DTYPE_BYTES[gradient_dtype] * GRADIENT_PASSES / (data if zero >= 1 else 1)
    return states + gradients


@dataclass(frozen=True)
class StateMessage:
    """One collective over the data-parallel group: per step, or (`every_micro_batch`) per micro-batch.

    It may hide behind the passes named in `behind`.
    """

    operation: str
    bytes: float
    every_micro_batch: bool
    behind: str


def state_messages(weight_bytes: float, parameters: float, zero: int, gradient_dtype: str) -> list[StateMessage]:
    """The collectives of a stage with `parameters` on a chip (before ZeRO divides them)."""
    gradients = parameters * DTYPE_BYTES[gradient_dtype]
    if zero == 0:
        return [StateMessage("all_reduce", gradients, False, "backward")]
    if zero == 1:
        return [
            StateMessage("reduce_scatter", gradients, False, "backward"),
            StateMessage("all_gather", weight_bytes, False, "forward"),
        ]
    reduced = StateMessage("reduce_scatter", gradients, True, "backward")
    if zero == 2:
        return [reduced, StateMessage("all_gather", weight_bytes, False, "forward")]
    gathered = [StateMessage("all_gather", weight_bytes, True, passes) for passes in ("forward", "backward")]
    return [*gathered, reduced]
