"""Blocks too large for the lattice: orders and windows against the exact optimum on small ones, and stacked layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from partition_reference import random_problem, seconds
from stacked_layers import stacked_layers

from dfmodel.mapping.ideals import LatticeTooLargeError
from dfmodel.mapping.lattice import check_certificate, solve_lattice
from dfmodel.mapping.map_block import SolverSettings, map_block
from dfmodel.mapping.orders import solve_in_orders
from dfmodel.mapping.streamed import solve_streamed


@pytest.mark.parametrize("seed", range(60))
def test_small_blocks(seed: int) -> None:
    """Never better than the optimum, its own seconds are right, its bound is one, and here it finds the optimum."""
    rng = np.random.default_rng(seed)
    p = replace(random_problem(rng, int(rng.integers(3, 7))), halves=False, count=None, maximum=50, mixed_phases=False)
    exact = solve_lattice(p)
    found = solve_in_orders(p)
    if exact.assignment is None:
        assert found is None
        return
    assert found is not None
    assert found.seconds == pytest.approx(seconds(p, found.assignment), rel=1e-9)
    assert found.seconds == pytest.approx(exact.seconds, rel=1e-9)
    assert found.bound_s <= exact.seconds * (1 + 1e-9)


@pytest.mark.slow
def test_fifty_five_layers_exactly() -> None:
    """990 forward kernels: 25 L + 1 ideals, proven, and the evaluator agrees. Compute-bound, so 55 times one layer."""
    evaluator, p, _ = stacked_layers("gpt_forward", 55, {"topology.x.link": "nvlink_dse"}, "full", 1)
    found = solve_lattice(p)
    check_certificate(p, found)
    assert (len(p.kernels), len(found.ideals.sizes)) == (990, 25 * 55 + 1)
    assert found.assignment is not None
    evaluated = evaluator.evaluate(dict(zip(p.kernels, found.assignment, strict=True)))
    assert evaluated.seconds() == pytest.approx(found.seconds, rel=1e-9)
    assert found.wall_s < 10


@pytest.mark.slow
def test_twenty_four_layers_forward_and_backward() -> None:
    """984 kernels: within 5 % of the bound where compute binds, every partition fits, the evaluator agrees."""
    evaluator, p, order = stacked_layers("gpt_forward_backward", 24, {"topology.x.link": "nvlink_dse"}, "full", 1)
    found = solve_in_orders(p, [order], time_limit_s=2)
    assert found is not None
    assert len(p.kernels) == 984
    assert found.bound_s >= 0.95 * found.seconds
    evaluated = evaluator.evaluate(dict(zip(p.kernels, found.assignment, strict=True)))
    assert evaluated.seconds() == pytest.approx(found.seconds, rel=1e-9)
    assert max(part.sram_bytes for part in evaluated.partitions) <= p.sram_bytes


@pytest.mark.slow
def test_two_layers_are_proven_by_the_streamed_lattice() -> None:
    """82 kernels, 74,476 ideals: too many for the lattice, so orders and windows answer and the streamed one proves."""
    evaluator, p, _ = stacked_layers("gpt_forward_backward", 2, {}, "full", 2)
    with pytest.raises(LatticeTooLargeError):
        solve_lattice(p)
    mapped = map_block(evaluator, SolverSettings())
    assert mapped.mips[0]["level"] == "partitioning (orders and windows, then the streamed lattice)"
    assert mapped.mips[0]["status"] == "optimal"
    assert mapped.mips[0]["rows"] == 74_476
    assert mapped.evaluation.seconds() * 1e3 == pytest.approx(2 * 24.525757630, rel=1e-9)


def test_a_streamed_lattice_out_of_time_still_bounds() -> None:
    """With no time at all the known answer stands and the bound is the additive one, never above the optimum."""
    p = replace(random_problem(np.random.default_rng(4), 6), halves=False, count=None, maximum=50, mixed_phases=False)
    exact = solve_lattice(p)
    assert exact.assignment is not None
    stopped = solve_streamed(p, 2 * exact.seconds, 1000, time_limit_s=0.0)
    assert not stopped.finished
    assert 0 < stopped.bound_s <= exact.seconds * (1 + 1e-12)
