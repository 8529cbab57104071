"""Context parallelism: every sequence of a block divided over chips, keys and values gathered where all are needed.

Each chip of a context parallel group holds a share of the tokens. What a kernel walks along another dimension than
`token` (attention walks keys and values along `key`) it needs for all tokens: a kernel gathers it over the group before
the first reader of either pass (the backward pass gathers again instead of keeping it), and gradients made for all
tokens are summed and scattered back. Weights are whole on every chip of the group (Llama 3, arXiv 2407.21783, section
3.3.2; Megatron-LM's context parallelism with all-gathered keys and values).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from dfmodel.errors import InputError
from dfmodel.workloads.graph import Block, ContextCollective, Kernel, Operand, Phase, Strategy, Tensor, Workload

#: The dimension that is divided.
TOKEN = "token"


def sequence_lengths(block: Block) -> set[int]:
    """The extents tokens have in a block."""
    extents = (*(k.dims for k in block.kernels), *(t.dims for t in block.tensors.values()))
    return {dims[TOKEN] for dims in extents if TOKEN in dims}


def undivided(block: Block) -> str | None:
    """The first kernel that needs every token of a sequence (scans, convolutions: nothing here passes states or halos
    between chips), so that the block cannot be divided; None where none does."""
    return next((k.name for k in block.kernels if TOKEN in k.whole), None)


def context_degrees(workload: Workload, most: int) -> list[int]:
    """Degrees of at most `most` that divide every sequence of a workload; [1] where none can."""
    lengths = {n for block, _ in workload.blocks for n in sequence_lengths(block)}
    stated = any(k.strategies is not None for block, _ in workload.blocks for k in block.kernels)
    if not lengths or stated or any(undivided(block) for block, _ in workload.blocks):
        return [1]
    return [c for c in range(1, min(most, min(lengths)) + 1) if all(n % c == 0 for n in lengths)]


def over_context(block: Block, degree: int) -> Block:
    """`block` as one chip of a context parallel group of `degree` sees it; the same block for degree 1.

    Raises InputError where its sequences do not divide, a kernel needs its tokens whole, or its kernels state their own
    strategies.
    """
    if degree == 1:
        return block
    where = block.where or f"block {block.name}"
    if any(k.strategies is not None for k in block.kernels):
        raise InputError(f"{where}: kernels with explicit strategies cannot be divided over a context parallel group")
    walking = undivided(block)
    if walking is not None:
        raise InputError(
            f"{where}: kernel '{walking}' needs every token of a sequence, which context parallelism divides; "
            "use context degree 1"
        )
    lengths = sequence_lengths(block)
    if any(n % degree for n in lengths):
        shown = ", ".join(map(str, sorted(lengths)))
        raise InputError(f"{where}: sequences of {shown} tokens do not divide into context degree {degree}")
    return _Division(block, degree).run()


def context_message(block: Block, kernel: Kernel, strategy: Strategy, chips: int) -> tuple[str, str, float] | None:
    """The collective of a kernel that only communicates over the context parallel group: operation, the tensor with
    every token and its bytes on one of `chips` tensor parallel chips; None for other kernels."""
    if kernel.context_collective is None:
        return None
    gathers = kernel.context_collective == "all_gather"
    (operand,), (layout,) = (kernel.outputs, strategy.gives) if gathers else (kernel.inputs, strategy.needs)
    return kernel.context_collective, operand.tensor, block.tensors[operand.tensor].bytes_in(layout, chips)


@dataclass
class _Division:
    """One block being divided: the tensors and kernels it gets."""

    block: Block
    degree: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    gathered: dict[tuple[str, Phase], str] = field(default_factory=dict)

    def run(self) -> Block:
        self.tensors = {t: replace(x, dims=self._share(x.dims)) for t, x in self.block.tensors.items()}
        kernels = [k for kernel in self.block.kernels for k in self._around(kernel)]
        return replace(self.block, kernels=tuple(kernels), tensors=self.tensors)

    def _share(self, dims: Mapping[str, int]) -> dict[str, int]:
        return {d: n // self.degree if d == TOKEN else n for d, n in dims.items()}

    def _around(self, kernel: Kernel) -> Iterator[Kernel]:
        """The kernel on its share of tokens, after the gathers and before the scatters it needs."""
        gathers: list[Kernel] = []
        scatters: list[Kernel] = []
        inputs = []
        for operand in kernel.inputs:
            walked = self._walks_all(operand)
            if walked is None:
                inputs.append(operand)
                continue
            key = (operand.tensor, kernel.phase)
            if key not in self.gathered:
                gathers.append(self._gather(kernel, operand, walked))
            inputs.append(replace(operand, tensor=self.gathered[key]))
        outputs = []
        for operand in kernel.outputs:
            walked = self._walks_all(operand)
            if walked is None:
                outputs.append(operand)
                continue
            scatters.append(self._scatter(kernel, operand, walked))
            outputs.append(replace(operand, tensor=scatters[-1].inputs[0].tensor))
        yield from gathers
        yield replace(kernel, dims=self._share(kernel.dims), inputs=tuple(inputs), outputs=tuple(outputs))
        yield from scatters

    def _walks_all(self, operand: Operand) -> str | None:
        """The dimension along which an operand's tokens are walked where that is not the divided one."""
        for own, walked in zip(self.block.tensors[operand.tensor].dims, operand.dims, strict=True):
            if own == TOKEN and walked != TOKEN:
                return walked
        return None

    def _whole(self, tensor: str, walked: str, name: str) -> str:
        """A tensor with every token of `tensor`, along the dimension that walks them."""
        own = self.block.tensors[tensor]
        dims = {walked if d == TOKEN else d: n for d, n in own.dims.items()}
        self.tensors[name] = Tensor(name, dims, own.dtype)
        return name

    def _gather(self, kernel: Kernel, operand: Operand, walked: str) -> Kernel:
        tensor = operand.tensor
        suffix = "" if kernel.phase == "forward" else f"_{kernel.phase}"
        name = f"gather_{tensor}{suffix}"
        whole = self._whole(tensor, walked, f"{tensor}_all{suffix}")
        self.gathered[tensor, kernel.phase] = whole
        return self._moving(name, kernel, tensor, whole, "all_gather")

    def _scatter(self, kernel: Kernel, operand: Operand, walked: str) -> Kernel:
        tensor = operand.tensor
        whole = self._whole(tensor, walked, f"{tensor}_all")
        return self._moving(f"scatter_{tensor}", kernel, whole, tensor, "reduce_scatter")

    def _moving(self, name: str, kernel: Kernel, source: str, result: str, collective: ContextCollective) -> Kernel:
        read, made = self.tensors[source], self.tensors[result]
        moved = [d for d in {**read.dims, **made.dims} if (d in read.dims) != (d in made.dims)]
        return Kernel(
            name,
            {**made.dims, **read.dims},
            (Operand(source, tuple(read.dims)),),
            (Operand(result, tuple(made.dims)),),
            "vector",
            0.0,
            op=f"context_{collective}",
            phase=kernel.phase,
            unsplittable=frozenset(moved),
            tiling=kernel.tiling,
            linear=collective == "reduce_scatter",
            context_collective=collective,
        )
