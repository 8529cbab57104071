"""Both routes of partitioning on the original's 41-kernel layer, and the large instances.

`python benchmarks/partitioning.py [--seconds S]`: S limits the assignment program per instance (default 10).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from dfmodel.mapping.build import build_partition_problem, build_sharding_problem
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.lattice import check_certificate, solve_lattice
from dfmodel.mapping.mapper import strategies_of
from dfmodel.mapping.orders import solve_in_orders
from dfmodel.mapping.partitioning import MS, solve_assignment
from dfmodel.mapping.problem import PartitionProblem
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.mapping.streamed import solve_streamed
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import place
from dfmodel.workloads.registry import build_workload

MEMORY_GB_PER_S = (30, 60, 100, 300, 1000, 3000)
SRAM_MB = (671, 1300)
PARTITIONS = (6, 12)
OVERLAPS = ("full", "none")
PINS = {"DropOut_3": "none", "Add_2": "m", "V_bwd": "k"}


def layer(memory: int, sram: int, count: int, overlap: str) -> PartitionProblem:
    """The layer with 450/50 GB/s links and one all-reduce factor, half of the partitions for each pass."""
    overrides = {
        "topology.x.link": "nvlink_dse",
        "memory": {"base": "ddr_dse", "bandwidth": f"{memory} GB/s"},
        "chip.sram": f"{sram * 10**6 if sram != 671 else 671_088_640} B",
    }
    system = load_system("dse_2d_torus", overrides)
    block = build_workload("gpt_forward_backward").blocks[0][0]
    assumed = {"partitions.count": count, "partitions.overlap": overlap, "network.all_reduce_factor": 1}
    group = place([("tensor", (8, 1))], system.dimensions)["tensor"]
    context = Context(system, load_assumptions("paper", assumed), "fp16", group, False, None, 3072)
    sharding, _ = solve_sharding(build_sharding_problem(block, context, PINS))
    return build_partition_problem(BlockEvaluator(block, strategies_of(sharding), context))


def table(limit_s: float) -> int:
    """Lattice and assignment program on every instance; returns how many proven answers differ."""
    print("DRAM GB/s  SRAM MB  parts  overlap |   columns  lattice s  optimum ms | assignment s  status      bound ms")
    differing = 0
    for memory, sram, count, overlap in itertools.product(MEMORY_GB_PER_S, SRAM_MB, PARTITIONS, OVERLAPS):
        p = layer(memory, sram, count, overlap)
        found = solve_lattice(p)
        check_certificate(p, found)
        began = time.perf_counter()
        _, result = solve_assignment(p, time_limit_s=limit_s)
        wall = time.perf_counter() - began
        bound = float("nan") if result.bound is None else result.bound
        if result.proven and abs((result.objective or 0) / MS - found.seconds) > 1e-6 * found.seconds:
            differing += 1
        print(
            f"{memory:9} {sram:8} {count:6}  {overlap:7} | {len(found.columns.seconds):9} {found.wall_s:10.3f} "
            f"{found.seconds * MS:11.6f} | {wall:12.2f}  {result.status:10} {bound:9.4f}",
            flush=True,
        )
    print(f"proven answers that differ: {differing}")
    return differing


def large() -> None:
    """990 forward kernels exactly; 984 forward and backward kernels with a bound."""
    from stacked_layers import stacked_layers

    fast = {"topology.x.link": "nvlink_dse"}
    _, p, _ = stacked_layers("gpt_forward", 55, fast, "full", 1)
    found = solve_lattice(p)
    check_certificate(p, found)
    print(f"55 layers forward, {len(p.kernels)} kernels: {found.seconds * MS:.6f} ms, exact, {found.wall_s:.2f} s")
    two_layers()
    slow = {**fast, "memory": {"base": "ddr_dse", "bandwidth": "60 GB/s"}}
    for label, system, overlap, factor in (
        ("compute-bound", fast, "full", 1),
        ("README", {}, "full", 2),
        ("DRAM 60 GB/s", slow, "full", 1),
        ("no overlap", {}, "none", 2),
    ):
        _, p, order = stacked_layers("gpt_forward_backward", 24, system, overlap, factor)
        ordered = solve_in_orders(p, [order])
        if ordered is not None:
            gap = 1 - min(1.0, ordered.bound_s / ordered.seconds)
            print(
                f"24 layers forward and backward, {len(p.kernels)} kernels, {label}: {ordered.seconds * MS:.3f} ms, "
                f"bound {ordered.bound_s * MS:.3f}, gap {100 * gap:.2f} %, {ordered.wall_s:.1f} s"
            )


def two_layers() -> None:
    """Two layers forward and backward: orders and windows, then the streamed lattice proves them."""
    from stacked_layers import stacked_layers

    fast = {"topology.x.link": "nvlink_dse"}
    slow = {**fast, "memory": {"base": "ddr_dse", "bandwidth": "60 GB/s"}}
    for label, system, overlap, factor in (
        ("compute-bound", fast, "full", 1),
        ("README", {}, "full", 2),
        ("DRAM 60 GB/s", slow, "full", 1),
        ("no overlap", {}, "none", 2),
    ):
        _, p, order = stacked_layers("gpt_forward_backward", 2, system, overlap, factor)
        ordered = solve_in_orders(p, [order])
        if ordered is not None:
            proof = solve_streamed(p, ordered.seconds, 100_000)
            print(
                f"2 layers forward and backward, {len(p.kernels)} kernels, {label}: {proof.seconds * MS:.6f} ms, "
                "exact, "
                f"{proof.opened:,} of {proof.ideals:,} ideals opened, {proof.columns:,} columns, {proof.wall_s:.1f} s"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    large()
    raise SystemExit(1 if table(arguments.seconds) else 0)
