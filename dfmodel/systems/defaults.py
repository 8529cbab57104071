"""What fills a chip's file that states the four numbers a new chip needs, and little else.

The four are one matrix peak, the memory's capacity and bandwidth, and the power. Everything filled here is marked
assumed, and so listed in every report that uses the chip. A dataflow chip must state its on-chip memory as well: there
it decides the partitioning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfmodel.units import convert, format_quantity

#: Keys that are filled as they stand. On-chip memory: the order of an H100's second-level cache.
DEFAULTS: dict[str, Any] = {"kind": "gpu", "execution": "kernel_by_kernel"}
DEFAULT_SRAM = "64 MiB"
DEFAULT_FUSIONS = ("attention", "epilogue", "elementwise")

#: fp32 vector rate as a share of the 16-bit matrix rate: A100 1/16, H100 1/15, MI300X 1/8, B200 1/30.
VECTOR_SHARE = 1 / 16

#: Width of the types by which a matrix rate is brought to 16 bits.
_BITS = {"fp64": 64, "fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "fp4": 4}


def with_defaults(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A chip's data with what it leaves out, and the keys that were filled; numbers among them get the status
    assumed. Data whose peaks cannot be read is left to the schema to explain."""
    filled: dict[str, Any] = {k: v for k, v in DEFAULTS.items() if k not in data}
    result = {**data, **filled}
    by_kernel = result["execution"] == "kernel_by_kernel"
    if by_kernel and "sram" not in data:
        filled["sram"] = DEFAULT_SRAM
    if "kind" in filled and by_kernel and "fusions" not in data:
        filled["fusions"] = list(DEFAULT_FUSIONS)
    vector = _vector_rate(data)
    result |= filled
    names = list(filled)
    if vector is not None:
        result["peak"] = {**data["peak"], "vector": {"fp32": format_quantity(vector, "flop_rate", 12)}}
        names.append("peak.vector.fp32")
    numbers = {name: "assumed" for name in names if name in ("sram", "peak.vector.fp32")}
    status = data.get("status", {})
    if numbers and isinstance(status, Mapping):
        result["status"] = {**status, **numbers}
    return result, tuple(names)


def _vector_rate(data: Mapping[str, Any]) -> float | None:
    """The fp32 vector rate assumed of a chip that states matrix peaks alone, None where it is not needed or known."""
    peak = data.get("peak")
    if data.get("tiles") is not None or not isinstance(peak, Mapping) or "vector" in peak:
        return None
    matrix = peak.get("matrix")
    if not isinstance(matrix, Mapping):
        return None
    rates = []
    for dtype, stated in matrix.items():
        try:
            rates.append(convert(stated, "flop_rate") * _BITS[dtype] / 16)
        except (ValueError, KeyError):
            return None
    return VECTOR_SHARE * max(rates) if rates else None
