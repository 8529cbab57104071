"""Partitioning as the assignment program: kernels to ordered partitions, one function per constraint.

| variable | meaning | domain |
|---|---|---|
| A[k, p] | kernel k is in partition p | binary |
| Z[k, p] | kernel k is in one of partitions 0..p (an expression) | |
| backward[p] | partition p holds backward kernels | binary |
| used[p] | partition p is not empty | [0, 1], continuous |
| stored[t,j,p], loaded[t,j,p], inside[t,j,p] | tensor t leaves, enters, stays (j: 0 per tensor) | [0, 1], continuous |
| held[t, p] | MB of SRAM the tensor takes (traffic per tensor) | >= 0 |
| T[p], C[p], M[p], N[p] | ms of the partition, and by resource (expressions) | >= 0 |

Times are in milliseconds and sizes in megabytes. No big-M: crossings are differences of binaries.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pyomo.core as pyo

from dfmodel.mapping.problem import PartitionProblem
from dfmodel.mapping.solver import SolveResult, solve

MS = 1e3
MB = 1e-6


def partitions_of(p: PartitionProblem) -> int:
    """Number of partition slots of the program: the fixed count, or the most that can be used."""
    return p.count if p.count is not None else min(p.maximum, len(p.kernels))


def add_assignment(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """sum_p A[k, p] = 1 for every kernel k."""
    slots = range(partitions_of(p))
    m.A = pyo.Var(range(len(p.kernels)), slots, domain=pyo.Binary)
    m.assigned = pyo.Constraint(range(len(p.kernels)), rule=lambda m, k: sum(m.A[k, q] for q in slots) == 1)


def add_precedence(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """Z[consumer, q] <= Z[producer, q] for every edge and partition q: a consumer is never earlier."""
    slots = range(partitions_of(p) - 1)
    m.precedence = pyo.Constraint(
        range(len(p.edges)),
        slots,
        rule=lambda m, e, q: sum(m.A[p.edges[e][1], r] - m.A[p.edges[e][0], r] for r in range(q + 1)) <= 0,
    )


def add_phases(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """A[k, q] <= 1 - backward[q] for forward, <= backward[q] for backward kernels; backward[q] <= backward[q+1].

    Nothing where phases may mix. With halves, backward[q] is fixed to 0 in the first and to 1 in the second
    half (an odd middle is free).
    """
    if len(set(p.phase)) < 2 or p.mixed_phases:
        return
    count = partitions_of(p)
    m.backward = pyo.Var(range(count), domain=pyo.Binary)
    m.one_phase = pyo.Constraint(
        range(len(p.kernels)),
        range(count),
        rule=lambda m, k, q: m.A[k, q] <= (m.backward[q] if p.phase[k] else 1 - m.backward[q]),
    )
    m.phase_order = pyo.Constraint(range(count - 1), rule=lambda m, q: m.backward[q] <= m.backward[q + 1])
    if p.halves:
        for q in range(count):
            if q < count // 2:
                m.backward[q].fix(0)
            elif q >= (count + 1) // 2:
                m.backward[q].fix(1)


def add_pins(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """A[k, q] = 1 for every kernel k pinned to partition q."""
    for k, q in p.pinned:
        m.A[k, q].fix(1)


def add_alone(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """A[k, q] + A[j, q] <= 1 for every kernel k that needs several passes and every other kernel j, and for every two
    kernels that run different numbers of times where those may not share a partition."""
    every = itertools.combinations(range(len(p.kernels)), 2)
    pairs = [(k, j) for k, j in every if max(p.passes[k], p.passes[j]) > 1 or (p.runs and p.runs[k] != p.runs[j])]
    m.alone = pyo.Constraint(
        range(len(pairs)),
        range(partitions_of(p)),
        rule=lambda m, i, q: m.A[pairs[i][0], q] + m.A[pairs[i][1], q] <= 1,
    )


def add_crossings(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """Which tensors cross each partition's border, traffic per tensor:

    stored[t, q] >= A[producer, q] - A[j, q] for every consumer j (>= A[producer, q] where t leaves the block);
    loaded[t, q] >= A[j, q] - A[producer, q] (>= A[j, q] for a block input). Per edge: one pair per consumer.
    """
    slots = range(partitions_of(p))
    m.stored = pyo.Var(pyo.Any, domain=pyo.NonNegativeReals, bounds=(0, 1), dense=False)
    m.loaded = pyo.Var(pyo.Any, domain=pyo.NonNegativeReals, bounds=(0, 1), dense=False)
    m.writes = pyo.ConstraintList()
    m.reads = pyo.ConstraintList()
    for t, use in enumerate(p.tensors):
        for j, consumer in enumerate(use.consumers):
            key = (t, j) if p.traffic_per == "edge" else (t, 0)
            for q in slots:
                made = 0 if use.producer is None else m.A[use.producer, q]
                m.reads.add(m.loaded[(*key, q)] >= m.A[consumer, q] - made)
                if use.producer is not None:
                    m.writes.add(m.stored[(*key, q)] >= made - m.A[consumer, q])
        if use.leaves and use.producer is not None:
            key = (t, len(use.consumers)) if p.traffic_per == "edge" else (t, 0)
            for q in slots:
                m.writes.add(m.stored[(*key, q)] >= m.A[use.producer, q])


def add_sram(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """Weights and tile buffers of partition q fit in SRAM (MB).

    Per edge: boundary_buffers * tile for each crossing edge plus depth * tile for each edge inside, where
    inside >= A[producer, q] + A[consumer, q] - 1. Per tensor: held[t, q] >= boundary_buffers * tile * stored,
    >= boundary_buffers * tile * loaded, and >= depth * tile * inside. A kernel of several passes, alone,
    may exceed it by what the passes spare.
    """
    slots = range(partitions_of(p))
    m.inside = pyo.Var(pyo.Any, domain=pyo.NonNegativeReals, bounds=(0, 1), dense=False)
    m.held = pyo.Var(pyo.Any, domain=pyo.NonNegativeReals, dense=False)
    m.stays = pyo.ConstraintList()
    m.holds = pyo.ConstraintList()
    buffers: dict[int, list[pyo.Expression]] = {q: [] for q in slots}
    for t, use in enumerate(p.tensors):
        tile = use.tile_bytes * MB
        if tile == 0:
            continue
        for q in slots:
            for j, consumer in enumerate(use.consumers):
                if use.producer is not None:
                    m.stays.add(m.inside[t, j, q] >= m.A[use.producer, q] + m.A[consumer, q] - 1)
            if p.traffic_per == "edge":
                buffers[q].append(_edge_buffers(m, p, t, q))
            else:
                _hold(m, p, t, q)
                buffers[q].append(m.held[t, q])
    alone_mb = {k: alone_bytes(p, k) * MB for k, n in enumerate(p.passes) if n > 1}

    def rule(m: pyo.ConcreteModel, q: int) -> pyo.Expression:
        weights = sum(w * MB * m.A[k, q] for k, w in enumerate(p.weight_bytes) if w)
        spared = sum((need - p.sram_bytes * MB) * m.A[k, q] for k, need in alone_mb.items())
        return weights + sum(buffers[q]) <= p.sram_bytes * MB + spared

    if any(p.weight_bytes) or any(use.tile_bytes for use in p.tensors):
        m.sram = pyo.Constraint(slots, rule=rule)


def _keys(variable: pyo.Var, q: int) -> list[tuple[int, int, int]]:
    """Index triples of a crossing variable in partition q, in creation order."""
    return [key for key in variable if key[2] == q]


def _edge_buffers(m: pyo.ConcreteModel, p: PartitionProblem, t: int, q: int) -> pyo.Expression:
    use, tile = p.tensors[t], p.tensors[t].tile_bytes * MB
    keys = [(t, j, q) for j in range(len(use.consumers) + 1)]
    crossing = sum(variable[key] for variable in (m.stored, m.loaded) for key in keys if key in variable)
    inside = sum(depth * m.inside[t, j, q] for j, depth in enumerate(use.depths)) if use.producer is not None else 0
    return tile * (p.boundary_buffers * crossing + inside)


def _hold(m: pyo.ConcreteModel, p: PartitionProblem, t: int, q: int) -> None:
    use, tile = p.tensors[t], p.tensors[t].tile_bytes * MB
    if (t, 0, q) in m.stored:
        m.holds.add(m.held[t, q] >= p.boundary_buffers * tile * m.stored[t, 0, q])
    if (t, 0, q) in m.loaded:
        m.holds.add(m.held[t, q] >= p.boundary_buffers * tile * m.loaded[t, 0, q])
    if use.producer is not None:
        for j, depth in enumerate(use.depths):
            m.holds.add(m.held[t, q] >= depth * tile * m.inside[t, j, q])


def alone_bytes(p: PartitionProblem, k: int) -> float:
    """SRAM bytes of kernel k in a partition of its own, before its passes divide them."""
    need = p.weight_bytes[k]
    for use in p.tensors:
        if use.producer == k:
            edges = (len(use.consumers) + use.leaves) if p.traffic_per == "edge" else 1
            need += use.tile_bytes * p.boundary_buffers * (edges if use.consumers or use.leaves else 0)
        elif k in use.consumers:
            need += use.tile_bytes * p.boundary_buffers
    return need


def add_times(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """T[q] >= the overlap of compute, memory and network of partition q (ms): one row per term of the maximum.

    none: T = C + M + N; compute_memory: T >= C + N, T >= M + N; full: T >= C, T >= M, T >= N.
    """
    slots = range(partitions_of(p))
    m.T = pyo.Var(slots, domain=pyo.NonNegativeReals)
    per_byte = MS / p.memory_bytes_per_s

    def compute(m: pyo.ConcreteModel, q: int) -> pyo.Expression:
        return sum(c * MS * m.A[k, q] for k, c in enumerate(p.compute_s) if c)

    def network(m: pyo.ConcreteModel, q: int) -> pyo.Expression:
        return sum(c * MS * m.A[k, q] for k, c in enumerate(p.network_s) if c)

    def memory(m: pyo.ConcreteModel, q: int) -> pyo.Expression:
        return _moved(m, p, q, per_byte)

    terms = {
        "none": lambda c, v, n: [c + v + n],
        "compute_memory": lambda c, v, n: [c + n, v + n],
        "full": lambda c, v, n: [c, v, n],
    }[p.overlap]
    m.time = pyo.ConstraintList()
    for q in slots:
        for term in terms(compute(m, q), memory(m, q), network(m, q)):
            if not isinstance(term, int | float):
                m.time.add(m.T[q] >= term)


def _moved(m: pyo.ConcreteModel, p: PartitionProblem, q: int, scale: float) -> pyo.Expression:
    """Bytes that partition q moves through memory, times `scale`."""
    moved = sum(b * scale * m.A[k, q] for k, b in enumerate(p.memory_bytes) if b)
    moved += sum(p.tensors[key[0]].written_bytes * scale * m.stored[key] for key in _keys(m.stored, q))
    return moved + sum(p.tensors[key[0]].bytes * scale * m.loaded[key] for key in _keys(m.loaded, q))


def add_used(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """used[q] >= A[k, q] for every kernel k, where starting a partition costs time.

    used[q] >= used[q+1] besides, where the numbers of partitions are free: halves and pins leave some empty.
    """
    if p.reconfiguration_s == 0:
        return
    slots = range(partitions_of(p))
    m.used = pyo.Var(slots, bounds=(0, 1))
    m.uses = pyo.Constraint(range(len(p.kernels)), slots, rule=lambda m, k, q: m.used[q] >= m.A[k, q])
    if p.halves or p.pinned:
        return
    m.front = pyo.Constraint(range(len(slots) - 1), rule=lambda m, q: m.used[q] >= m.used[q + 1])


def add_limits(m: pyo.ConcreteModel, p: PartitionProblem) -> None:
    """per_s * seconds + per_byte * bytes moved, over all partitions, in percent of its limit, is at most 100."""
    slots = range(partitions_of(p))
    starts = p.reconfiguration_s * MS * sum(m.used.values()) if p.limits and p.reconfiguration_s else 0.0

    def rule(m: pyo.ConcreteModel, n: int) -> pyo.Expression:
        limit = p.limits[n]
        seconds = sum(m.T.values()) + starts
        moved = sum(_moved(m, p, q, 100 * limit.per_byte / limit.at_most) for q in slots) if limit.per_byte else 0.0
        return 100 * limit.per_s / limit.at_most / MS * seconds + moved <= 100

    m.limit = pyo.Constraint(range(len(p.limits)), rule=rule)


#: Constraint functions of this model, for the list of golden LP texts.
CONSTRAINTS = (
    add_assignment,
    add_precedence,
    add_phases,
    add_pins,
    add_alone,
    add_crossings,
    add_sram,
    add_times,
    add_used,
    add_limits,
)


def assignment_model(p: PartitionProblem) -> pyo.ConcreteModel:
    """The assignment program of `p`: minimise sum_q T[q] + reconfiguration * sum_q used[q], in ms."""
    m = pyo.ConcreteModel(name="partitioning")
    for add in CONSTRAINTS:
        add(m, p)
    m.objective = pyo.Objective(
        expr=sum(m.T.values()) + (p.reconfiguration_s * MS * sum(m.used.values()) if p.reconfiguration_s else 0.0)
    )
    return m


def solve_assignment(
    p: PartitionProblem,
    *,
    time_limit_s: float | None = None,
    relative_gap: float = 0.0,
    log: Path | None = None,
) -> tuple[tuple[int, ...] | None, SolveResult]:
    """Partition of each kernel (None where infeasible or no solution in time), and the solve; its unit is ms."""
    m = assignment_model(p)
    result = solve(m, time_limit_s=time_limit_s, relative_gap=relative_gap, log=log)
    if not result.has_solution:
        return None, result
    slots = range(partitions_of(p))
    return tuple(max(slots, key=lambda q: m.A[k, q].value) for k in range(len(p.kernels))), result
