"""The one graph representation: kernels as einsums over named dimensions, blocks, workloads.

FLOPs, bytes, legal shardings, tilings and communication all follow from these declarations.
Units: extents are counts, `bytes` are bytes of one chip-less (unsharded) tensor, FLOPs count a
multiply-add as two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from dfmodel.errors import InputError

Phase = Literal["forward", "backward", "update"]
Unit = Literal["matrix", "vector"]
ContextCollective = Literal["all_gather", "reduce_scatter"]
Role = Literal["activation", "weight", "gradient", "table", "cache"]

#: Roles of tensors that live in memory across iterations, hence are parameters.
PARAMETER_ROLES = ("weight", "table")

DTYPE_BYTES: dict[str, float] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "uint8": 1.0,
    "int32": 4.0,
    "int64": 8.0,
    "fp4": 0.5,
}

#: Name of the dimension that counts the sequences (samples) of a micro-batch.
BATCH = "batch"

#: A layout of a tensor over the chips of one mesh axis: "replicated", "partial" (a sum still to be made
#: across chips), or the name of the tensor dimension that is divided.
Layout = str
REPLICATED: Layout = "replicated"
PARTIAL: Layout = "partial"


@dataclass(frozen=True)
class Tensor:
    """A named array. `dims` maps the tensor's own dimension names to extents, in storage order."""

    name: str
    dims: Mapping[str, int]
    dtype: str
    role: Role = "activation"

    @cached_property
    def elements(self) -> int:
        return math.prod(self.dims.values())

    @cached_property
    def bytes(self) -> float:
        return self.elements * DTYPE_BYTES[self.dtype]

    def layouts(self) -> tuple[Layout, ...]:
        """Every layout the tensor can be materialised in, `partial` excluded."""
        return (REPLICATED, *self.dims)

    def bytes_in(self, layout: Layout, chips: int) -> float:
        """Bytes on one of `chips` chips in `layout`; a divided dimension is padded to its ceiling."""
        if layout in (REPLICATED, PARTIAL):
            return self.bytes
        extent = self.dims[layout]
        return self.bytes / extent * math.ceil(extent / chips)


@dataclass(frozen=True)
class Operand:
    """A kernel's use of a tensor: `dims[i]` is the kernel dimension that walks the tensor's i-th one."""

    tensor: str
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Strategy:
    """One way to divide a kernel over the chips of a mesh axis.

    `split` is the divided kernel dimension (None: every chip does all the work); `needs` and `gives` are
    the layouts of inputs and outputs, in order; `reduce_outputs` charges an all-reduce of the outputs to
    the kernel itself (the convention of graphs given in matrix form), in which case `gives` is the layout
    after it.
    """

    name: str
    split: str | None
    needs: tuple[Layout, ...]
    gives: tuple[Layout, ...]
    reduce_outputs: bool = False


