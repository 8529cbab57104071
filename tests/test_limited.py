"""Limits on totals: Lagrangian and path program, the assignment program, and enumeration agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from partition_reference import assignments, moved_bytes, random_problem, seconds, with_tiles

import dfmodel
from dfmodel.errors import InfeasibleError, InputError
from dfmodel.mapping.lattice import solve_lattice
from dfmodel.mapping.limited import solve_limited
from dfmodel.mapping.partitioning import MS, partitions_of, solve_assignment
from dfmodel.mapping.problem import PartitionProblem, TotalLimit


def _totals(p: PartitionProblem, assignment: tuple[int, ...]) -> tuple[float, float]:
    return seconds(p, assignment), moved_bytes(p, assignment)


def _limited(seed: int) -> tuple[PartitionProblem, list[tuple[float, float]]]:
    """A random problem with a limit on traffic, or on energy as well, and every assignment's (seconds, bytes)."""
    rng = np.random.default_rng(6000 + seed)
    p = replace(random_problem(rng, int(rng.integers(4, 7))), halves=seed % 3 == 0)
    # fast memory, so that time and traffic pull apart: at cycle level more partitions have more tiles for each kernel,
    # and where compute and network hide each other the best cut is not the one that moves least
    if seed % 4 < 2:
        p = replace(with_tiles(p, rng), sram_bytes=1e9, passes=(1,) * len(p.kernels), reconfiguration_s=0.0)
    else:
        p = replace(p, overlap="full")
    p = replace(p, memory_bytes_per_s=1e13, network_s=tuple(float(s) * 1e-3 for s in rng.uniform(0, 2, len(p.kernels))))
    every = [_totals(p, a) for a in assignments(p, partitions_of(p))]
    every = [t for t in every if np.isfinite(t[0])]
    if not every:
        return p, every
    bytes_ = sorted({b for _, b in every if b > 0} or {1.0})
    limits = [TotalLimit("traffic", 0.0, 1.0, bytes_[int(rng.integers(0, max(1, len(bytes_) // 2)))] * 1.0001)]
    if seed % 2:
        energies = sorted(300 * s + 3e-11 * b for s, b in every)
        limits.append(TotalLimit("energy", 300.0, 3e-11, energies[len(energies) // 3] * 1.0001))
    return replace(p, limits=tuple(limits)), every


@pytest.mark.parametrize("seed", range(60))
def test_limited_equals_enumeration(seed: int) -> None:
    """The fastest of the assignments within the limits, by both programs; or none where none is within."""
    p, every = _limited(seed)
    lattice = solve_lattice(p)
    if not every:
        assert lattice.assignment is None
        return
    within = [s for s, b in every if all(lim.per_s * s + lim.per_byte * b <= lim.at_most for lim in p.limits)]
    best = min(within, default=np.inf)
    found = solve_limited(p, lattice)
    if not within:
        assert found.assignment is None
        assert p.allocation is not None or solve_assignment(p)[1].status == "infeasible"
        return
    assert found.assignment is not None
    assert found.seconds == pytest.approx(best, rel=1e-9)
    assert found.bound_s == pytest.approx(best, rel=1e-6)
    assert found.lagrangian_s <= best * (1 + 1e-9)
    assert _totals(p, found.assignment)[0] == pytest.approx(best, rel=1e-9)
    if p.allocation is None:
        assert solve_assignment(p)[1].objective == pytest.approx(best * MS, rel=1e-6)


def test_the_random_limits_bind() -> None:
    """The test above would protect nothing if the limits never cost time."""
    slower = 0
    for seed in range(60):
        p, every = _limited(seed)
        if every:
            found = solve_limited(p, solve_lattice(p))
            slower += found.assignment is not None and found.seconds > min(s for s, _ in every) * 1.001
    assert slower >= 10


SMALL = {"workload.layers": 4, "workload.batch": 64, "system.nodes": 1, "plan.tensor": 8}


def _traffic(result: dfmodel.Result) -> float:
    return sum(p.memory_bytes for p in result.partitions)


@pytest.mark.parametrize("study,limit", [("readme_gpt3_1t_1024_sn30", 2125), ("mapping_dfmodel_4x2", 289)])
def test_a_study_may_limit_traffic(study: str, limit: int) -> None:
    """plan.limits of a run: it binds, is kept and proven (ties give it here); too low, the error says so."""
    free = dfmodel.optimize(study=study)
    assert _traffic(free) > limit * 2**20
    held = dfmodel.optimize(study=study, settings={"plan.limits": {"traffic": f"{limit} MiB"}})
    assert _traffic(held) <= limit * 2**20 * (1 + 1e-6)
    assert held.objective >= free.objective * (1 - 1e-12)
    levels = {m["level"]: m["status"] for m in held.certificate.mips}
    assert levels["partitioning within limits (Lagrangian, path program)"] == "optimal"
    with pytest.raises(InfeasibleError, match="the least possible is"):
        dfmodel.optimize(study=study, settings={"plan.limits": {"traffic": "1 MB"}})


@pytest.mark.parametrize(
    "limits,text",
    [
        ({"trafic": "1 GB"}, "did you mean 'traffic'"),
        ({"traffic": "1 s"}, "plan.limits.traffic"),
        ({"traffic": "0 GB"}, "more than zero"),
    ],
)
def test_limits_with_faults(limits: dict[str, str], text: str) -> None:
    with pytest.raises(InputError, match=text):
        dfmodel.optimize("gpt3_13b", "sn30_rack", settings={**SMALL, "plan.limits": limits})


def test_a_limit_on_energy_needs_a_power() -> None:
    """Where nothing may be assumed, the missing figure is named."""
    settings = {**SMALL, "plan.limits": {"energy": "1 kJ"}, "cost": "stated"}
    with pytest.raises(InputError, match="power of chip 'sn30' is not stated"):
        dfmodel.optimize("gpt3_13b", "sn30_rack", settings=settings)


def test_kernel_by_kernel_chips_have_no_limits() -> None:
    with pytest.raises(InputError, match="only for dataflow chips"):
        dfmodel.optimize("llm", "dgx", settings={"plan.limits": {"traffic": "1 GB"}})
