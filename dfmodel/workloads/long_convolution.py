"""Convolutions as long as the sequence, by Fourier transforms of twice its length (zero-padded, real).

A transform of n = 2 s real points is one of s complex points and a pass that takes the two halves apart; its spectrum
has s complex numbers in packed form. FLOP (multiply-add counted as two):

- vector: butterflies, 2.5 n log2 n in all (half the 5 n log2 n of a complex transform of n points);
- matrix: products with r x r matrices in ceil(log_r s) stages, 8 r per complex point and stage on the matrix unit,
  twiddles of 6 between stages and 5 for taking apart (FlashFFTConv, arXiv 2311.05908, has the idea).

One pass through memory does as many points as fit on chip twice (what is read and what is written); longer transforms
take ceil(log s / log of that) passes.
"""

from __future__ import annotations

import math
from typing import Literal

from dfmodel.workloads.block_builder import BlockBuilder
from dfmodel.workloads.ssm import CHANNELS

Transform = Literal["vector", "matrix"]

#: Bytes of a complex number of the transforms, fp32.
_COMPLEX_BYTES = 8

_SPECTRUM = "batch token channel part"


def transform_flops(transform: Transform, tokens: int, radix: int) -> float:
    """FLOP of one real transform of 2 x `tokens` points."""
    if transform == "vector":
        return 2.5 * 2 * tokens * math.log2(2 * tokens)
    stages = transform_stages(tokens, radix)
    return tokens * (8.0 * radix * stages + 6.0 * (stages - 1) + 5.0)


def transform_stages(tokens: int, radix: int) -> int:
    """Stages of products with matrices of `radix` for `tokens` complex points."""
    stages, points = 1, radix
    while points < tokens:
        stages, points = stages + 1, points * radix
    return stages


def memory_passes(tokens: int, on_chip_bytes: float | None) -> int:
    """Passes through memory of a transform of `tokens` complex points; None: it fits on chip.

    Raises ValueError where not even four points fit.
    """
    if on_chip_bytes is None:
        return 1
    at_once = int(on_chip_bytes // (2 * _COMPLEX_BYTES))
    if at_once < 4:
        raise ValueError(
            f"room for {4 * 2 * _COMPLEX_BYTES} bytes (four points twice) is the least, got {on_chip_bytes:g}"
        )
    passes, points = 1, at_once
    while points < tokens:
        passes, points = passes + 1, points * at_once
    return passes


def long_convolution(
    g: BlockBuilder, name: str, source: str, taps: str, transform: Transform, radix: int, passes: int
) -> str:
    """Kernels that convolve `source` [batch, token, channel] with `taps` [token, channel]; the name of the result."""
    spectrum = _transform(g, f"fft_{name}", source, CHANNELS, f"{name}_spectrum", _SPECTRUM, transform, radix, passes)
    own = _SPECTRUM.removeprefix("batch ")
    filtered = _transform(
        g, f"fft_{name}_taps", taps, "token channel", f"{name}_taps_spectrum", own, transform, radix, passes
    )
    g.kernel(
        f"multiply_{name}",
        {spectrum: _SPECTRUM, filtered: own},
        {f"{name}_product": _SPECTRUM},
        "vector",
        3.0,  # six per complex number, which is two points here
        op="complex_product",
        tiling="channel",
        unsplittable=frozenset({"part"}),
        backward_flops_per_point=7.0,  # two products, one of them summed over the batch
        dtypes={f"{name}_product": "fp32"},
    )
    return _transform(
        g, f"ifft_{name}", f"{name}_product", _SPECTRUM, f"{name}_convolved", CHANNELS, transform, radix, passes
    )


def _transform(
    g: BlockBuilder,
    name: str,
    source: str,
    walk: str,
    result: str,
    gives: str,
    transform: Transform,
    radix: int,
    passes: int,
) -> str:
    """A transform either way; that of its gradient is the same turned round, and needs nothing saved."""
    tokens = g.extents["token"]
    per_point = transform_flops(transform, tokens, radix) / (tokens * g.extents["part"] * passes)
    g.kernel(
        name,
        {source: walk},
        {result: gives},
        "vector" if transform == "vector" else "matrix",
        per_point,
        op="fourier_transform",
        tiling="channel",
        unsplittable=frozenset({"token", "part"}),
        saves="nothing",
        runs=passes,
        run_bytes_per_point=_COMPLEX_BYTES,  # half a complex number a point, written and read
        backward_flops_per_point=per_point,
        dtypes={result: "fp32"} if "part" in gives else {},
    )
    return result
