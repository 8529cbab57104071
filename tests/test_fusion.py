"""Fused kernels: what may fuse, the best choice against enumeration, and sharding and fusion together."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import dfmodel
from dfmodel.mapping.build import build_sharding_problem, fused_assignment
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.fusion import FusedSet, agrees, best_sets, legal_sets, numbered
from dfmodel.mapping.mapper import strategies_of
from dfmodel.mapping.sharding import sharding_cost
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import place
from dfmodel.workloads.graph import Block
from dfmodel.workloads.registry import build_workload

ALL = ("attention", "epilogue", "elementwise")


def _decoder(**settings: object) -> Block:
    return build_workload("llm", {"attention": "fused", **settings}).blocks[1][0]


def test_what_may_fuse() -> None:
    """An epilogue follows its matrix kernel, a norm only elementwise work; phases and matrix kernels do not mix."""
    block = _decoder()
    sets = set(legal_sets(block, ALL))
    assert ("ffn_up", "activation") in sets
    assert ("ffn_down", "ffn_dropout", "residual2") in sets
    assert ("residual1", "norm2") in sets
    for members in sets:
        kernels = [block.by_name[name] for name in members]
        assert sum(k.unit == "matrix" for k in kernels) <= 1
        assert len({k.phase for k in kernels}) == 1
        if kernels[0].unit == "matrix":
            assert not any(k.unsplittable for k in kernels[1:])
    assert legal_sets(block, ()) == legal_sets(block, ("attention",)) == ()
    assert all(block.by_name[s[0]].unit == "vector" for s in legal_sets(block, ("elementwise",)))
    assert all(block.by_name[s[0]].unit == "matrix" for s in legal_sets(block, ("epilogue",)))


def test_sets_are_convex() -> None:
    """No kernel outside a set lies between two of it: a fused kernel never waits for itself."""
    block = _decoder(model="llama3_8b")
    after: dict[str, set[str]] = {k.name: set() for k in block.kernels}
    for name in reversed(block.topological_order):
        for p in block.predecessors[name]:
            after[p] |= {name} | after[name]
    for members in legal_sets(block, ALL):
        inside = set(members)
        for outside in after.keys() - inside:
            reached = any(outside in after[m] for m in inside)
            assert not (reached and after[outside] & inside)


@pytest.mark.parametrize("seed", range(40))
def test_best_sets_equals_enumeration(seed: int) -> None:
    """The cheapest split into sets, over every split there is."""
    rng = np.random.default_rng(seed)
    names = [f"k{i}" for i in range(6)]
    seconds: dict[FusedSet, float] = {(n,): float(rng.uniform(1, 2)) for n in names}
    for size in (2, 3):
        for members in itertools.combinations(names, size):
            if rng.random() < 0.4:
                seconds[members] = float(rng.uniform(1, 2 * size))
    found = best_sets(names, seconds)
    assert sorted(k for s in found for k in s) == names

    def least(left: frozenset[str]) -> float:
        if not left:
            return 0.0
        first = min(left)
        return min(c + least(left - set(s)) for s, c in seconds.items() if first in s and left >= set(s))

    assert sum(seconds[s] for s in found) == pytest.approx(least(frozenset(names)), rel=1e-12)


def _context(tensor: int, sequence: bool) -> Context:
    system = load_system("dgx", {"nodes": 1})
    group = place([("tensor", (tensor, 1))], system.dimensions)["tensor"]
    return Context(system, load_assumptions("default"), "bf16", group, sequence)


@pytest.mark.parametrize("tensor,sequence", [(1, False), (2, False), (8, False), (8, True)])
@pytest.mark.parametrize("model", ["gpt3_175b", "llama3_8b"])
def test_program_objective_is_the_fused_blocks_time(tensor: int, sequence: bool, model: str) -> None:
    """Sharding and fusion in one program: its optimum is what the independent evaluator finds for the mapping."""
    block, context = _decoder(model=model), _context(tensor, sequence)
    sharding, result = solve_sharding(build_sharding_problem(block, context))
    assert result.status == "optimal"
    evaluator = BlockEvaluator(block, strategies_of(sharding), context)
    assert sharding.objective == pytest.approx(evaluator.evaluate(fused_assignment(evaluator)).seconds(), rel=1e-9)


@pytest.mark.parametrize("tensor,sequence", [(8, False), (8, True)])
def test_together_is_no_slower_than_one_after_the_other(tensor: int, sequence: bool) -> None:
    """The joint optimum against: best sharding of kernels alone, fused afterwards; and never slower than unfused."""
    block, context = _decoder(), _context(tensor, sequence)
    joint, _ = solve_sharding(build_sharding_problem(block, context))
    alone = replace(build_sharding_problem(block, context), columns=())
    first, _ = solve_sharding(alone)
    evaluator = BlockEvaluator(block, strategies_of(first), context)
    afterwards = evaluator.evaluate(fused_assignment(evaluator)).seconds()
    assert joint.objective <= afterwards * (1 + 1e-9)
    assert afterwards <= first.objective * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_program_equals_enumeration(seed: int) -> None:
    """On a small block every combination of options, fused as is best, against the program; costs at random."""
    rng = np.random.default_rng(seed)
    block = build_workload("llm", {"attention": "fused", "mode": "forward"}).blocks[2][0]
    context = _context(2 + 2 * (seed % 2), bool(seed & 2))
    p = build_sharding_problem(block, context)
    p = replace(
        p,
        columns=tuple(replace(c, seconds=float(rng.uniform(0.5, 1.5)) * len(c.kernels)) for c in p.columns),
        conversion={k: v and float(rng.uniform(0, 1)) for k, v in p.conversion.items()},
    )
    names = list(p.options)
    best = min(
        sharding_cost(p, dict(zip(names, choice, strict=True)))
        for choice in itertools.product(*(range(len(p.options[n])) for n in names))
    )
    sharding, _ = solve_sharding(p)
    assert sharding.objective == pytest.approx(best, rel=1e-7)


def test_order_of_fused_kernels_respects_every_edge() -> None:
    block, context = _decoder(), _context(8, True)
    sharding, _ = solve_sharding(build_sharding_problem(block, context))
    evaluator = BlockEvaluator(block, strategies_of(sharding), context)
    assignment = fused_assignment(evaluator)
    assert all(assignment[e.producer] <= assignment[e.consumer] for e in block.edges)
    assert len(set(assignment.values())) < len(block.kernels)
    grouped: dict[int, list[str]] = {}
    for name, number in assignment.items():
        grouped.setdefault(number, []).append(name)
    for members in grouped.values():
        assert agrees(block, tuple(members), evaluator.strategies)
    waiting = ("norm1", "residual2")
    rest = [(k.name,) for k in block.kernels if k.name not in waiting]
    assert numbered(block, [waiting, *rest]) is None


def test_fusion_helps_and_can_be_switched_off() -> None:
    """The same small job with and without: fused is faster, and both count the same model FLOPs."""
    small = {"workload.layers": 4, "workload.hidden": 1024, "workload.heads": 16, "workload.ffn": 4096,
             "workload.batch": 64, "system.nodes": 1}  # fmt: skip
    fused = dfmodel.optimize(settings=small)
    plain = dfmodel.optimize(settings={**small, "assumptions.partitions.fusion": False})
    assert fused.workload["attention"] == "fused"
    assert plain.workload["attention"] == "separate"
    assert fused.objective < plain.objective
    same = {k: plain.metrics[k] for k in ("mfu", "iteration_s")}
    assert (fused.metrics["mfu"] or 0) * fused.objective == pytest.approx(
        (same["mfu"] or 0) * plain.objective, rel=1e-12
    )
    assert (fused.metrics["hfu"] or 0) > (fused.metrics["mfu"] or 0)