@dataclass(frozen=True)
class Kernel:
    """An operation over the product space of `dims`.

    `flops_per_point` FLOP are done at every point of the space spanned by `dims` less the `gathered`
    ones (a gathered dimension only selects rows of an operand, as in an embedding look-up).
    Dimensions of an input that no output has are contracted. `unsplittable` dimensions may not be
    divided over chips (normalisation axes, scans); `sequential` ones neither, and are walked one position after
    another, so that time is no less than that many dependent steps. `tiling` is the dimension along which a spatial
    pipeline streams tiles. `linear` kernels (sums) may work on partial sums. `runs` is how often the
    kernel is executed one after another (scan or FFT stages), each time on what the time before left: where kernels run
    one by one, `run_bytes_per_point` are written and read between two runs at every point. `saves` is what an
    elementwise kernel's backward pass reads: "input", "output", "both", "mask" (its second output) or "nothing".
    `strategies`, when given, replaces the derived ones (graphs in matrix form).
    """

    name: str
    dims: Mapping[str, int]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    unit: Unit
    flops_per_point: float
    op: str = "einsum"
    phase: Phase = "forward"
    unsplittable: frozenset[str] = frozenset()
    sequential: frozenset[str] = frozenset()
    gathered: frozenset[str] = frozenset()
    tiling: str | None = None
    linear: bool = False
    runs: int = 1
    run_bytes_per_point: float = 0.0
    saves: Literal["input", "output", "both", "mask", "nothing"] = "input"
    backward_flops_per_point: float | None = None
    #: Of `flops_per_point`, what only repeats earlier work (scores computed again in a fused attention's backward
    #: pass), and the same of the kernel's backward one; utilisation of the model leaves it out.
    repeated_flops_per_point: float = 0.0
    backward_repeated_flops_per_point: float = 0.0
    strategies: tuple[Strategy, ...] | None = None
    #: Names of inputs that are added to an einsum's result instead of multiplied (biases): no FLOP counted.
    added: tuple[str, ...] = ()
    #: Bytes this kernel moves to or from memory beyond its tensors (caches, embedding rows).
    extra_bytes: float = 0.0
    #: What the kernel is where it does nothing but communicate over the context parallel group.
    context_collective: ContextCollective | None = None

    @cached_property
    def points(self) -> int:
        return math.prod(n for d, n in self.dims.items() if d not in self.gathered)

    @cached_property
    def flops(self) -> float:
        return self.flops_per_point * self.points * self.runs

    @property
    def model_flops(self) -> float:
        """FLOP without what only repeats earlier work."""
        return (self.flops_per_point - self.repeated_flops_per_point) * self.points * self.runs

    @property
    def whole(self) -> frozenset[str]:
        """Dimensions that may not be divided over chips."""
        return self.unsplittable | self.sequential

    @property
    def steps(self) -> int:
        """Dependent steps the kernel takes one after another; 1 where nothing is sequential."""
        return math.prod(self.dims[d] for d in self.sequential) * self.runs if self.sequential else 1

    def bytes_between_runs(self, split: str | None, chips: int) -> float:
        """Bytes one of `chips` chips over which `split` is divided writes and reads between its runs."""
        if self.runs == 1 or not self.run_bytes_per_point:
            return 0.0
        share = 1.0 if split is None else math.ceil(self.dims[split] / chips) / self.dims[split]
        return (self.runs - 1) * self.run_bytes_per_point * self.points * share

    @property
    def contracted(self) -> tuple[str, ...]:
        kept = {d for o in self.outputs for d in o.dims}
        return tuple(d for d in self.dims if d not in kept and d not in self.gathered)

    def flops_split(self, split: str | None, chips: int) -> float:
        """FLOP on one chip when `split` is divided over `chips` (ceiling; None: all of them)."""
        if split is None:
            return self.flops
        extent = self.dims[split]
        return self.flops / extent * math.ceil(extent / chips)


@dataclass(frozen=True)
class Edge:
    """A tensor going from its producer to one consumer."""

    producer: str
    consumer: str
    tensor: str


