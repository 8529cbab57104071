"""Dense or sparse: what the ratios of a chip's matrix peaks tell.

Vendors print peaks with 2:4 sparsity beside dense ones, twice as large and often in larger type. Halving the width of
a number doubles the dense rate at most, so a narrower type above 2.1 times the next wider one is taken for sparse;
below 0.95 times it the two are taken for exchanged. Chips that break the rule say so under `dense`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dfmodel.units import convert, format_quantity

#: A dense peak of the narrower type is between these multiples of the wider one's.
LEAST_RATIO, MOST_RATIO = 0.95, 2.1

#: Each narrow type and the wider ones it is compared with; the first that the chip states counts.
_WIDER = {
    "fp4": ("fp8", "int8"),
    "fp8": ("bf16", "fp16"),
    "int8": ("bf16", "fp16"),
    "bf16": ("tf32",),
    "fp16": ("tf32",),
}


def sparse_peaks(data: Mapping[str, Any]) -> Iterator[str]:
    """One line "peak.matrix.fp8: what is wrong" per matrix peak of a chip's file that cannot be a dense one.

    Values that are no rates are passed over: the schema reports them.
    """
    peak = data.get("peak")
    matrix = peak.get("matrix") if isinstance(peak, Mapping) else None
    known = data.get("dense")
    dense = known if isinstance(known, Mapping) else {}
    rates = {k: rate for k, v in matrix.items() if (rate := _rate(v))} if isinstance(matrix, Mapping) else {}
    for narrow, wider in _WIDER.items():
        wide = next((w for w in wider if w in rates), None)
        if narrow not in rates or wide is None or narrow in dense:
            continue
        ratio = rates[narrow] / rates[wide]
        if ratio > MOST_RATIO:
            half = format_quantity(rates[narrow] / 2, "flop_rate")
            yield (
                f"peak.matrix.{narrow}: {ratio:.3g} times {wide}, taken for a peak with sparsity (dense is at most "
                f"{MOST_RATIO:g} times); give the dense one ({half}, if this is 2:4 sparse), or name the document that "
                f"calls it dense under dense.{narrow}"
            )
        elif ratio < LEAST_RATIO:
            yield (
                f"peak.matrix.{narrow}: {ratio:.3g} times {wide}, below {LEAST_RATIO:g} times: are the two exchanged, "
                f"or is {wide} a peak with sparsity? If not, say so under dense.{narrow}"
            )


def _rate(value: object) -> float | None:
    try:
        return convert(value, "flop_rate")
    except ValueError:
        return None
