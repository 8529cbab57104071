"""Matrix products by shape: the vendor's own example, what more work may cost, and the shape of a sharded kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmodel.mapping.kernel_time import KernelTimer, gemm_shape
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_chip
from dfmodel.systems.gemm import GemmCurve, GemmShape
from dfmodel.workloads.registry import build_workload

CURVE = GemmCurve(units=108, k_half=25.0, tile_exponent=0.3, blend=4.0)
EXTENT = st.integers(1, 4096)


def test_the_vendors_example_of_tiles_and_waves() -> None:
    """A100 in tiles of 256 x 128: 1,792 squared is 98 tiles, one wave, 98/108 busy; 1,793 is 120 tiles in two waves
    (NVIDIA DU-09799). Waves count half, their mean the other half."""
    flat = GemmCurve(units=108, k_half=0.0, tile_exponent=0.0, blend=1.0)
    rate, k = 312e12, 64
    unit_s = 2 * 256 * 128 * k / (rate / 108)
    assert flat.tiled_s(GemmShape(1792, 1792, k), 256, 128, rate) == pytest.approx(unit_s * (0.5 * 1 + 0.5 * 1))
    assert flat.tiled_s(GemmShape(1793, 1793, k), 256, 128, rate) == pytest.approx(unit_s * (0.5 * 2 + 0.5 * 120 / 108))


@given(EXTENT, EXTENT, EXTENT, st.integers(1, 64))
def test_never_above_the_rate(m: int, n: int, k: int, batch: int) -> None:
    """No shape is faster than the rate of large products, alone or with memory."""
    shape = GemmShape(m, n, k, batch)
    least = shape.flops / 2e14
    assert CURVE.compute_s(shape, 2e14) >= least * (1 - 1e-12)
    assert CURVE.alone_s(shape, 2e14, 1e6, 1e12) >= max(least, 1e-6) * (1 - 1e-12)


@given(EXTENT, EXTENT, EXTENT, st.integers(1, 16), st.integers(2, 8))
def test_several_times_the_rows_take_at_most_as_many_times_as_long(
    m: int, n: int, k: int, batch: int, times: int
) -> None:
    """What the search's scaled bounds rest on, for rows, depth and batch."""
    once = CURVE.compute_s(GemmShape(m, n, k, batch), 2e14) * times * (1 + 1e-12)
    for larger in (
        GemmShape(m * times, n, k, batch),
        GemmShape(m, n, k * times, batch),
        GemmShape(m, n, k, batch * times),
    ):
        assert CURVE.compute_s(larger, 2e14) <= once


def test_shape_of_a_sharded_kernel() -> None:
    """The up projection of 2 sequences over 8 chips: rows stay, columns divide; attention has no shape."""
    workload = build_workload("gpt3_1_5b", {"attention": "fused"})
    block = workload.blocks[1][0].at_batch(2)
    up = block.by_name["ffn_up"]
    tokens, hidden, ffn = up.dims["token"], up.dims["hidden"], up.dims["ffn"]
    assert gemm_shape(up, None, 1) == GemmShape(2 * tokens, ffn, hidden)
    assert gemm_shape(up, "ffn", 8) == GemmShape(2 * tokens, -(-ffn // 8), hidden)
    assert gemm_shape(block.by_name["attention"], None, 1) is None


def test_a_stack_scales_the_matrix_rate() -> None:
    """Under a named software stack large products reach its share of the chip's rate; unknown names change nothing."""
    chip = load_chip("a100_sxm_80")
    rates = {
        stack: KernelTimer(chip, "bf16", load_assumptions("default", {"compute.stack": stack})).matrix_share
        for stack in (None, "fsdp", "nobody")
    }
    assert rates["fsdp"] == pytest.approx(rates[None] * chip.efficiency.stacks["fsdp"])
    assert rates["nobody"] == rates[None] == chip.efficiency.matrix_max
