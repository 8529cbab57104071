"""The independent evaluator against sums of kernels, a second cost rule, the programs' objectives, and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from partition_reference import seconds

import dfmodel
from dfmodel.errors import MismatchError
from dfmodel.mapping.build import build_partition_problem, build_sharding_problem, fused_assignment
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator, check_against
from dfmodel.mapping.footprint import layers_per_stage
from dfmodel.mapping.mapper import strategies_of
from dfmodel.mapping.recompute import saved_bytes
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import place
from dfmodel.workloads.registry import build_workload

SMALL = {
    "workload.layers": 4,
    "workload.hidden": 1024,
    "workload.heads": 16,
    "workload.ffn": 4096,
    "workload.batch": 64,
    "system.nodes": 1,
}


def _evaluator(
    system_name: str, tensor: int, sequence: bool, preset: dict[str, object], batch: int = 1
) -> BlockEvaluator:
    system = load_system(system_name)
    block = build_workload("llm", {"layers": 4, "hidden": 2048, "heads": 16, "ffn": 8192}).blocks[1][0].at_batch(batch)
    sizes = (tensor, *[1] * (len(system.dimensions) - 1))
    context = Context(
        system,
        load_assumptions("default", preset),
        "bf16",
        place([("tensor", sizes)], system.dimensions)["tensor"],
        sequence,
    )
    sharding, _ = solve_sharding(build_sharding_problem(block, context))
    return BlockEvaluator(block, strategies_of(sharding), context)


def test_one_chip_equals_the_sum_of_its_kernels() -> None:
    """Without parallelism nothing is communicated and a block takes what its kernels take one by one."""
    e = _evaluator("dgx", 1, False, {})
    whole = e.evaluate({name: i for i, name in enumerate(e.block.topological_order)})
    timer = e.context.timer
    by_hand = 0.0
    for k in e.block.kernels:
        moved = sum(e.block.tensors[t].bytes for t in {o.tensor for o in k.inputs})
        moved += sum(
            e.block.tensors[o.tensor].bytes
            for o in k.outputs
            if e.block.consumers[o.tensor] or o.tensor in e.block.outputs
        )
        by_hand += max(timer.kernel_s(k, None, 1), timer.memory_s(moved)) + timer.launch_s
    assert not e.communications
    assert whole.seconds() == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("traffic", ["tensor", "edge"])
@pytest.mark.parametrize("overlap", ["none", "compute_memory", "full"])
@pytest.mark.parametrize("tensor,sequence", [(1, False), (8, False), (8, True)])
def test_problem_and_evaluator_agree_on_any_partitioning(
    traffic: str, overlap: str, tensor: int, sequence: bool
) -> None:
    """The numbers handed to the solver, priced by the tests' own rule, equal the evaluator's on random mappings."""
    preset = {"traffic.per": traffic, "partitions.overlap": overlap}
    e = _evaluator("sn30_rack", tensor, sequence, preset)
    p = build_partition_problem(e)
    rng = np.random.default_rng(tensor)
    for _ in range(5):
        cuts = np.sort(rng.choice(len(p.kernels), 6, replace=False))
        split = p.phase.index(1)
        a = tuple(int(np.searchsorted(cuts, k, side="right")) + (k >= split) * 10 for k in range(len(p.kernels)))
        found = e.evaluate(dict(zip(p.kernels, a, strict=True)))
        expected = seconds(p, a)
        if np.isfinite(expected):
            assert found.seconds() == pytest.approx(expected, rel=1e-12)
        else:
            assert any(part.sram_bytes > p.sram_bytes for part in found.partitions)


def test_sharding_objective_is_the_blocks_time() -> None:
    """On a kernel-by-kernel chip the sharding program's optimum is the evaluator's seconds, network included."""
    for sequence in (False, True):
        e = _evaluator("dgx", 8, sequence, {}, batch=2)
        sharding, _ = solve_sharding(build_sharding_problem(e.block, e.context))
        order = fused_assignment(e)
        assert sharding.objective == pytest.approx(e.evaluate(order).seconds(), rel=1e-9)


def test_a_false_claim_is_an_error() -> None:
    """A solver's figure that the evaluator does not confirm to 1e-6 stops the run; so does a broken order."""
    check_against("ok", 1.0, 1.0 + 5e-7)
    with pytest.raises(MismatchError, match="independent evaluator"):
        check_against("wrong", 1.0, 1.00001)
    e = _evaluator("dgx", 1, False, {})
    backwards = {name: -i for i, name in enumerate(e.block.topological_order)}
    with pytest.raises(MismatchError, match="breaks the order"):
        e.evaluate(backwards)


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_activation_bytes_are_korthikantis(tensor: int) -> None:
    """sbh(10 + 24/t + 5as/(ht)) with Megatron's tensor parallelism, which moves the fewest bytes (arXiv 2205.05198,
    equation 2). The fastest sharding may hold less, as it also divides elementwise work."""
    e = _evaluator("dgx", tensor, False, {"sharding.objective": "bytes"})
    s, b, h, a = 2048, 1, 2048, 16
    assert saved_bytes(e, "none") == pytest.approx(s * b * h * (10 + 24 / tensor + 5 * a * s / (h * tensor)), rel=1e-12)


