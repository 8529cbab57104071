"""Hyena language models: projections, short convolutions, gated long convolutions with implicit filters, FFN.

Poli et al., arXiv 2302.10866, and its implementation (HazyResearch/safari): an operator of order n has n + 1
projections and n - 1 long convolutions, whose filters a small network makes from positions, once per pass and not per
sequence. Left out: trained frequencies of its sines, 64 parameters a layer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from dfmodel.errors import InputError
from dfmodel.units import convert
from dfmodel.workloads import layers
from dfmodel.workloads.block_builder import BlockBuilder
from dfmodel.workloads.graph import Block, Workload
from dfmodel.workloads.layers import HIDDEN, VECTOR_FLOPS
from dfmodel.workloads.long_convolution import Transform, long_convolution, memory_passes
from dfmodel.workloads.model_file import PositiveInt
from dfmodel.workloads.ssm import CHANNELS, SequenceModel, sequence_workload, short_convolution

#: FLOP per element: sine of a scaled argument; window exp(-t d) and its product with the filter.
_SINE, _WINDOW = 2.0, 3.0


class HyenaModel(SequenceModel):
    """A Hyena model. `filter_width` and `filter_layers` are those of the network that makes the filters."""

    kind: Literal["hyena"] = "hyena"
    taps: PositiveInt = 3
    order: Annotated[int, Field(ge=2, strict=True)] = 2
    ffn: PositiveInt
    filter_features: PositiveInt = Field(33, description="features of a position the filter network reads")
    filter_width: PositiveInt = 64
    filter_layers: Annotated[int, Field(ge=2, strict=True)] = 4


class HyenaSettings(BaseModel):
    """What a run may set of workload `hyena`, beside any field of its model.

    `on_chip` is the room for points of a transform; left out, a run takes its chip's SRAM.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = "hyena_1_3b"
    sequence: PositiveInt | None = None
    batch: PositiveInt = 512
    dtype: str = "bf16"
    mode: Literal["training", "forward"] = "training"
    fft: Transform = "vector"
    radix: Annotated[int, Field(ge=2, le=256, strict=True)] = 32
    on_chip: str | None = None


def hyena_workload(model: HyenaModel, run: HyenaSettings) -> Workload:
    """Training (forward + backward) or a forward pass of `model`. Raises InputError for an unusable `on_chip`."""
    sequence = run.sequence or model.default_sequence
    try:
        room = None if run.on_chip is None else convert(run.on_chip, "bytes")
        passes = memory_passes(sequence, room)
    except ValueError as error:
        raise InputError(f"workload.on_chip: {error}, got {run.on_chip!r}") from None
    extents = {
        "channel": model.hidden,
        "part": 2,
        "tap": model.taps,
        "ffn": model.ffn,
        "feature": model.filter_features,
        "width": model.filter_width,
        "inner": model.filter_width,
        "layer": max(1, model.filter_layers - 2),
        "branch": model.order + 1,
    }
    return sequence_workload(
        "hyena",
        model,
        "layernorm",
        extents,
        lambda g: _Hyena(g, model, run, passes).block(),
        sequence=sequence,
        batch=run.batch,
        training=run.mode == "training",
        dtype=run.dtype,
        facts={"fft": run.fft, "fft_passes": passes, **({"radix": run.radix} if run.fft == "matrix" else {})},
    )


class _Hyena:
    """Builds one block of a model."""

    def __init__(self, g: BlockBuilder, model: HyenaModel, run: HyenaSettings, passes: int) -> None:
        self.g, self.model, self.run, self.passes = g, model, run, passes

    def block(self) -> Block:
        g = self.g
        g.input("x", HIDDEN)
        layers.norm(g, "norm1", "x", "layernorm")
        mixed = self._operator("norm1_out")
        layers.linear(g, "out", mixed, CHANNELS, "channel hidden", HIDDEN, bias=True)
        layers.residual(g, "residual1", "x", "out_out")
        layers.norm(g, "norm2", "residual1_out", "layernorm")
        inner = "batch token ffn"
        layers.linear(g, "ffn_up", "norm2_out", HIDDEN, "hidden ffn", inner, bias=True)
        g.kernel(
            "activation",
            {"ffn_up_out": inner},
            {"activation_out": inner},
            "vector",
            VECTOR_FLOPS["gelu"],
            op="gelu",
        )
        layers.linear(g, "ffn_down", "activation_out", inner, "ffn hidden", HIDDEN, bias=True)
        layers.residual(g, "residual2", "residual1_out", "ffn_down_out")
        return g.block("residual2_out")

    def _operator(self, source: str) -> str:
        """Projections and short convolutions, then a gate before every long convolution and one after the last."""
        v, *gates = self._projections(source)
        v = self._gate("product1", {v: CHANNELS, gates[0]: CHANNELS})
        for i, gate in enumerate(gates[1:], 1):
            taps = self._filter(i)
            convolved = long_convolution(self.g, f"long{i}", v, taps, self.run.fft, self.run.radix, self.passes)
            # the skip of the convolution belongs to the gate that follows
            skip = self.g.weight(f"w_skip{i}", "channel")
            v = self._gate(f"product{i + 1}", {convolved: CHANNELS, v: CHANNELS, gate: CHANNELS, skip: "channel"})
        return v

    def _projections(self, source: str) -> list[str]:
        """v and the gates in the order of their use: one product, one convolution of every channel of every branch."""
        g = self.g
        walk = "batch token branch channel"
        layers.linear(g, "in", source, HIDDEN, "hidden branch channel", walk, bias=True)
        results = ["v", *(f"gate{i}" for i in reversed(range(self.model.order)))]
        return short_convolution(g, "short", "in_out", results, None, branches=True)

    def _gate(self, name: str, operands: dict[str, str]) -> str:
        flops = 1.0 if len(operands) == 2 else 3.0
        self.g.kernel(name, operands, {f"{name}_out": CHANNELS}, "vector", flops, op="gate")
        return f"{name}_out"

    def _filter(self, i: int) -> str:
        """Taps of one long convolution, by one kernel: the network of positions, its sines and the decaying window.

        The layers but the last are those of every convolution. The backward pass does them again; positions have no
        gradient.
        """
        g, m = self.g, self.model
        features, width, inner = m.filter_features, m.filter_width, m.filter_layers - 2
        first, rest = 2.0 * features * width, 2.0 * inner * width**2 + 2.0 * width * m.hidden
        pointwise = _SINE * width * (inner + 1) + _WINDOW * m.hidden
        operands = {g.constant("positions", "token feature"): "token feature"}
        shapes = {
            "w_filter_first": "feature width",
            "b_filter_first": "width",
            **({"w_filter_inner": "layer width inner", "b_filter_inner": "layer width"} if inner else {}),
            f"w_filter_last{i}": "width channel",
        }
        operands |= {g.weight(name, dims): dims for name, dims in shapes.items()}
        own = frozenset({"feature", "width", "inner", "layer"} & set(" ".join(shapes.values()).split()))
        forward = first + rest + pointwise
        g.kernel(
            f"filter{i}",
            operands,
            {f"filter{i}_out": "token channel"},
            "matrix",
            forward / m.hidden,
            op="implicit_filter",
            gathered=own,
            unsplittable=own,
            backward_flops_per_point=(forward + 2.0 * pointwise + first + 2.0 * rest) / m.hidden,
            backward_repeated_flops_per_point=forward / m.hidden,
        )
        return f"filter{i}_out"
