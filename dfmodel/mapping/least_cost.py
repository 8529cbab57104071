"""What a block costs a chip at least, before anything of its mapping is known.

Matrix kernels alone, divided over the tensor parallel chips without remainder, as are parameters and what is kept
between the passes; what depends on tokens divided over the context parallel chips too. What is gathered over those is
listed apart, because what it takes depends on where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmodel.mapping.block_costs import BlockCosts
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.mapping.recompute import kept_tensors, quadratic_tensors, repeats
from dfmodel.workloads.context_parallel import TOKEN, over_context, sequence_lengths, undivided
from dfmodel.workloads.graph import BATCH, Block, Phase


@dataclass(frozen=True)
class LeastCost:
    """What one copy of a block costs a chip at least, whatever its mapping: seconds for a micro-batch, parameters and
    their bytes, activations kept between the passes."""

    forward_s: float
    backward_s: float
    parameters: float
    parameter_bytes: float
    saved_bytes: float
    weights_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class _Extent:
    """A figure of one sequence, and whether it grows with the micro-batch and shrinks with the context degree."""

    amount: float
    by_batch: bool
    by_token: bool

    def at(self, micro_batch: int, context: int) -> float:
        return self.amount * (micro_batch if self.by_batch else 1) / (context if self.by_token else 1)


@dataclass(frozen=True)
class _Matrix:
    """A matrix kernel: its FLOP, its pass, whether it starts a kernel of its own, whether it is done again."""

    flops: _Extent
    forward: bool
    alone: bool
    again: bool


class LeastCosts:
    """Least costs of one block under one recomputation mode, by tensor degree, micro-batch and context degree."""

    def __init__(self, block: Block, mode: str, timer: KernelTimer) -> None:
        """`block` as the workload has it, for one sequence."""
        self.timer = timer
        quadratic = quadratic_tensors(block)
        training = any(k.phase == "backward" for k in block.kernels)
        again = repeats(block, mode)
        self._matrix = [
            _Matrix(
                _Extent(k.flops, BATCH in k.dims, TOKEN in k.dims),
                k.phase == "forward",
                # a kernel fused with others starts with them, but only attention fuses several matrix kernels
                not quadratic & {o.tensor for o in (*k.inputs, *k.outputs)},
                training and k.phase == "forward" and again((k.name,)),
            )
            for k in block.kernels
            if k.unit == "matrix"
        ]
        self._parameters = block.parameters
        self._parameter_bytes = sum(block.tensors[w].bytes for w in block.weights)
        self._kept = [
            _Extent(x.bytes, BATCH in x.dims, TOKEN in x.dims)
            for x in (block.tensors[t] for t in kept_tensors(block, mode))
        ]
        self._launch_s = 0.0 if timer.chip.execution == "dataflow" else timer.launch_s

    @property
    def repeated_flops(self) -> float:
        """FLOP of matrix kernels that are done again, for one sequence over all chips."""
        return sum(m.flops.amount for m in self._matrix if m.again)

    def at(self, tensor: int, micro_batch: int, context: int = 1) -> LeastCost:
        seconds = {True: 0.0, False: 0.0}
        for m in self._matrix:
            flops = m.flops.at(micro_batch, context) / tensor
            seconds[m.forward] += self.timer.least_matrix_s(flops) + (self._launch_s if m.alone else 0.0)
            seconds[False] += flops * self.timer.matrix_s_per_flop if m.again else 0.0
        return LeastCost(
            seconds[True],
            seconds[False],
            self._parameters / tensor,
            self._parameter_bytes / tensor,
            sum(k.at(micro_batch, context) for k in self._kept) / tensor,
        )

    @property
    def started_s(self) -> tuple[float, float]:
        """Seconds the forward and the backward pass spend starting kernels at least."""
        forward = sum(m.alone for m in self._matrix if m.forward)
        backward = sum(m.alone for m in self._matrix if not m.forward)
        return self._launch_s * forward, self._launch_s * backward


@dataclass(frozen=True)
class Message:
    """A collective over the context parallel group: bytes of one sequence before tensor parallelism divides them."""

    phase: Phase
    operation: str
    bytes: float


def context_messages(block: Block) -> list[Message]:
    """What a block gathers and scatters over a context parallel group; the bytes are the same for every degree."""
    if undivided(block) or any(k.strategies is not None for k in block.kernels):
        return []
    lengths = sequence_lengths(block)
    degree = next((d for d in (2, 3, 5, 7) if lengths and all(n % d == 0 for n in lengths)), 1)
    divided = over_context(block, degree)
    found = []
    for kernel in divided.kernels:
        if kernel.context_collective is not None:
            whole = max(divided.tensors[o.tensor].bytes for o in (*kernel.inputs, *kernel.outputs))
            found.append(Message(kernel.phase, kernel.context_collective, whole))
    return found


def scaled_s(seconds: float, share: float, started_s: float) -> float:
    """Least seconds on a `share` (at most 1) of the tokens that take `seconds`, `started_s` of them to start kernels.

    A kernel takes max(compute, memory) + start, with memory of tokens and of weights: on a share x of the tokens at
    least x of that, and its start in full.
    """
    return seconds * share + (1 - share) * started_s


def scaled(costs: BlockCosts | LeastCost, share: float, started_s: tuple[float, float]) -> LeastCost:
    """A lower bound of a block's costs on a `share` of the tokens it was mapped for; see `scaled_s`."""
    return LeastCost(
        scaled_s(costs.forward_s, share, started_s[0]),
        scaled_s(costs.backward_s + costs.weights_s, share, started_s[1]),
        costs.parameters,
        costs.parameter_bytes,
        costs.saved_bytes * share,
    )
