"""The lattice's dynamic program, the path program and enumeration agree; its potentials prove the reference layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from partition_reference import best_seconds, random_problem, seconds

from dfmodel.errors import MismatchError
from dfmodel.mapping.build import build_partition_problem, build_sharding_problem
from dfmodel.mapping.columns import all_columns
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.ideals import LatticeTooLargeError, enumerate_ideals
from dfmodel.mapping.lattice import check_certificate, solve_lattice
from dfmodel.mapping.mapper import strategies_of
from dfmodel.mapping.partitioning import MS, partitions_of, solve_assignment
from dfmodel.mapping.path_mip import solve_path, surviving_arcs
from dfmodel.mapping.problem import PartitionProblem
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import place
from dfmodel.workloads.registry import build_workload

PINS = {"DropOut_3": "none", "Add_2": "m", "V_bwd": "k"}


@pytest.mark.parametrize("seed", range(120))
def test_lattice_equals_enumeration(seed: int) -> None:
    """Every feature at random: the dynamic program finds the enumerated optimum, and its assignment costs it."""
    rng = np.random.default_rng(1000 + seed)
    p = random_problem(rng, int(rng.integers(2, 7)))
    best = best_seconds(p, partitions_of(p))
    found = solve_lattice(p)
    check_certificate(p, found)
    if not np.isfinite(best):
        assert found.assignment is None
        return
    assert found.seconds == pytest.approx(best, rel=1e-9)
    assert found.assignment is not None
    assert seconds(p, found.assignment) == pytest.approx(best, rel=1e-9)
    assert solve_path(p, found).objective == pytest.approx(best * MS, rel=1e-7)


@pytest.mark.parametrize("seed", range(30))
def test_every_column_costs_what_the_definition_says(seed: int) -> None:
    """The matrix products against plain loops, partition by partition; the ones left out really do not fit."""
    p = random_problem(np.random.default_rng(2000 + seed), 6)
    ideals = enumerate_ideals(p)
    columns = all_columns(p, ideals)
    costs = {(int(i), int(j)): float(s) for i, j, s in zip(columns.before, columns.after, columns.seconds, strict=True)}
    for i, before in enumerate(ideals.members):
        for j, after in enumerate(ideals.members):
            if i == j or (before & ~after).any():
                continue
            part = [1 if inside else 0 if done else 2 for done, inside in zip(before, after & ~before, strict=True)]
            expected = _one_partition(p, part)
            if np.isfinite(expected):
                assert costs[i, j] == pytest.approx(expected, rel=1e-9)
            else:
                assert (i, j) not in costs


def _one_partition(p: PartitionProblem, part: list[int]) -> float:
    """Seconds of the kernels numbered 1, by difference: the reference prices whole assignments."""
    from partition_reference import _partition

    return _partition(p, {k for k, q in enumerate(part) if q == 1})


def test_a_false_potential_is_noticed() -> None:
    """The certificate is checked arc by arc: one potential too high, or a claim too low, is an error."""
    p = replace(random_problem(np.random.default_rng(5), 5), halves=False, sram_bytes=1e9, passes=(1,) * 5)
    found = solve_lattice(p)
    check_certificate(p, found)
    raised = tuple(a.copy() for a in found.potentials)
    raised[0][-1, -1] *= 1.001
    with pytest.raises(MismatchError):
        check_certificate(p, replace(found, potentials=raised))
    with pytest.raises(MismatchError):
        check_certificate(p, replace(found, seconds=found.seconds * 0.999))


def _layer(assumed: dict[str, object], system: dict[str, object] | None = None) -> PartitionProblem:
    """The original's 41-kernel layer on 8-way tensor parallel SN30 with Megatron's sharding."""
    s = load_system("dse_2d_torus", system or {})
    block = build_workload("gpt_forward_backward").blocks[0][0]
    group = place([("tensor", (8, 1))], s.dimensions)["tensor"]
    context = Context(s, load_assumptions("paper", assumed), "fp16", group, False, None, 3072)
    sharding, _ = solve_sharding(build_sharding_problem(block, context, PINS))
    return build_partition_problem(BlockEvaluator(block, strategies_of(sharding), context))


FAST_LINKS = {"topology.x.link": "nvlink_dse"}
SLOW_DRAM = {**FAST_LINKS, "memory": {"base": "ddr_dse", "bandwidth": "60 GB/s"}}
ONCE = {"network.all_reduce_factor": 1}

LAYERS = [
    ({"partitions.count": 6, "partitions.overlap": "full"}, {}, 24.525757630),
    ({"partitions.count": 6, "partitions.overlap": "none"}, {}, 44.228267141),
    ({"partitions.count": 6, "partitions.overlap": "none", "traffic.per": "tensor"}, {}, 42.305877807),
    ({"partitions.count": 6, "partitions.overlap": "full", **ONCE}, FAST_LINKS, 22.138266074),
    ({"partitions.count": 12, "partitions.overlap": "full", **ONCE}, SLOW_DRAM, 40.642266074),
    (
        {"partitions.maximum": 41, "partitions.halves": False, "partitions.overlap": "full", **ONCE},
        SLOW_DRAM,
        40.642266074,
    ),
]


@pytest.mark.parametrize("assumed,system,milliseconds", LAYERS)
def test_reference_layer(assumed: dict[str, object], system: dict[str, object], milliseconds: float) -> None:
    """1,171 ideals and 112,783 partitions in well under a second, proven, and equal to the path program."""
    p = _layer(assumed, system)
    found = solve_lattice(p)
    check_certificate(p, found)
    assert (len(found.ideals.sizes), len(found.columns.seconds)) == (1171, 112783)
    assert found.seconds * MS == pytest.approx(milliseconds, rel=1e-9)
    assert found.wall_s < 2
    assert solve_path(p, found).objective == pytest.approx(milliseconds, rel=1e-7)


def test_assignment_program_agrees_on_the_reference_layer() -> None:
    """The second opinion, on the named case that is hardest for it: 60 GB/s, 6 + 6 partitions."""
    p = _layer(*LAYERS[4][:2])
    _, result = solve_assignment(p)
    assert result.objective == pytest.approx(solve_lattice(p).seconds * MS, rel=1e-7)


def test_few_arcs_survive_the_optimum() -> None:
    """What is handed to the solver is a sliver of the lattice."""
    p = _layer(*LAYERS[1][:2])
    found = solve_lattice(p)
    assert len(surviving_arcs(found, found.seconds)) < 2000


def test_too_many_ideals_is_said() -> None:
    """A wide graph is refused before it fills memory."""
    wide = random_problem(np.random.default_rng(0), 2)
    many = 20
    p = replace(
        wide, kernels=tuple(f"k{i}" for i in range(many)), phase=(0,) * many, tensors=(), pinned=(),
        compute_s=(1e-3,) * many, network_s=(0.0,) * many, memory_bytes=(0.0,) * many, weight_bytes=(0.0,) * many,
        passes=(1,) * many,
    )  # fmt: skip
    with pytest.raises(LatticeTooLargeError, match="more than 20,000 ideals"):
        enumerate_ideals(p)
