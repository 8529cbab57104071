"""The sharding program: equal to enumeration on small blocks, and Megatron's division rediscovered on a GPT layer."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dfmodel.errors import InputError
from dfmodel.mapping.build import build_sharding_problem
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.mapper import strategies_of
from dfmodel.mapping.sharding import ShardingProblem, ShardingRules, sharding_cost, sharding_problem, strategies
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import place
from dfmodel.workloads.differentiate import with_backward
from dfmodel.workloads.graph import Block, Kernel, Operand, Tensor
from dfmodel.workloads.registry import build_workload


def _gemm(name: str, source: str, target: str, weight: str, k: str, n: str, dims: dict[str, int]) -> Kernel:
    return Kernel(
        name,
        dims,
        (Operand(source, ("token", k)), Operand(weight, (n, k))),
        (Operand(target, ("token", n)),),
        "matrix",
        2.0,
        tiling="token",
    )


def _mlp(backward: bool) -> Block:
    """Two GEMMs and a residual sum: a branch, weights, a linear kernel, and (backward) gradients."""
    tensors = {
        "x": Tensor("x", {"token": 8, "hidden": 8}, "bf16"),
        "h": Tensor("h", {"token": 8, "ffn": 16}, "bf16"),
        "y": Tensor("y", {"token": 8, "hidden": 8}, "bf16"),
        "z": Tensor("z", {"token": 8, "hidden": 8}, "bf16"),
        "w1": Tensor("w1", {"ffn": 16, "hidden": 8}, "bf16", "weight"),
        "w2": Tensor("w2", {"hidden": 8, "ffn": 16}, "bf16", "weight"),
    }
    full = {"token": 8, "hidden": 8, "ffn": 16}
    add = Kernel(
        "add",
        {"token": 8, "hidden": 8},
        (Operand("x", ("token", "hidden")), Operand("y", ("token", "hidden"))),
        (Operand("z", ("token", "hidden")),),
        "vector",
        1.0,
        op="sum",
        linear=True,
    )
    kernels = (
        _gemm("up", "x", "h", "w1", "hidden", "ffn", full),
        _gemm("down", "h", "y", "w2", "ffn", "hidden", full),
        add,
    )
    block = Block("mlp", kernels, tensors, ("z",))
    return with_backward(block) if backward else block


def _problem(seed: int, block: Block, chips: int, sequence: bool, shared: bool, free: bool) -> ShardingProblem:
    """Random costs of kernels and collectives, so that no structure of a real machine hides a wrong row."""
    rng = np.random.default_rng(seed)
    rates = {op: float(rng.uniform(0.01, 1)) for op in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")}
    costs: dict[tuple[str, str], float] = {}
    rules = ShardingRules(sequence, "free" if free else "divided", shared)
    return sharding_problem(
        block,
        chips,
        rules,
        lambda kernel, s: costs.setdefault((kernel.name, s.name), float(rng.uniform(0, 40))),
        lambda op, size: rates[op] * size,
    )


def _enumerated(p: ShardingProblem) -> float:
    """The best of every combination of options; weights' homes follow, as they cost nothing."""
    names = list(p.options)
    return min(
        sharding_cost(p, dict(zip(names, choice, strict=True)))
        for choice in itertools.product(*(range(len(p.options[n])) for n in names))
    )


