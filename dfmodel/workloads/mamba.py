"""Mamba language models: blocks of projections, a short convolution, a selective scan and a gate.

Gu and Dao, arXiv 2312.00752, figure 3; sizes and parameters as in the published checkpoints.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dfmodel.workloads import layers
from dfmodel.workloads.block_builder import BlockBuilder
from dfmodel.workloads.graph import Block, Workload
from dfmodel.workloads.layers import HIDDEN, VECTOR_FLOPS
from dfmodel.workloads.model_file import PositiveInt
from dfmodel.workloads.scan import Scan, selective_scan
from dfmodel.workloads.ssm import CHANNELS, SequenceModel, sequence_workload, short_convolution


class MambaModel(SequenceModel):
    """A Mamba model: `expand` x `hidden` channels of `state` numbers each."""

    kind: Literal["mamba"] = "mamba"
    taps: PositiveInt = 4
    expand: PositiveInt = 2
    state: PositiveInt = 16
    rank: PositiveInt | None = Field(None, description="rank of the projection to steps; default: hidden / 16, up")

    @property
    def channels(self) -> int:
        return self.expand * self.hidden

    @property
    def step_rank(self) -> int:
        return self.rank or math.ceil(self.hidden / 16)


class MambaSettings(BaseModel):
    """What a run may set of workload `mamba`, beside any field of its model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = "mamba_2_8b"
    sequence: PositiveInt | None = None
    batch: PositiveInt = 512
    dtype: str = "bf16"
    mode: Literal["training", "forward"] = "training"
    scan: Scan = "hardware"


def mamba_workload(model: MambaModel, run: MambaSettings) -> Workload:
    """Training (forward + backward) or a forward pass of `model`; the scan is done as `run.scan` says."""
    extents = {
        "channel": model.channels,
        "state": model.state,
        "rank": model.step_rank,
        "tap": model.taps,
    }
    return sequence_workload(
        "mamba",
        model,
        "rmsnorm",
        extents,
        lambda g: _block(g, run.scan),
        sequence=run.sequence or model.default_sequence,
        batch=run.batch,
        training=run.mode == "training",
        dtype=run.dtype,
        facts={"scan": run.scan},
    )


def _block(g: BlockBuilder, scan: Scan) -> Block:
    g.input("x", HIDDEN)
    layers.norm(g, "norm", "x", "rmsnorm")
    layers.linear(g, "in", "norm_out", HIDDEN, "hidden channel", CHANNELS)
    layers.linear(g, "in_gate", "norm_out", HIDDEN, "hidden channel", CHANNELS)
    (mixed,) = short_convolution(g, "convolution", "in_out", ["mixed"], "silu")
    layers.linear(g, "step_low", mixed, CHANNELS, "channel rank", "batch token rank")
    layers.linear(g, "b", mixed, CHANNELS, "channel state", "batch token state")
    layers.linear(g, "c", mixed, CHANNELS, "channel state", "batch token state")
    layers.linear(g, "step", "step_low_out", "batch token rank", "rank channel", CHANNELS, bias=True)
    scanned = selective_scan(g, scan, "step_out", mixed, "b_out", "c_out")
    g.kernel(
        "gate",
        {scanned: CHANNELS, "in_gate_out": CHANNELS},
        {"gate_out": CHANNELS},
        "vector",
        VECTOR_FLOPS["silu"] + VECTOR_FLOPS["gate"],
        op="silu_gate",
    )
    layers.linear(g, "out", "gate_out", CHANNELS, "channel hidden", HIDDEN)
    layers.residual(g, "residual", "x", "out_out")
    return g.block("residual_out")
