"""Sequences divided over chips: what is conserved, what is gathered, and what the evaluator and the programs say."""

from __future__ import annotations

import math

import pytest

import dfmodel
from dfmodel.errors import InputError
from dfmodel.workloads.context_parallel import context_degrees, over_context
from dfmodel.workloads.graph import Block
from dfmodel.workloads.registry import build_workload

SHAPE = {"layers": 2, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1024, "vocabulary": 512, "sequence": 1024,
         "max_sequence": 1024, "batch": 2}  # fmt: skip


def _blocks(attention: str) -> list[Block]:
    return [b for b, _ in build_workload("llm", {**SHAPE, "attention": attention}).blocks]


@pytest.mark.parametrize("attention", ["separate", "fused"])
@pytest.mark.parametrize("degree", [2, 4, 8])
def test_work_is_conserved(attention: str, degree: int) -> None:
    """The chips of a group do the whole block's FLOP between them; parameters are whole on each."""
    for block in _blocks(attention):
        own = over_context(block, degree)
        assert own.flops() * degree == pytest.approx(block.flops(), rel=1e-12)
        assert own.parameters == block.parameters
        assert own.at_batch(3).flops() == pytest.approx(3 * own.flops(), rel=1e-12)


@pytest.mark.parametrize("attention", ["separate", "fused"])
def test_keys_and_values_are_gathered_in_both_passes_and_their_gradients_scattered(attention: str) -> None:
    """Six messages of s x kv heads x head width x 2 bytes, as the formula has it; nothing elsewhere."""
    embedding, decoder, head = (over_context(b, 4) for b in _blocks(attention))
    assert not [k for b in (embedding, head) for k in b.kernels if k.context_collective]
    moving = [k for k in decoder.kernels if k.context_collective]
    assert sorted((k.phase, k.context_collective) for k in moving) == [
        ("backward", "all_gather"), ("backward", "all_gather"), ("backward", "reduce_scatter"),
        ("backward", "reduce_scatter"), ("forward", "all_gather"), ("forward", "all_gather"),
    ]  # fmt: skip
    for k in moving:
        whole = max(decoder.tensors[o.tensor].bytes for o in (*k.inputs, *k.outputs))
        assert whole == 1024 * 4 * 64 * 2


def test_degrees_divide_the_sequence() -> None:
    workload = build_workload("llm", {**SHAPE, "sequence": 96, "max_sequence": 96})
    assert context_degrees(workload, 100) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96]
    with pytest.raises(InputError, match="do not divide into context degree 5"):
        over_context(workload.blocks[1][0], 5)


def test_a_given_context_degree_is_costed_as_the_formula_says() -> None:
    """Alone on two chips: the time of the gathers is the price of six messages per layer over the group."""
    settings = {f"workload.{k}": v for k, v in SHAPE.items()} | {
        "system.nodes": 1,
        "system.topology.nvlink.size": 2,
        "plan.context": 2,
        "plan.tensor": 1,
        "plan.pipeline": 1,
        "plan.recompute": "none",
        "plan.micro_batch": 1,
    }
    r = dfmodel.optimize(settings=settings)
    assert (r.plan["context"], r.plan["data"], r.plan["micro_batches"]) == (2, 1, 2)
    seconds = sum(
        k.network_s for k in r.kernels if k.block == "decoder" and k.kernel.startswith(("gather_", "scatter_"))
    )
    shown = r.breakdown_s["context-parallel communication"]
    assert shown == pytest.approx(seconds * SHAPE["layers"] * 2, rel=1e-9)
    assert "tensor-parallel communication" not in r.breakdown_s or r.breakdown_s["tensor-parallel communication"] == 0
    message = 1024 * 4 * 64 * 2
    assert seconds >= 6 * message / 2 / 450e9
    assert math.isfinite(r.objective) and r.status == "optimal"


@pytest.mark.parametrize(
    "settings,text",
    [
        ({"plan.context": 3}, "possible below it: 1, 2"),
        ({"plan.expert": 2}, "no experts to divide"),
        ({"plan.context": 0}, "plan.context"),
        ({"plan.context": 2, "assumptions.iteration.model": "amortised"}, "iteration.model=scheduled"),
    ],
)
def test_what_cannot_be_asked(settings: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        dfmodel.optimize(settings=settings)
