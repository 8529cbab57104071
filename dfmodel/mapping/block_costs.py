"""What the iteration needs of a mapped block: seconds by pass, bytes kept, under one recomputation mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dfmodel.mapping.evaluate import BlockEvaluation, BlockEvaluator, Over, PartitionEvaluation
from dfmodel.mapping.recompute import gathered_bytes, repeated_s, repeats, saved_bytes, workspace_bytes


@dataclass(frozen=True)
class BlockCosts:
    """One copy of a block, one micro-batch, one chip.

    `backward_s` leaves out the kernels that only make weight gradients (`weights_s`) and holds what is repeated
    (`repeated_s`). `exposed_s` splits the block's own seconds (without what is repeated) by resource; `network_s` is
    how long links are busy in the forward pass and in the backward one, hidden or not.
    """

    forward_s: float
    backward_s: float
    weights_s: float
    repeated_s: float
    exposed_s: Mapping[str, float]
    network_s: tuple[float, float]
    parameters: float
    parameter_bytes: float
    saved_bytes: float
    workspace_bytes: float
    #: Share of the network's seconds that is context parallel communication.
    context_share: float = 0.0

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s + self.weights_s

    @property
    def hidden_network_s(self) -> float:
        return max(0.0, sum(self.network_s) - self.exposed_s["network"])


def block_costs(evaluator: BlockEvaluator, evaluation: BlockEvaluation, mode: str, training: bool) -> BlockCosts:
    """Costs of a block whose backward pass recomputes as `mode` says; in a forward pass nothing is kept."""
    again = repeated_s(evaluation, mode)
    forward = [p for p in evaluation.partitions if p.phase != "backward"]
    backward = [p for p in evaluation.partitions if p.phase == "backward"]
    weights = sum(p.seconds for p in backward if _makes_gradients(evaluation, p))
    return BlockCosts(
        forward_s=sum(p.seconds for p in forward),
        backward_s=sum(p.seconds for p in backward) - weights + again,
        weights_s=weights,
        repeated_s=again,
        exposed_s=evaluation.exposed_s,
        network_s=(sum(p.network_s for p in forward), sum(p.network_s for p in backward)),
        parameters=evaluation.parameters,
        parameter_bytes=evaluation.parameter_bytes,
        saved_bytes=saved_bytes(evaluator, mode) if training else 0.0,
        workspace_bytes=workspace_bytes(evaluator, mode) + gathered_bytes(evaluator)
        if training
        else _largest_operands(evaluator),
        context_share=_context_share(evaluation),
    )


@dataclass(frozen=True)
class Longer:
    """Seconds that a mapping takes more over other groups of chips, by pass."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    weights_s: float = 0.0
    repeated_s: float = 0.0


def longer_over(evaluation: BlockEvaluation, mode: str, over: Over, price: Callable[[str, float], float]) -> Longer:
    """What the same mapping takes more over another tensor or context parallel group (`over`) of equally many chips,
    whose collectives take `price(operation, bytes)`; for chips on which communication is not hidden inside a kernel."""
    again = repeats(evaluation.block, mode)
    by_kernel = {name: p for p in evaluation.partitions for name in p.kernels}
    longer = {"forward": 0.0, "backward": 0.0, "weights": 0.0, "repeated": 0.0}
    for c in evaluation.communications:
        if c.over != over:
            continue
        partition = by_kernel[c.kernel]
        more = price(c.operation, c.message_bytes) - c.seconds
        if partition.phase != "backward":
            longer["forward"] += more
            longer["repeated"] += more if again(partition.kernels) else 0.0
        else:
            longer["weights" if _makes_gradients(evaluation, partition) else "backward"] += more
    return Longer(longer["forward"], longer["backward"] + longer["repeated"], longer["weights"], longer["repeated"])


def repriced(costs: BlockCosts, longer: Sequence[Longer]) -> BlockCosts:
    """The costs of the same mapping over other groups."""
    return replace(
        costs,
        forward_s=costs.forward_s + sum(x.forward_s for x in longer),
        backward_s=costs.backward_s + sum(x.backward_s for x in longer),
        weights_s=costs.weights_s + sum(x.weights_s for x in longer),
        repeated_s=costs.repeated_s + sum(x.repeated_s for x in longer),
    )


def _largest_operands(evaluator: BlockEvaluator) -> float:
    """Bytes of activations a single kernel reads and writes, at most: what a forward pass must hold at once."""
    block = evaluator.block

    def held(name: str) -> float:
        kernel = block.by_name[name]
        read = {o.tensor: evaluator.needs[name, o.tensor] for o in kernel.inputs}
        written = {o.tensor: evaluator.gives[o.tensor] for o in kernel.outputs}
        return sum(
            evaluator.held_bytes(t, layout)
            for t, layout in (read | written).items()
            if block.tensors[t].role == "activation"
        )

    return max((held(k.name) for k in block.kernels), default=0.0)


def _context_share(evaluation: BlockEvaluation) -> float:
    total = sum(c.seconds for c in evaluation.communications)
    return sum(c.seconds for c in evaluation.communications if c.over == "context") / total if total else 0.0


def _makes_gradients(evaluation: BlockEvaluation, partition: PartitionEvaluation) -> bool:
    """Whether a partition makes weight gradients only."""
    block = evaluation.block
    made = [o.tensor for k in partition.kernels for o in block.by_name[k].outputs]
    return all(block.tensors[t].role == "gradient" for t in made)
