"""Copies of the original's layer as one block, with Megatron's sharding: the large instances of partitioning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dfmodel.mapping.build import build_partition_problem, build_sharding_problem
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.lattice import solve_lattice
from dfmodel.mapping.mapper import strategies_of
from dfmodel.mapping.orders import repeated_order
from dfmodel.mapping.problem import PartitionProblem
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import place
from dfmodel.workloads.registry import build_workload
from dfmodel.workloads.stack import stacked

PINS = {"DropOut_3": "none", "Add_2": "none"}


def stacked_layers(
    graph: str, layers: int, system: Mapping[str, object], overlap: str, factor: int
) -> tuple[BlockEvaluator, PartitionProblem, list[int]]:
    """`layers` copies on 8-way tensor parallel SN30: layer outputs feed the next, input gradients the one before.
    The order is that of one layer's optimum, repeated."""
    s = load_system("dse_2d_torus", dict(system))
    block = build_workload(graph).blocks[0][0]
    assumed = {"partitions.maximum": 1000, "partitions.halves": False, "partitions.overlap": overlap,
               "network.all_reduce_factor": factor}  # fmt: skip
    group = place([("tensor", (8, 1))], s.dimensions)["tensor"]
    context = Context(s, load_assumptions("paper", assumed), "fp16", group, False, None, 3072)
    backward = "V_bwd" in block.by_name
    pins = {**PINS, "V_bwd": "k"} if backward else {**PINS, "LayerNorm_1": "none"}
    sharding, _ = solve_sharding(build_sharding_problem(block, context, pins))
    single = strategies_of(sharding)
    large = stacked(
        block, layers, {"Add_2.out": "Add_Prev"}, {f"{k}_bwd.out": "Loss_bwd" for k in "QKV"} if backward else None
    )
    strategies = {}
    for kernel in large.kernels:
        own = single[kernel.name.rsplit("@", 1)[0]]
        further = len(kernel.inputs) - len(own.needs)
        strategies[kernel.name] = replace(own, needs=(*own.needs, *[own.gives[0]] * further))
    evaluator = BlockEvaluator(large, strategies, context)
    problem = build_partition_problem(evaluator)
    one = build_partition_problem(BlockEvaluator(block, single, context))
    best = solve_lattice(one)
    assert best.assignment is not None
    return evaluator, problem, repeated_order(one, best.assignment, problem.kernels, layers)
