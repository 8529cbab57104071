"""The original's FFT graph: two matrix products of n x K and K x n points (n: the length's root), and an all-to-all.

K = int(4 r log2 n / log2 r) for radix r. A chip holds ceil(n / chips) columns. The all-to-all moves n^2 words between
all c chips in messages of n^2 / c^2 words: (c / 2)^2 of them cross the middle of the outermost dimension and of every
ring, of an inner switch as many of its own chips. They cross over X / 4 links of a switch of X, and over as many links
of a ring as the product of the other dimensions.
Source: DFModel artifact, generator/generate_FFT.py at 04f93d5; the all-to-all as its logs have it.
"""

from __future__ import annotations

import math

from dfmodel.errors import InputError
from dfmodel.mapping.families import FamilyRun
from dfmodel.mapping.kernel_chain import ChainKernel, chain_result
from dfmodel.mapping.result import Result
from dfmodel.systems.system import System
from dfmodel.workloads.fft import FftSettings
from dfmodel.workloads.graph import DTYPE_BYTES


def graph_result(run: FamilyRun, settings: FftSettings) -> Result:
    """The graph's iteration. Raises InputError where length or radix are not stated."""
    radix = run.request.radix or settings.radix
    problems = [
        f"workload.{name}: the original's graph needs it stated"
        for name, value in (("length", settings.length), ("radix", radix))
        if value is None
    ]
    given = [k for k in ("grid_rows", "grid_columns", "n1") if getattr(run.request, k) is not None]
    problems += [f"plan.{k}: the original's graph lies on the dimensions as they are; remove it" for k in given]
    if problems:
        raise InputError(problems)
    assert settings.length is not None and radix is not None
    chips, word = run.system.chips, DTYPE_BYTES[settings.dtype]
    root = math.sqrt(settings.length)
    points = int(root)
    inner = int(4 * math.log2(root) / math.log2(radix) * radix)
    flops = 2.0 * points * inner * math.ceil(points / chips)
    output = points * math.ceil(points / chips) * word
    exchange = root * root * word / chips**2 * s_per_message_byte(run.system)
    whole = 2.0 * root * inner * root
    kernels = [
        ChainKernel("FFT_1", flops, output, 0.0, whole, ""),
        ChainKernel("FFT_2", flops, output, exchange, whole, "all-to-all of all points"),
    ]
    return chain_result(run, kernels, {"radix": radix, "n1": points}, settings.length * word / chips)


def s_per_message_byte(system: System) -> float:
    """Seconds per byte of the messages that cross the middle of the slowest dimension."""
    chips = system.chips
    found, inside = 0.0, 1
    for d in system.dimensions:
        inside *= d.size
        if d.size == 1:
            continue
        ring = d.kind in ("ring", "mesh")
        crossing = ((chips if ring or inside == chips else inside) / 2) ** 2
        links = chips / d.size if ring else d.size**2 / 4 if d.kind == "fully_connected" else d.size / 4
        found = max(found, crossing / (d.link.bytes_per_s * links))
    return found