@pytest.mark.parametrize("seed", range(24))
def test_program_equals_enumeration(seed: int) -> None:
    """Protects the marginal rows, shared conversions, home layouts and legality of strategies."""
    p = _problem(seed, _mlp(backward=False), 2 + 2 * (seed % 2), bool(seed & 2), bool(seed & 4), bool(seed & 8))
    sharding, result = solve_sharding(p)
    assert result.status == "optimal"
    assert sharding.objective == pytest.approx(_enumerated(p), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_program_equals_enumeration_with_gradients(seed: int) -> None:
    """The same with the backward pass: gradients end in their weight's home layout."""
    p = _problem(seed, _mlp(backward=True), 2, sequence=False, shared=True, free=False)
    combinations = np.prod([len(o) for o in p.options.values()])
    assert combinations < 3e5
    sharding, _ = solve_sharding(p)
    assert sharding.objective == pytest.approx(_enumerated(p), rel=1e-9)


def _layer(tensor: int, sequence: bool, phases: str = "training") -> tuple[Block, Context]:
    """On links that reach a fixed share of their bandwidth, with nothing to start and no reduction in the switch: what
    is sent decides, as in the papers these tests compare with."""
    plain = {"chip.efficiency.links_achieve": False, "topology.nvlink.in_network_reduction": False}
    system = load_system("dgx", {"nodes": 1, **plain})
    block = build_workload("llm", {"mode": phases}).blocks[1][0]
    group = place([("tensor", (tensor, 1))], system.dimensions)["tensor"]
    return block, Context(system, load_assumptions("default"), "bf16", group, sequence)


def _collectives(block: Block, context: Context) -> Counter[tuple[str, str]]:
    """(phase of the kernel, operation) -> how often, in the best sharding."""
    sharding, _ = solve_sharding(build_sharding_problem(block, context))
    evaluator = BlockEvaluator(block, strategies_of(sharding), context)
    return Counter((block.by_name[c.kernel].phase, c.operation) for c in evaluator.communications)


def test_megatron_tensor_parallelism_is_rediscovered() -> None:
    """Fewest bytes: two all-reduces forward and two backward per layer (Shoeybi et al., arXiv 1909.08053), no more."""
    block, context = _layer(8, sequence=False)
    choices = context.assumptions.model_copy(
        update={"sharding": context.assumptions.sharding.model_copy(update={"objective": "bytes"})}
    )
    fewest = replace(context, assumptions=choices)
    assert _collectives(block, fewest) == {("forward", "all_reduce"): 2, ("backward", "all_reduce"): 2}
    sharding, _ = solve_sharding(build_sharding_problem(block, fewest))
    assert sharding.objective == 4 * block.tensors["x"].bytes


def test_the_fastest_sharding_is_no_slower_than_megatrons() -> None:
    """In time, dividing elementwise work between a scatter and a gather may win; Megatron's choice never does."""
    block, context = _layer(8, sequence=False)
    whole = ["norm1", "projection_dropout", "residual1", "norm2", "ffn_dropout", "residual2"]
    whole += [k.name for k in block.kernels if k.phase == "backward" and k.name.removesuffix("_backward") in whole]
    whole += ["sum_d_residual1_out", "sum_d_x"]
    megatron, _ = solve_sharding(build_sharding_problem(block, context, dict.fromkeys(whole, "replicated")))
    evaluator = BlockEvaluator(block, strategies_of(megatron), context)
    assert Counter(c.operation for c in evaluator.communications) == {"all_reduce": 4}
    best, _ = solve_sharding(build_sharding_problem(block, context))
    assert best.objective <= megatron.objective


def test_sequence_sharding_moves_the_bytes_of_megatron_sequence_parallelism() -> None:
    """Forward, two gathers and two scatters (Korthikanti et al., arXiv 2205.05198), and never slower than without."""
    block, context = _layer(8, sequence=True, phases="forward")
    assert _collectives(block, context) == {("forward", "all_gather"): 2, ("forward", "reduce_scatter"): 2}
    with_sequence, _ = solve_sharding(build_sharding_problem(block, context))
    without, _ = solve_sharding(build_sharding_problem(*_layer(8, sequence=False, phases="forward")))
    assert with_sequence.objective < without.objective


def test_a_weight_is_never_replicated_when_divided() -> None:
    """`weights: divided` keeps every matrix weight and its gradient divided over the group."""
    block, context = _layer(4, sequence=True)
    for kernel in block.kernels:
        for s in strategies(block, kernel, 4, ShardingRules(True, "divided")):
            if kernel.unit != "matrix":
                continue
            for operand, layout in zip(kernel.inputs, s.needs, strict=True):
                tensor = block.tensors[operand.tensor]
                if tensor.role == "weight" and len(tensor.dims) > 1:
                    assert layout in tensor.dims
    assert context.chips == 4


def test_a_pin_is_kept_and_an_unknown_one_refused() -> None:
    """A user's pin is honoured exactly; a misspelt kernel or strategy is named with the nearest one."""
    block, context = _layer(8, sequence=False)
    sharding, _ = solve_sharding(build_sharding_problem(block, context, {"ffn_up": "hidden"}))
    assert sharding.names["ffn_up"] == "hidden"
    with pytest.raises(InputError, match=r"did you mean 'ffn_up'"):
        build_sharding_problem(block, context, {"ffn_upp": "hidden"})
    with pytest.raises(InputError, match=r"did you mean 'ffn'"):
        build_sharding_problem(block, context, {"ffn_up": "ffnn"})
