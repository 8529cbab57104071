"""Several copies of a block as one block: layers of a model whose partitions may span layer borders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dfmodel.errors import InputError
from dfmodel.workloads.graph import Block, Kernel, Operand, Strategy


def stacked(block: Block, copies: int, links: Mapping[str, str], feeds: Mapping[str, str] | None = None) -> Block:
    """`copies` of `block`, kernels and tensors named `name@i`.

    `links` maps a tensor of one copy to the block input of the next that it becomes (forward, from copy i to i + 1);
    where the value is a kernel instead (graphs in matrix form, whose first kernel reads nothing) that kernel gets the
    tensor as a further operand. `feeds` does the same from copy i + 1 to copy i, for gradients. Raises InputError for
    names the block does not have.
    """
    backwards = feeds or {}
    names = {*block.tensors, *block.by_name}
    unknown = [n for pair in (*links.items(), *backwards.items()) for n in pair if n not in names]
    if unknown or copies < 1:
        raise InputError(f"stacked: {'copies must be at least 1' if copies < 1 else 'unknown ' + ', '.join(unknown)}")
    kernels: list[Kernel] = []
    tensors = {}
    joined: set[str] = set()
    for i in range(copies):
        rename = {t: f"{t}@{i}" for t in block.tensors}
        further: dict[str, list[str]] = {}
        for arrows, other in ((links, i - 1), (backwards, i + 1)):
            if not 0 <= other < copies:
                continue
            for source, target in arrows.items():
                joined.add(f"{source}@{other}")
                if target in block.by_name:
                    further.setdefault(target, []).append(f"{source}@{other}")
                else:
                    rename[target] = f"{source}@{other}"
        kernels += [_copy(k, i, rename, further.get(k.name, [])) for k in block.kernels]
        tensors.update({new: replace(block.tensors[t], name=new) for t, new in rename.items() if new == f"{t}@{i}"})
    outputs = tuple(
        f"{t}@{i}" for i in range(copies) for t in block.outputs if f"{t}@{i}" in tensors and f"{t}@{i}" not in joined
    )
    forward_first = sorted(kernels, key=lambda k: k.phase != "forward")
    return Block(f"{block.name} x{copies}", tuple(forward_first), tensors, outputs, block.where)


def _copy(kernel: Kernel, i: int, rename: Mapping[str, str], further: Sequence[str]) -> Kernel:
    inputs = [replace(o, tensor=rename[o.tensor]) for o in kernel.inputs]
    strategies = kernel.strategies
    for tensor in further:
        inputs.append(Operand(tensor, kernel.outputs[0].dims))
        strategies = None if strategies is None else tuple(_with_operand(s) for s in strategies)
    return replace(
        kernel,
        name=f"{kernel.name}@{i}",
        inputs=tuple(inputs),
        outputs=tuple(replace(o, tensor=rename[o.tensor]) for o in kernel.outputs),
        strategies=strategies,
        added=tuple(rename[t] for t in kernel.added),
    )


def _with_operand(strategy: Strategy) -> Strategy:
    """An elementwise kernel needs a further operand divided as it gives its result."""
    return replace(strategy, needs=(*strategy.needs, strategy.gives[0]))
