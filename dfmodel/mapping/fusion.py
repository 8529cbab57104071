"""Fused kernels on chips that run kernel by kernel: which sets of kernels may be one, and the best choice of them.

A fused kernel is a connected, convex set: one matrix kernel with pointwise work behind it (epilogue), or elementwise
kernels in a row, norms included (a norm waits for whole rows, which a matrix kernel's tiles do not hold). Tensors
inside it never reach memory; a collective cannot run inside it, so its kernels agree on the layout of what they pass
on. Fused attention is a kernel of the workload's graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from dfmodel.workloads.graph import Block, Kernel, Strategy

#: Most kernels in one fused kernel.
LARGEST_SET = 5

FusedSet = tuple[str, ...]


@dataclass(frozen=True)
class FusedColumn:
    """A fused kernel (or a kernel alone) with the option of each of its kernels, and its seconds without network."""

    kernels: FusedSet
    options: tuple[int, ...]
    seconds: float


def legal_sets(block: Block, fusions: Sequence[str]) -> tuple[FusedSet, ...]:
    """Every set of two or more kernels that `fusions` let run as one, kernels in topological order."""
    if not {"epilogue", "elementwise"}.intersection(fusions):
        return ()
    order = block.topological_order
    position = {name: i for i, name in enumerate(order)}
    ancestors = _ancestors(block, order, position)
    found: set[int] = set()
    frontier = [
        1 << position[k.name]
        for k in block.kernels
        if ("epilogue" in fusions if k.unit == "matrix" else "elementwise" in fusions and _joins(k, False))
    ]
    for _ in range(LARGEST_SET - 1):
        grown = {g for members in frontier for g in _grown(block, order, position, ancestors, members)}
        frontier = list(grown - found)
        found |= grown
    ordered = sorted(found, key=lambda members: (members & -members, members))
    return tuple(tuple(order[i] for i in range(len(order)) if members >> i & 1) for members in ordered)


def _ancestors(block: Block, order: Sequence[str], position: Mapping[str, int]) -> list[int]:
    found: list[int] = []
    for name in order:
        mask = 0
        for p in block.predecessors[name]:
            mask |= found[position[p]] | 1 << position[p]
        found.append(mask)
    return found


def _joins(kernel: Kernel, matrix: bool) -> bool:
    """Whether a kernel can follow another in a fused one: pointwise, or (without a matrix kernel) a norm."""
    reduces = set(kernel.contracted) | (set(kernel.whole) - (set() if matrix else {"hidden"}))
    return kernel.unit == "vector" and not reduces and not kernel.gathered


def _grown(
    block: Block, order: Sequence[str], position: Mapping[str, int], ancestors: list[int], members: int
) -> Iterator[int]:
    """The sets with one more kernel that reads what the set makes, convex and of one phase."""
    inside = [order[i] for i in range(len(order)) if members >> i & 1]
    phase = block.by_name[inside[0]].phase
    matrix = any(block.by_name[name].unit == "matrix" for name in inside)
    made = [o.tensor for name in inside for o in block.by_name[name].outputs]
    for reader in dict.fromkeys(c for t in made for c in block.consumers[t]):
        bit = 1 << position[reader]
        kernel = block.by_name[reader]
        if members & bit or kernel.phase != phase or not _joins(kernel, matrix):
            continue
        between = ancestors[position[reader]] & ~members
        if not any(ancestors[i] & members for i in range(len(order)) if between >> i & 1):
            yield members | bit


def agrees(block: Block, kernels: FusedSet, strategies: Mapping[str, Strategy]) -> bool:
    """Whether every tensor passed on inside the set is made in the layout its readers there need."""
    inside = set(kernels)
    for name in kernels:
        kernel, strategy = block.by_name[name], strategies[name]
        for operand, layout in zip(kernel.inputs, strategy.needs, strict=True):
            producer = block.producer.get(operand.tensor)
            if producer is None or producer not in inside:
                continue
            if _given(block, producer, operand.tensor, strategies) != layout:
                return False
    return True


def _given(block: Block, producer: str, tensor: str, strategies: Mapping[str, Strategy]) -> str:
    kernel = block.by_name[producer]
    for operand, layout in zip(kernel.outputs, strategies[producer].gives, strict=True):
        if operand.tensor == tensor:
            return layout
    raise KeyError(tensor)


def option_combinations(
    block: Block, kernels: FusedSet, options: Mapping[str, Sequence[Strategy]]
) -> Iterator[tuple[int, ...]]:
    """Option numbers of the set's kernels whose layouts agree inside it."""
    for numbers in itertools.product(*(range(len(options[name])) for name in kernels)):
        chosen = {name: options[name][o] for name, o in zip(kernels, numbers, strict=True)}
        if agrees(block, kernels, chosen):
            yield numbers


def best_sets(names: Sequence[str], seconds: Mapping[FusedSet, float]) -> list[FusedSet]:
    """The cheapest way to split `names` into sets of `seconds` (which holds every kernel alone), exactly.

    Sets that share no kernel do not influence each other, so each connected group is solved by itself over subsets.
    """
    chosen: list[FusedSet] = []
    for group in _groups(names, seconds):
        index = {name: i for i, name in enumerate(group)}
        sets = [(sum(1 << index[k] for k in s), c, s) for s, c in seconds.items() if s[0] in index]
        best: dict[int, tuple[float, list[FusedSet]]] = {0: (0.0, [])}
        chosen += _cheapest((1 << len(group)) - 1, sets, best)[1]
    return chosen


def _cheapest(
    left: int, sets: list[tuple[int, float, FusedSet]], best: dict[int, tuple[float, list[FusedSet]]]
) -> tuple[float, list[FusedSet]]:
    if left not in best:
        lowest = left & -left
        found: tuple[float, list[FusedSet]] = (float("inf"), [])
        for mask, cost, members in sets:
            if mask & lowest and mask & ~left == 0:
                rest, others = _cheapest(left & ~mask, sets, best)
                if cost + rest < found[0]:
                    found = (cost + rest, [members, *others])
        best[left] = found
    return best[left]


def _groups(names: Sequence[str], seconds: Mapping[FusedSet, float]) -> list[list[str]]:
    """Kernels joined by sets they share, each group in the order of `names`."""
    root = {name: name for name in names}

    def find(name: str) -> str:
        while root[name] != name:
            name = root[name]
        return name

    for members in seconds:
        for other in members[1:]:
            root[find(other)] = find(members[0])
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())


def numbered(block: Block, sets: Sequence[FusedSet]) -> dict[str, int] | None:
    """Kernel -> number of its set in an order that respects every edge; None where sets wait for each other."""
    owner = {name: i for i, members in enumerate(sets) for name in members}
    before: dict[int, set[int]] = {i: set() for i in range(len(sets))}
    for edge in block.edges:
        if owner[edge.producer] != owner[edge.consumer]:
            before[owner[edge.consumer]].add(owner[edge.producer])
    sorter = TopologicalSorter(before)
    try:
        sorter.prepare()
    except CycleError:
        return None
    rank = {name: i for i, name in enumerate(block.topological_order)}
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active() or ready:
        ready = sorted([*ready, *sorter.get_ready()], key=lambda i: rank[sets[i][0]])
        order.append(ready.pop(0))
        sorter.done(order[-1])
    place = {number: i for i, number in enumerate(order)}
    return {name: place[i] for name, i in owner.items()}
