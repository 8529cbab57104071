"""The partitioning program finds what enumeration finds, on small problems with every feature switched at random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from partition_reference import assignments, best_seconds, random_problem, seconds

from dfmodel.mapping.partitioning import MS, partitions_of, solve_assignment


@pytest.mark.parametrize("seed", range(60))
def test_program_equals_enumeration(seed: int) -> None:
    """Protects every row of the program: traffic rules, overlap, SRAM, phases, halves, passes, start-up time."""
    rng = np.random.default_rng(seed)
    p = random_problem(rng, int(rng.integers(2, 6)))
    best = best_seconds(p, partitions_of(p))
    assignment, result = solve_assignment(p)
    if not np.isfinite(best):
        assert result.status == "infeasible"
        return
    assert result.status == "optimal"
    assert assignment is not None
    assert result.objective == pytest.approx(best * MS, rel=1e-6)
    assert seconds(p, assignment) == pytest.approx(best, rel=1e-6)


def test_random_problems_reach_every_feature() -> None:
    """The random problems would protect nothing if they were all infeasible or never used a feature."""
    problems = [random_problem(np.random.default_rng(s), 4) for s in range(60)]
    assert {p.overlap for p in problems} == {"none", "compute_memory", "full"}
    assert {p.traffic_per for p in problems} == {"tensor", "edge"}
    assert any(max(p.passes) > 1 for p in problems)
    feasible = [p for p in problems if np.isfinite(best_seconds(p, partitions_of(p)))]
    assert len(feasible) > 30


def test_a_pin_is_kept_and_costs() -> None:
    """A kernel pinned to a partition stays there, and pinning never makes the answer better."""
    p = replace(random_problem(np.random.default_rng(3), 4), phase=(0, 0, 0, 0), halves=False, count=None)
    _, free = solve_assignment(p)
    pinned = replace(p, pinned=((3, 2),))
    assignment, result = solve_assignment(pinned)
    assert assignment is not None
    assert assignment[3] == 2
    assert result.objective == pytest.approx(best_seconds(pinned, partitions_of(pinned)) * MS, rel=1e-6)
    assert free.objective is not None and result.objective is not None
    assert result.objective >= free.objective - 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_more_of_a_resource_never_hurts(seed: int) -> None:
    """Doubling SRAM or bandwidth, or halving compute seconds, never gives a slower optimum."""
    p = replace(random_problem(np.random.default_rng(seed), 4), passes=(1, 1, 1, 1), sram_bytes=2e8)
    _, before = solve_assignment(p)
    for better in (
        replace(p, sram_bytes=2 * p.sram_bytes),
        replace(p, memory_bytes_per_s=2 * p.memory_bytes_per_s),
        replace(p, compute_s=tuple(c / 2 for c in p.compute_s)),
    ):
        _, after = solve_assignment(better)
        if before.objective is not None:
            assert after.objective is not None
            assert after.objective <= before.objective * (1 + 1e-9)


def test_enumeration_respects_the_order() -> None:
    """The oracle itself: a chain of three kernels over two partitions has four ordered assignments."""
    p = replace(random_problem(np.random.default_rng(0), 3), phase=(0, 0, 0), halves=False, pinned=(), tensors=())
    chain = replace(p, tensors=random_problem(np.random.default_rng(1), 3).tensors[:2])
    found = list(assignments(chain, 2))
    assert all(a[i] <= a[j] for a in found for i, j in chain.edges)
    assert len(list(assignments(p, 2))) == 8