@dataclass(frozen=True)
class Block:
    """A DAG of kernels, checked when built. `outputs` are tensors a later block (or memory) receives."""

    name: str
    kernels: tuple[Kernel, ...]
    tensors: Mapping[str, Tensor]
    outputs: tuple[str, ...] = ()
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        problems = list(_block_problems(self))
        if problems:
            raise InputError(problems)

    @cached_property
    def by_name(self) -> dict[str, Kernel]:
        return {k.name: k for k in self.kernels}

    @cached_property
    def producer(self) -> dict[str, str]:
        """Tensor name -> name of the kernel that makes it."""
        return {o.tensor: k.name for k in self.kernels for o in k.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """Tensor name -> names of the kernels that read it, each once, in kernel order."""
        found: dict[str, list[str]] = {t: [] for t in self.tensors}
        for k in self.kernels:
            for t in dict.fromkeys(o.tensor for o in k.inputs):
                found[t].append(k.name)
        return {t: tuple(names) for t, names in found.items()}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(
            Edge(self.producer[t], c, t) for t in self.tensors if t in self.producer for c in self.consumers[t]
        )

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Activations that enter the block from outside."""
        return tuple(t for t, x in self.tensors.items() if t not in self.producer and x.role not in PARAMETER_ROLES)

    @cached_property
    def weights(self) -> tuple[str, ...]:
        return tuple(t for t, x in self.tensors.items() if x.role in PARAMETER_ROLES)

    @cached_property
    def predecessors(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, dict[str, None]] = {k.name: {} for k in self.kernels}
        for e in self.edges:
            found[e.consumer][e.producer] = None
        return {k: tuple(p) for k, p in found.items()}

    @cached_property
    def levels(self) -> dict[str, int]:
        """Kernel name -> longest path from a source, in edges (the level of a topological sort by level)."""
        level: dict[str, int] = {}
        for name in self.topological_order:
            level[name] = max((level[p] + 1 for p in self.predecessors[name]), default=0)
        return level

    @cached_property
    def topological_order(self) -> tuple[str, ...]:
        """Kernel names, producers first; ties in declaration order, every forward kernel before a backward one."""
        phase_rank = {"forward": 0, "backward": 1, "update": 2}
        position = {k.name: (phase_rank[k.phase], i) for i, k in enumerate(self.kernels)}
        sorter = TopologicalSorter({k: set(p) for k, p in self.predecessors.items()})
        sorter.prepare()
        order: list[str] = []
        ready: list[str] = []
        while sorter.is_active() or ready:
            ready = sorted([*ready, *sorter.get_ready()], key=position.__getitem__)
            name = ready.pop(0)
            order.append(name)
            sorter.done(name)
        return tuple(order)

    @property
    def parameters(self) -> int:
        return sum(self.tensors[t].elements for t in self.weights)

    def flops(self, unit: Unit | None = None, phases: tuple[Phase, ...] | None = None) -> float:
        """FLOP of one pass, optionally of one unit or of some phases only."""
        return sum(
            k.flops for k in self.kernels if (unit is None or k.unit == unit) and (phases is None or k.phase in phases)
        )

    def model_flops(self, unit: Unit | None = None) -> float:
        """FLOP of one pass without what only repeats earlier work, optionally of one unit."""
        return sum(k.model_flops for k in self.kernels if unit is None or k.unit == unit)

    def at_batch(self, sequences: int) -> Block:
        """The same block for micro-batches of `sequences` sequences (rescales the dimension `batch`)."""
        if all(k.dims.get(BATCH, sequences) == sequences for k in self.kernels):
            return self
        kernels = tuple(replace(k, dims=_rescaled(k.dims, sequences)) for k in self.kernels)
        tensors = {t: replace(x, dims=_rescaled(x.dims, sequences)) for t, x in self.tensors.items()}
        return replace(self, kernels=kernels, tensors=tensors)


@dataclass(frozen=True)
class Workload:
    """Blocks with repeat counts, run in order on every micro-batch.

    `blocks` are per micro-batch of one sequence (`at_batch` rescales). `batch` is the number of samples of
    one iteration; `unit` names what progress is counted in (token, sample), `units_per_sample` how many of
    them one sample holds. `training` says whether the blocks hold backward kernels.

    `family` names how it is mapped: `layers` are repeated blocks, divided into tensor, data and pipeline degrees;
    other families (mapping/families.py) have plans of their own and read `settings`, their typed parameters; their
    blocks describe the work and are not searched.
    """

    name: str
    title: str
    blocks: tuple[tuple[Block, int], ...]
    batch: int
    unit: str
    units_per_sample: int
    training: bool
    dtype: str
    #: Extra entries shown with the run (model dimensions); no formula reads them.
    facts: Mapping[str, object] = field(default_factory=dict)
    #: Parameters that two blocks share (tied embeddings): counted once in `parameters`.
    shared_parameters: int = 0
    family: str = "layers"
    settings: object | None = None

    @property
    def parameters(self) -> int:
        return sum(b.parameters * n for b, n in self.blocks) - self.shared_parameters

    @property
    def layers(self) -> int:
        """Repeat count of the most repeated block."""
        return max(n for _, n in self.blocks)

    def at_batch(self, sequences: int) -> Workload:
        return replace(self, blocks=tuple((b.at_batch(sequences), n) for b, n in self.blocks))

    def model_flops_per_sample(self, unit: Unit | None = None) -> float:
        """FLOP of one sample through every block, repeated work left out."""
        return sum(b.at_batch(1).model_flops(unit) * n for b, n in self.blocks)

    def flops_per_sample(self, unit: Unit | None = None) -> float:
        """FLOP of one sample through every block, as the graph counts them (no recomputation)."""
        return sum(b.at_batch(1).flops(unit) * n for b, n in self.blocks)


def main_block(repeats: Sequence[int]) -> int:
    """Number of the most repeated block, the first of equals."""
    return max(range(len(repeats)), key=lambda i: repeats[i])


def _rescaled(dims: Mapping[str, int], sequences: int) -> dict[str, int]:
    return {d: sequences if d == BATCH else n for d, n in dims.items()}


def _block_problems(block: Block) -> Iterator[str]:
    """Every fault of a block, as messages that name the kernel or tensor."""
    where = f"{block.where or 'block ' + block.name}: "
    seen: set[str] = set()
    made: dict[str, str] = {}
    for k in block.kernels:
        if k.name in seen:
            yield f"{where}kernel '{k.name}' is declared twice"
        seen.add(k.name)
        for d, n in k.dims.items():
            if not (isinstance(n, int) and n > 0):
                yield f"{where}kernel '{k.name}': dimension '{d}' must be a positive whole number, got {n}"
        for d in sorted(k.sequential - k.dims.keys()):
            yield f"{where}kernel '{k.name}': sequential names dimension '{d}', the kernel has no such one"
        if not (math.isfinite(k.flops_per_point) and k.flops_per_point >= 0):
            yield f"{where}kernel '{k.name}': flops_per_point must be finite and not negative, got {k.flops_per_point}"
        for o in (*k.inputs, *k.outputs):
            yield from _operand_problems(block, k, o, where)
        for o in k.outputs:
            if o.tensor in made:
                yield f"{where}tensor '{o.tensor}' is made by both '{made[o.tensor]}' and '{k.name}'"
            made[o.tensor] = k.name
    for t in block.outputs:
        if t not in block.tensors:
            yield f"{where}output '{t}' is not a tensor of the block"
    cycle = _cycle(block)
    if cycle:
        yield f"{where}the graph has a cycle: {' -> '.join(cycle)}; a workload graph must be acyclic"


def _operand_problems(block: Block, k: Kernel, o: Operand, where: str) -> Iterator[str]:
    tensor = block.tensors.get(o.tensor)
    if tensor is None:
        yield f"{where}kernel '{k.name}' uses tensor '{o.tensor}', which is not declared"
        return
    if len(o.dims) != len(tensor.dims):
        yield (
            f"{where}kernel '{k.name}' walks tensor '{o.tensor}' with {len(o.dims)} dimensions, "
            f"it has {len(tensor.dims)}"
        )
        return
    for d, (own, extent) in zip(o.dims, tensor.dims.items(), strict=True):
        if d not in k.dims:
            yield f"{where}kernel '{k.name}': operand '{o.tensor}' names dimension '{d}', the kernel has no such one"
        elif k.dims[d] != extent:
            yield (
                f"{where}kernel '{k.name}': dimension '{d}' is {k.dims[d]}, "
                f"but '{own}' of tensor '{o.tensor}' is {extent}"
            )


def _cycle(block: Block) -> list[str]:
    made = {o.tensor: k.name for k in block.kernels for o in k.outputs}
    graph = {k.name: {made[o.tensor] for o in k.inputs if o.tensor in made} for k in block.kernels}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []
