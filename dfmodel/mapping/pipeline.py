"""The iteration: from seconds per micro-batch of mapped blocks to seconds of a whole training step or batch.

Two models, named by the assumption `iteration.model`; both return seconds by category that add up to the total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dfmodel.mapping.block_costs import BlockCosts
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluation
from dfmodel.mapping.model_state import StateMessage, optimizer_traffic, state_messages
from dfmodel.mapping.plan import Plan
from dfmodel.mapping.schedules import StageSeconds, messages, pipeline_s
from dfmodel.systems.network import Group
from dfmodel.workloads.graph import Block, Tensor, Workload, main_block

#: (operation, bytes, group) -> seconds.
Priced = Callable[[str, float, Group], float]


@dataclass(frozen=True)
class Iteration:
    """Seconds of one iteration, by category (they add up), with the stage that sets the pace.

    `hidden_s` is communication behind other work, by category: with the exposed part in `breakdown_s` it makes up all
    the seconds links are busy for that category on the slowest stage.
    """

    seconds: float
    breakdown_s: dict[str, float]
    stage_counts: tuple[tuple[int, ...], ...]
    slowest_stage: int
    bubble_share: float
    hidden_s: Mapping[str, float] = field(default_factory=dict)


@dataclass
class _Stage:
    """One stage for one micro-batch: seconds by category, by pass, and what is hidden."""

    parts: dict[str, float]
    forward_s: float
    backward_s: float
    weights_s: float
    #: Seconds in which data-parallel communication may hide, forward and backward.
    windows: list[float]
    parameters: float
    parameter_bytes: float
    hidden: dict[str, float]

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s + self.weights_s


def scheduled(
    workload: Workload,
    plan: Plan,
    context: Context,
    costs: Sequence[BlockCosts],
    counts: Sequence[Sequence[int]],
    send_s: float,
    priced: Priced,
    spilled_s: Sequence[float] = (),
) -> Iteration:
    """The plan's schedule over its stages, then what of data-parallel communication no pass hides, the optimizer and
    the host.

    `spilled_s` are seconds per iteration of traffic to memory below the first tier, on each stage. Communication that
    recurs with every micro-batch is part of its stage; what comes once per step hides behind the last backward or the
    first forward pass, and behind what the stage waits for others then.
    """
    stages, m = len(counts), plan.micro_batches
    kinds: dict[tuple[object, ...], _Stage] = {}
    built = []
    for i, spilled in enumerate(spilled_s or [0.0] * stages):
        key = (tuple(counts[i]), messages(i, stages, plan.chunks), spilled)
        if key not in kinds:
            kinds[key] = _stage(i, plan, context, costs, counts, send_s, priced, workload.training)
            if spilled:
                kinds[key].parts["lower memory tiers"] = spilled / m
                kinds[key].backward_s += spilled / m
        built.append(kinds[key])
    passes = StageSeconds(
        [s.forward_s for s in built],
        [s.backward_s for s in built],
        [s.weights_s for s in built],
        _largest_chunk_s(plan, costs, counts, send_s),
    )
    slowest = max(range(stages), key=lambda i: built[i].seconds)
    whole = pipeline_s(plan.schedule if workload.training else "1f1b", passes, m)
    breakdown = {name: seconds * m for name, seconds in built[slowest].parts.items()}
    hidden = {name: seconds * m for name, seconds in built[slowest].hidden.items()}
    breakdown["pipeline bubble"] = whole - m * built[slowest].seconds
    if workload.training:
        once, behind = _once_per_step(plan, context, built, priced)
        breakdown |= {name: breakdown.get(name, 0.0) + seconds for name, seconds in once.items()}
        hidden |= {name: hidden.get(name, 0.0) + seconds for name, seconds in behind.items()}
        breakdown["optimizer"] = max(_optimizer_s(plan, context, s) for s in built)
        breakdown["host"] = context.assumptions.iteration.host_s
    total = sum(breakdown.values())
    return Iteration(
        total, breakdown, tuple(tuple(c) for c in counts), slowest, breakdown["pipeline bubble"] / total, hidden
    )


def _stage(
    stage: int,
    plan: Plan,
    context: Context,
    costs: Sequence[BlockCosts],
    counts: Sequence[Sequence[int]],
    send_s: float,
    priced: Priced,
    training: bool,
) -> _Stage:
    here = [(c, n) for c, n in zip(costs, counts[stage], strict=True) if n]
    sent_forward, sent_back = messages(stage, len(counts), plan.chunks)
    sent_back = sent_back if training else 0
    exposed = {r: sum(c.exposed_s[r] * n for c, n in here) for r in ("compute", "memory", "network", "launch")}
    parts = {
        "compute": exposed["compute"],
        "memory": exposed["memory"],
        "tensor-parallel communication": sum(c.exposed_s["network"] * (1 - c.context_share) * n for c, n in here),
        "context-parallel communication": sum(c.exposed_s["network"] * c.context_share * n for c, n in here),
        "launch": exposed["launch"],
        "recomputation": sum(c.repeated_s * n for c, n in here),
        "pipeline communication": send_s * (sent_forward + sent_back),
    }
    forward = sum(c.forward_s * n for c, n in here)
    backward = sum(c.backward_s * n for c, n in here)
    weights = sum(c.weights_s * n for c, n in here)
    share = context.assumptions.iteration.overlap_share
    busy = [0.0, 0.0]
    if _share_links(plan):
        busy = [sum(c.network_s[i] * n for c, n in here) for i in (0, 1)]
    built = _Stage(
        parts,
        forward + send_s * sent_forward,
        backward + send_s * sent_back,
        weights,
        [share * max(0.0, forward - busy[0]), share * max(0.0, backward + weights - busy[1])],
        sum(c.parameters * n for c, n in here),
        sum(c.parameter_bytes * n for c, n in here),
        {
            "tensor-parallel communication": sum(c.hidden_network_s * (1 - c.context_share) * n for c, n in here),
            "context-parallel communication": sum(c.hidden_network_s * c.context_share * n for c, n in here),
        },
    )
    if plan.degree("context") == 1:
        del built.parts["context-parallel communication"], built.hidden["context-parallel communication"]
    if training:
        _add_recurring(built, plan, context, priced)
    return built


def _share_links(plan: Plan) -> bool:
    """Whether groups inside a block and those that reduce gradients use links of one dimension: then one waits while
    the other sends."""
    inner = {p.dimension.name for degree in ("tensor", "context") for p in plan.groups[degree].parts}
    return any(p.dimension.name in inner for p in plan.replicas.parts)


def _add_recurring(stage: _Stage, plan: Plan, context: Context, priced: Priced) -> None:
    """Data-parallel communication of every micro-batch (ZeRO 2 and 3) becomes part of the stage; messages behind one
    pass share the time in which they can hide."""
    for message in _messages(stage, plan, context):
        if not message.every_micro_batch:
            continue
        taken = priced(message.operation, message.bytes, plan.replicas)
        behind = int(message.behind == "backward")
        visible = max(taken / _buckets(stage, context), taken - stage.windows[behind])
        stage.windows[behind] -= taken - visible
        name = _name(message)
        stage.parts[name] = stage.parts.get(name, 0.0) + visible
        stage.hidden[name] = stage.hidden.get(name, 0.0) + taken - visible
        if message.behind == "forward":
            stage.forward_s += visible
        else:
            stage.backward_s += visible


def _once_per_step(
    plan: Plan, context: Context, built: Sequence[_Stage], priced: Priced
) -> tuple[dict[str, float], dict[str, float]]:
    """Exposed and hidden seconds of what comes once per step, of the stage where most is exposed.

    A stage has, besides its own last backward (or first forward) pass, the time the stages before it still take: one
    chunk of each where chunks are interleaved, nothing where the schedule leaves no bubble to wait in.
    """
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}
    waited = {"forward": 0.0, "backward": 0.0}
    still = 0.0 if plan.schedule.startswith("zb") else 1.0 / plan.chunks
    sent = {
        id(stage): [
            (message, priced(message.operation, message.bytes, plan.replicas))
            for message in _messages(stage, plan, context)
            if not message.every_micro_batch
        ]
        for stage in {id(s): s for s in built}.values()
    }
    for stage in built:
        for message, taken in sent[id(stage)]:
            window, slack = stage.windows[message.behind == "backward"], waited[message.behind]
            visible = max(0.0, taken / _buckets(stage, context) - slack, taken - window - slack)
            name = _name(message)
            if name not in exposed or visible > exposed[name]:
                exposed[name], hidden[name] = visible, taken - visible
        waited["forward"] += still * stage.forward_s
        waited["backward"] += still * (stage.backward_s + stage.weights_s)
    return exposed, hidden


def _messages(stage: _Stage, plan: Plan, context: Context) -> list[StateMessage]:
    if plan.replicas.size == 1 or not stage.parameters:
        return []
    gradient = context.assumptions.memory.gradient
    return state_messages(stage.parameter_bytes, stage.parameters, plan.zero, gradient)


def _name(message: StateMessage) -> str:
    return "parameter gathering" if message.operation == "all_gather" else "data-parallel reduction"


def _buckets(stage: _Stage, context: Context) -> float:
    """Parts in which a stage's parameters are reduced or gathered one after the other."""
    return max(1.0, stage.parameters / context.assumptions.iteration.bucket_parameters)


def _optimizer_s(plan: Plan, context: Context, stage: _Stage) -> float:
    gradient = context.assumptions.memory.gradient
    moved = optimizer_traffic(stage.parameters, plan.zero, plan.replicas.size, gradient)
    return context.timer.memory_s(moved)


def _largest_chunk_s(plan: Plan, costs: Sequence[BlockCosts], counts: Sequence[Sequence[int]], send_s: float) -> float:
    """Seconds of the largest chunk of an interleaved stage: its share of the layers, with what the first or the last
    stage holds besides, and its messages."""
    if plan.chunks == 1:
        return 0.0
    main = max(range(len(costs)), key=lambda b: max(row[b] for row in counts))
    share = max(row[main] for row in counts) // plan.chunks * costs[main].seconds
    ends = [sum(costs[b].seconds * row[b] for b in range(len(costs)) if b != main) for row in counts]
    return share + max(ends) + 2 * send_s


def boundary_send_s(workload: Workload, plan: Plan, context: Context, blocks: Sequence[BlockEvaluation]) -> float:
    """Seconds to send one micro-batch's activations across a stage border (one direction), unoverlapped.

    Where every tensor parallel chip holds the whole, each may send its share, gathered on the other side (Narayanan et
    al. 2021, section 4.1), where that is faster.
    """
    if plan.degree("pipeline") == 1 or (context.assumptions.iteration.hide_sends and plan.chunks > 1):
        return 0.0
    size = boundary_bytes(workload, context, blocks)
    whole = float(context.model("point_to_point", size, plan.groups["pipeline"]))
    if context.sequence or context.chips == 1:
        return whole
    share = float(context.model("point_to_point", size / context.chips, plan.groups["pipeline"]))
    return min(whole, share + context.collective_s("all_gather", size))


def boundary_bytes(workload: Workload, context: Context, blocks: Sequence[BlockEvaluation]) -> float:
    """Bytes of one micro-batch's activations that a chip hands to the next stage."""
    main = main_block([n for _, n in workload.blocks])
    block = blocks[main].block
    return sum(
        x.bytes_in("token" if context.sequence and "token" in x.dims else "replicated", context.chips)
        for x in boundary_tensors(block)
    )


def boundary_tensors(block: Block) -> list[Tensor]:
    """The activations of a block that the next one receives."""
    return [
        block.tensors[t]
        for t in block.outputs
        if t in block.producer
        and block.by_name[block.producer[t]].phase == "forward"
        and block.tensors[t].role == "activation"
    ]


def amortised(workload: Workload, plan: Plan, context: Context, block: BlockEvaluation) -> Iteration:
    """The original's iteration (DFModel artifact, src/intra_chip.py): with layers per stage l, micro-batches m and
    v = max(l - 1, 1), T * (1 + (PP - 1) / (m v)) * l * batch / DP + point-to-point of the activations (and their
    gradients) of every layer once per batch, divided by the number of copies of the job.
    """
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
    parts["pipeline communication"] = _once_per_batch_s(workload, plan, block)
    parts = {name: seconds / context.system.copies for name, seconds in parts.items()}
    total = sum(parts.values())
    counts = ((per_stage,),) * stages
    return Iteration(total, parts, counts, 0, parts["pipeline bubble"] / total)


def _once_per_batch_s(workload: Workload, plan: Plan, block: BlockEvaluation) -> float:
    """Twice the first kernel's output (activation and gradient) per layer over one link; nothing for inference."""
    if plan.degree("pipeline") == 1 or not workload.training:
        return 0.0
    first = block.block.kernels[0].outputs[0].tensor
    size = 2 * block.block.tensors[first].bytes
    link = plan.groups["pipeline"].parts[-1].dimension.link
    return size / link.bytes_per_s * workload.layers
