"""Five hundred random blocks of up to ten kernels: every route of partitioning against linear extensions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from partition_reference import best_by_extensions, random_problem, seconds, with_tiles

from dfmodel.mapping.lattice import check_certificate, solve_lattice
from dfmodel.mapping.partitioning import MS, partitions_of, solve_assignment
from dfmodel.mapping.path_mip import solve_path
from dfmodel.mapping.problem import PartitionProblem
from dfmodel.mapping.streamed import solve_streamed

CASES = 500
BATCH = 25


def _block(seed: int) -> PartitionProblem:
    """Every third block at cycle level, every fifth with kernels that run different numbers of times."""
    rng = np.random.default_rng(50_000 + seed)
    p = replace(random_problem(rng, int(rng.integers(2, 11))), halves=False)
    if seed % 3 == 0:
        p = with_tiles(p, rng)
    if seed % 5 == 0:
        p = replace(p, runs=tuple(int(n) for n in rng.integers(1, 3, len(p.kernels))))
    return p


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_every_route_finds_the_same(first: int) -> None:
    """Lattice = path program = streamed lattice = linear extensions on every block; the assignment program
    agrees on those that are not at cycle level, which it does not have."""
    for seed in range(first, first + BATCH):
        p = _block(seed)
        best, _ = best_by_extensions(p, partitions_of(p))
        found = solve_lattice(p)
        check_certificate(p, found)
        if not np.isfinite(best):
            assert found.assignment is None, seed
            assert p.allocation is not None or solve_assignment(p)[1].status == "infeasible", seed
            continue
        assert found.assignment is not None, seed
        assert found.seconds == pytest.approx(best, rel=1e-9), seed
        assert seconds(p, found.assignment) == pytest.approx(best, rel=1e-9), seed
        assert solve_path(p, found).objective == pytest.approx(best * MS, rel=1e-7), seed
        free = solve_lattice(replace(p, count=None, maximum=10))
        streamed = solve_streamed(p, np.inf, 5000)
        assert streamed.seconds == pytest.approx(free.seconds, rel=1e-9), seed
        assert streamed.assignment is not None
        assert seconds(p, streamed.assignment) == pytest.approx(free.seconds, rel=1e-9), seed
        if p.allocation is None:
            assert solve_assignment(p)[1].objective == pytest.approx(best * MS, rel=1e-6), seed


def test_the_blocks_reach_every_feature() -> None:
    """Large ones, many extensions, cycle level, blocks that fit and blocks that do not."""
    sizes, many, infeasible, tiled = [], 0, 0, 0
    for seed in range(60):
        p = _block(seed)
        best, extensions = best_by_extensions(p, partitions_of(p))
        sizes.append(len(p.kernels))
        many += extensions >= 20
        infeasible += not np.isfinite(best)
        tiled += p.allocation is not None and np.isfinite(best)
    assert (max(sizes), min(sizes)) == (10, 2)
    assert many >= 4
    assert 3 <= infeasible <= 40
    assert tiled >= 8


@pytest.mark.parametrize("seed", range(40))
def test_more_of_a_resource_never_hurts(seed: int) -> None:
    """Doubling SRAM, memory bandwidth, FLOP/s (half the compute seconds or cycle time) or tiles is never slower."""
    rng = np.random.default_rng(70_000 + seed)
    p = replace(random_problem(rng, int(rng.integers(3, 8))), halves=False, sram_bytes=2e8)
    p = replace(p, passes=(1,) * len(p.kernels))
    if seed % 2:
        p = with_tiles(p, rng)
    before = solve_lattice(p).seconds
    better = [
        replace(p, sram_bytes=2 * p.sram_bytes),
        replace(p, memory_bytes_per_s=2 * p.memory_bytes_per_s),
        replace(p, compute_s=tuple(c / 2 for c in p.compute_s)),
    ]
    if p.allocation is not None:
        better.append(replace(p, allocation=replace(p.allocation, tiles=2 * p.allocation.tiles)))
        faster = p.allocation.seconds_per_cycle / 2
        better.append(replace(p, allocation=replace(p.allocation, seconds_per_cycle=faster)))
    for changed in better:
        assert solve_lattice(changed).seconds <= before * (1 + 1e-12)