def test_layers_are_spread_evenly_and_all_placed() -> None:
    """Every layer sits on one stage; the surplus is on inner stages; embedding first, head last."""
    table = layers_per_stage([1, 10, 1], 4)
    assert [row[1] for row in table] == [2, 3, 3, 2]
    assert [row[0] for row in table] == [1, 0, 0, 0]
    assert [row[2] for row in table] == [0, 0, 0, 1]


def test_a_run_obeys_the_laws() -> None:
    """Parts add up; nothing beats peak compute; the plan uses every chip it says; memory is inside the capacity."""
    r = dfmodel.optimize(settings=SMALL)
    assert sum(r.breakdown_s.values()) == pytest.approx(r.objective, rel=1e-12)
    assert 0 < (r.metrics["mfu"] or 0) < 1
    assert sum(r.memory_bytes.values()) <= r.memory_capacity_bytes
    plan = r.plan
    assert plan["tensor"] * plan["data"] * plan["pipeline"] == plan["chips_used"] == r.system["chips"]
    assert plan["micro_batch"] * plan["micro_batches"] * plan["data"] == r.workload["batch"]
    assert r.bound is not None and r.bound <= r.objective


@pytest.mark.parametrize(
    "key,value",
    [
        ("system.chip.memory.bandwidth", "6.7 TB/s"),
        ("system.topology.nvlink.link.bandwidth", "50 GB/s"),
        ("system.chip.peak.matrix.bf16", "1978 TFLOP/s"),
        ("system.chip.memory.capacity", "160 GiB"),
    ],
)
def test_doubling_a_resource_never_slows_the_optimum(key: str, value: str) -> None:
    """Monotone in memory bandwidth, link bandwidth, peak and capacity."""
    before = dfmodel.optimize(settings=SMALL).objective
    after = dfmodel.optimize(settings={**SMALL, key: value}).objective
    assert after <= before * (1 + 1e-9)


def test_the_winner_beats_every_plan_a_user_can_fix() -> None:
    """The optimum is no worse than any plan evaluated by itself, and equals its own plan evaluated by itself."""
    best = dfmodel.optimize(settings=SMALL, certify_all=True)
    for tensor, pipeline, data in ((8, 1, 1), (1, 1, 8), (2, 2, 2), (1, 4, 2), (4, 1, 2)):
        plan = {"tensor": tensor, "pipeline": pipeline, "data": data, "micro_batch": 2, "recompute": "none"}
        assert dfmodel.evaluate(plan=plan, settings=SMALL).objective >= best.objective * (1 - 1e-9)
    own = {k: best.plan[k] for k in ("tensor", "pipeline", "data", "micro_batch", "recompute", "sequence_sharding")}
    assert dfmodel.evaluate(plan=own, settings=SMALL).objective == pytest.approx(best.objective, rel=1e-9)
