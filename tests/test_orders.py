"""Blocks too large for the lattice: orders and windows against the exact optimum on small ones, and stacked layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from partition_reference import random_problem, seconds
from stacked_layers import stacked_layers

from dfmodel.mapping.lattice import check_certificate, solve_lattice
from dfmodel.mapping.orders import solve_in_orders


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
