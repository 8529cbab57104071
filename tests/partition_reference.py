"""What a partitioning costs, written again from the definition in `mapping/problem.py`, and all there are.

Nothing here is shared with the program or the evaluator: it is what both are tested against.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dfmodel.mapping.allocation import Allocation, Staircase
from dfmodel.mapping.problem import PartitionProblem, TensorUse


def seconds(p: PartitionProblem, assignment: tuple[int, ...]) -> float:
    """Seconds of an assignment; infinite where a partition does not fit or breaks a rule."""
    return sum(_partition(p, {k for k, q in enumerate(assignment) if q == part}) for part in sorted(set(assignment)))


def moved_bytes(p: PartitionProblem, assignment: tuple[int, ...]) -> float:
    """Bytes through memory of an assignment whose partitions all fit."""
    return sum(priced(p, {k for k, q in enumerate(assignment) if q == part})[1] for part in set(assignment))


def _partition(p: PartitionProblem, members: set[int]) -> float:
    return priced(p, members)[0]


def priced(p: PartitionProblem, members: set[int]) -> tuple[float, float]:
    """Seconds and bytes of a partition; infinite seconds where it does not fit or breaks a rule."""
    if len({p.phase[k] for k in members}) > 1 and not p.mixed_phases:
        return np.inf, 0.0
    if len(members) > 1 and any(p.passes[k] > 1 for k in members):
        return np.inf, 0.0
    if p.runs and len({p.runs[k] for k in members}) > 1:
        return np.inf, 0.0
    moved = sum(p.memory_bytes[k] for k in members)
    sram = sum(p.weight_bytes[k] for k in members)
    for t in p.tensors:
        made = t.producer in members
        inside = [j for j, c in enumerate(t.consumers) if c in members]
        outside = [j for j, c in enumerate(t.consumers) if c not in members]
        if p.traffic_per == "edge":
            crossings = (len(outside) + t.leaves) if made else len(inside)
            moved += crossings * (t.written_bytes if made else t.bytes)
            sram += t.tile_bytes * p.boundary_buffers * crossings
            sram += t.tile_bytes * sum(t.depths[j] for j in inside if made)
            continue
        leaves = made and (bool(outside) or t.leaves)
        enters = not made and bool(inside)
        moved += t.written_bytes * leaves + t.bytes * enters
        depths = [t.depths[j] for j in inside] if made else []
        sram += t.tile_bytes * max([*depths, p.boundary_buffers if leaves or enters else 0])
    if len(members) == 1:
        sram /= p.passes[next(iter(members))]
    if sram > p.sram_bytes * (1 + 1e-9):
        return np.inf, moved
    compute = sum(p.compute_s[k] for k in members) if p.allocation is None else _shared_tiles(p.allocation, members)
    network = sum(p.network_s[k] for k in members)
    memory = moved / p.memory_bytes_per_s
    combined = {
        "none": compute + memory + network,
        "compute_memory": max(compute, memory) + network,
        "full": max(compute, memory, network),
    }[p.overlap]
    return combined + p.reconfiguration_s, moved


def _shared_tiles(allocation: Allocation, members: set[int]) -> float:
    """Seconds of the slowest kernel under the best sharing: knapsack over tiles, one kernel after the other."""
    fastest = [0.0] * (allocation.tiles + 1)
    for k in members:
        stairs = allocation.staircases[k]
        fastest = [
            min(
                (max(fastest[total - n], c) for n, c in zip(stairs.tiles, stairs.cycles, strict=True) if n <= total),
                default=np.inf,
            )
            for total in range(allocation.tiles + 1)
        ]
    return fastest[-1] * allocation.seconds_per_cycle


def best_by_extensions(p: PartitionProblem, slots: int) -> tuple[float, int]:
    """Least seconds over every linear extension of the kernels and every cut of it into at most `slots` intervals, and
    the number of extensions. For problems without halves and pins."""
    count = len(p.kernels)
    before: list[set[int]] = [set() for _ in range(count)]
    for i, j in p.edges:
        before[j].add(i)
    if not p.mixed_phases:
        forward = {k for k in range(count) if p.phase[k] == 0}
        for k in range(count):
            before[k] |= forward if p.phase[k] else set()
    prices: dict[frozenset[int], float] = {}
    best, extensions = np.inf, 0

    def price(members: frozenset[int]) -> float:
        if members not in prices:
            prices[members] = _partition(p, set(members))
        return prices[members]

    def extend(order: list[int], least: list[list[float]]) -> None:
        """least[n][s]: seconds of the first n kernels of the order in s intervals."""
        nonlocal best, extensions
        if len(order) == count:
            extensions += 1
            best = min(best, *least[count][1:])
            return
        done = set(order)
        for k in range(count):
            if k in done or not before[k] <= done:
                continue
            longer = [*order, k]
            row = [np.inf] * (slots + 1)
            for start in range(len(longer)):
                interval = price(frozenset(longer[start:]))
                if interval < np.inf:
                    for s in range(slots):
                        row[s + 1] = min(row[s + 1], least[start][s] + interval)
            extend(longer, [*least, row])

    extend([], [[0.0] + [np.inf] * slots])
    return best, extensions


def assignments(p: PartitionProblem, slots: int) -> Iterator[tuple[int, ...]]:
    """Every assignment to `slots` partitions that respects the edges, phases, halves and pins."""
    for a in itertools.product(range(slots), repeat=len(p.kernels)):
        if any(a[i] > a[j] for i, j in p.edges) or any(a[k] != q for k, q in p.pinned):
            continue
        forward = [q for q, phase in zip(a, p.phase, strict=True) if phase == 0]
        backward = [q for q, phase in zip(a, p.phase, strict=True) if phase == 1]
        if forward and backward and not p.mixed_phases and max(forward) >= min(backward):
            continue
        halved = p.halves and not p.mixed_phases and forward and backward
        if halved and (max(forward) >= (slots + 1) // 2 or min(backward) < slots // 2):
            continue
        yield a


def best_seconds(p: PartitionProblem, slots: int) -> float:
    return min((seconds(p, a) for a in assignments(p, slots)), default=np.inf)


def random_problem(rng: np.random.Generator, kernels: int) -> PartitionProblem:
    """A small problem with every feature switched at random; SRAM is tight enough to forbid some partitions."""
    forward = int(rng.integers(1, kernels + 1))
    phase = tuple(0 if k < forward else 1 for k in range(kernels))
    tensors = []
    for producer in range(kernels - 1):
        later = [c for c in range(producer + 1, kernels) if rng.random() < 0.4] or [producer + 1]
        size = float(rng.integers(1, 40)) * 1e6
        tensors.append(
            TensorUse(
                f"t{producer}",
                producer,
                tuple(later),
                size,
                size / float(rng.integers(1, 8)),
                tuple(int(rng.integers(2, 5)) for _ in later),
                leaves=bool(rng.random() < 0.2),
                write_bytes=None if rng.random() < 0.7 else size / 2,
            )
        )
    if rng.random() < 0.5:
        tensors.append(TensorUse("x", None, (0, kernels - 1) if kernels > 1 else (0,), 8e6, 2e6, (1, 1)[:kernels]))
    weights = tuple(float(rng.integers(0, 30)) * 1e6 for _ in range(kernels))
    sram = float(rng.uniform(60, 300)) * 1e6
    plain = PartitionProblem(
        kernels=tuple(f"k{k}" for k in range(kernels)),
        phase=phase,
        compute_s=tuple(float(c) * 1e-3 for c in rng.uniform(0.1, 2, kernels)),
        network_s=tuple(float(c) * 1e-3 * (rng.random() < 0.4) for c in rng.uniform(0.1, 2, kernels)),
        memory_bytes=tuple(float(b) * 1e6 * (rng.random() < 0.5) for b in rng.uniform(1, 30, kernels)),
        weight_bytes=weights,
        passes=(1,) * kernels,
        tensors=tuple(tensors),
        sram_bytes=sram,
        memory_bytes_per_s=float(rng.uniform(5, 60)) * 1e9,
        overlap=rng.choice(["none", "compute_memory", "full"]),
        traffic_per=rng.choice(["tensor", "edge"]),
        boundary_buffers=2,
        maximum=4,
        count=None if rng.random() < 0.5 else int(rng.integers(2, 5)),
        halves=bool(rng.random() < 0.4),
        mixed_phases=bool(rng.random() < 0.15),
        reconfiguration_s=0.0 if rng.random() < 0.5 else float(rng.uniform(0.05, 1)) * 1e-3,
    )
    return _with_passes(plain)


def with_tiles(p: PartitionProblem, rng: np.random.Generator) -> PartitionProblem:
    """The same problem at cycle level: random staircases over a few tiles."""
    tiles = int(rng.integers(len(p.kernels) // 2 + 1, 3 * len(p.kernels)))
    stairs = []
    for _ in p.kernels:
        steps = int(rng.integers(1, 5))
        counts = np.sort(rng.choice(np.arange(2, tiles + 2), size=min(steps, tiles), replace=False)) - 1
        cycles = np.sort(rng.choice(np.arange(1, 200), size=len(counts), replace=False))[::-1]
        stairs.append(Staircase(tuple(map(int, counts)), tuple(map(int, cycles))))
    return replace(p, allocation=Allocation(tuple(stairs), tiles, 1e-5), compute_s=(0.0,) * len(p.kernels))


def _with_passes(p: PartitionProblem) -> PartitionProblem:
    """Kernels too large for SRAM alone get as many passes as they need."""
    from dfmodel.mapping.partitioning import alone_bytes

    passes = tuple(max(1, int(np.ceil(alone_bytes(p, k) / p.sram_bytes))) for k in range(len(p.kernels)))
    return replace(p, passes=passes)
