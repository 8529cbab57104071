"""Sharding first against sharding and partitioning together, over link and memory bandwidth, with ring and in-network
all-reduce: `python benchmarks/joint_study.py [--csv FILE]`.

The block is a GPT-3 13B training layer without dropout on 8 SN30 sockets; its norm and residual segments may be
replicated or divided along the sequence.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from dfmodel.mapping.build import build_partition_problem, build_sharding_problem
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.joint import JointProblem, solve_joint
from dfmodel.mapping.lattice import solve_lattice
from dfmodel.mapping.mapper import strategies_of
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import place
from dfmodel.workloads.registry import build_workload

MEMORY_GB_PER_S = (60, 100, 300, 1000)
LINK_GB_PER_S = (50, 450)
NETWORKS = ("ring", "in-network")


def point(memory: int, link: int, network: str) -> dict[str, object]:
    """One point: milliseconds of the layer both ways, and what the branch and bound opened."""
    dimension = (
        {"topology.node.kind": "ring"}
        if network == "ring"
        else {"topology.node.kind": "switch", "topology.node.in_network_reduction": True}
    )
    joined = {"base": "pcie4", "bandwidth": f"{link} GB/s", "convention": "per link and direction"}
    system = load_system(
        "sn30_rack",
        {"nodes": 1, "chip.memory.bandwidth": f"{memory} GB/s", "topology.node.link": joined, **dimension},
    )
    block = build_workload("llm", {"model": "gpt3_13b", "dropout": False}).blocks[1][0]
    group = place([("tensor", (8, 1))], system.dimensions)["tensor"]
    context = Context(system, load_assumptions("default"), "bf16", group, False)
    sharding, _ = solve_sharding(build_sharding_problem(block, context))
    joint = JointProblem(block, strategies_of(sharding), context)
    first = solve_lattice(build_partition_problem(BlockEvaluator(block, joint.base, context))).seconds
    found = solve_joint(joint)
    return {
        "network": network,
        "link_GB_per_s": link,
        "memory_GB_per_s": memory,
        "sharding_first_ms": round(first * 1e3, 6),
        "together_ms": round(found.seconds * 1e3, 6),
        "loss_percent": round(100 * (first / found.seconds - 1), 2),
        "proven": found.proven,
        "nodes": found.nodes,
        "leaves": found.leaves,
        "combinations": found.combinations,
        "wall_s": round(found.wall_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    path = parser.parse_args().csv
    rows = []
    for network in NETWORKS:
        for link in LINK_GB_PER_S:
            for memory in MEMORY_GB_PER_S:
                rows.append(point(memory, link, network))
                print("  ".join(f"{k}={v}" for k, v in rows[-1].items()), flush=True)
    if path is not None:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
