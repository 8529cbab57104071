"""What collectives achieve of a link, fitted to the `calibrate` rows of collectives.csv alone.

Each fit is a link as one kind of dimension, some operations and algorithms, and the rows that show them.
Efficiency, ramp and start are those with the least mean absolute logarithm of predicted over measured time: of
messages above 1 MB, and with a tenth of the weight of the smaller ones, which show the start. A pattern search
from several starting points finds them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dfmodel.catalog_files import Dirs
from dfmodel.systems.catalog import load_link
from dfmodel.systems.network import Achieved, Link
from dfmodel.validation.collectives import COLUMNS, LARGE_BYTES, TABLE, Setup, setup_of
from dfmodel.validation.files import load_rules, read_table
from dfmodel.validation.pattern_search import descend

#: Operations whose transfers all chips make together; all-to-all and point-to-point achieve other shares.
TOGETHER = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather")

#: Weight of messages of at most LARGE_BYTES beside the larger ones.
SMALL_WEIGHT = 0.1

#: Where the search begins, every combination.
STARTS = {"efficiency": (0.7, 0.85), "ramp_bytes": (1e6, 8e6, 4e7), "start_s": (1e-5, 4e-5)}

#: Significant digits that are kept: the rows do not support more.
DIGITS = 3


@dataclass(frozen=True)
class Fit:
    """One entry of a link's `achieved`: what it covers, the ids of its rows, and which values they determine.

    `like` names the entry (by position in FITS) whose values the others are; without one they are none: a row of large
    messages only says nothing of ramp and start.
    """

    link: str
    covers: Achieved
    rows: tuple[str, ...]
    determines: tuple[str, ...] = ("efficiency", "ramp_bytes", "start_s")
    like: int | None = None


def _covers(kinds: Sequence[str], operations: Sequence[str] = (), algorithms: Sequence[str] = ()) -> Achieved:
    return Achieved(1.0, 0.0, 0.0, tuple(kinds), tuple(operations), tuple(algorithms))


#: Every fit; a name that ends in "*" stands for all rows that begin so.
FITS = (
    Fit("nvlink3", _covers(["switch"], TOGETHER), ("nccl_A100x8_ar_*", "gtc25_all_reduce_DGX_A100_node")),
    Fit("nvlink3", _covers(["switch"], ["all_to_all"]), ("gtc25_all_to_all_DGX_A100_node",), ("efficiency",), 0),
    Fit("nvlink3", _covers(["switch"], ["point_to_point"]), ("p2p_A100-SXM-80GB",), ("efficiency",)),
    Fit("nvlink3", _covers(["fully_connected"]), ("llmcompass_A100x4_ar_*",)),
    Fit(
        "nvlink4",
        _covers(["switch"], (), ["in_network"]),
        (*(f"bench_H200x8_ar_{2**n}" for n in range(21, 35)), "nccl_H200x8_all_reduce_NVLS_16G"),
    ),
    Fit(
        "nvlink4",
        _covers(["switch"], TOGETHER),
        (*(f"bench_H200x8_ar_{2**n}" for n in range(15, 21)), "nccl_H200x8_all_gather_Ring_16G"),
        ("efficiency", "start_s"),
        0,
    ),
)


def fit_all(folder: Path | None = None, dirs: Dirs = ()) -> list[tuple[Fit, Achieved, list[str]]]:
    """Every fit with its values and the ids of the rows that set them, in order."""
    rules = load_rules(TABLE)
    rows = {r["id"]: r for r in read_table(TABLE, folder, COLUMNS) if r["use"] == "calibrate"}
    found: list[tuple[Fit, Achieved, list[str]]] = []
    for fit in FITS:
        chosen = [i for i in rows if any(i == n or (n.endswith("*") and i.startswith(n[:-1])) for n in fit.rows)]
        setups = [_named(setup_of(rows[i], rules, dirs), fit) for i in chosen]
        start = found[fit.like][1] if fit.like is not None else Achieved(1.0)
        values = _search(fit, load_link(fit.link, dirs), setups, start)
        found.append((fit, values, chosen))
    return found


def _named(setup: Setup, fit: Fit) -> Setup:
    """The setup with the algorithm the fit is about, or with rings where its operations are rings' and a row leaves
    the choice open."""
    if fit.covers.algorithms:
        return replace(setup, algorithm=fit.covers.algorithms[0])
    return setup


def _search(fit: Fit, link: Link, setups: Sequence[Setup], start: Achieved) -> Achieved:
    """Pattern search over the values the fit determines, logarithms of ramp and start, rounded at the end."""
    large = np.array([s.bytes > LARGE_BYTES for s in setups])
    weights = np.where(large, 1.0, SMALL_WEIGHT if large.any() else 1.0)

    def made(point: Mapping[str, float]) -> Achieved:
        return replace(
            fit.covers,
            efficiency=point.get("efficiency", start.efficiency),
            ramp_bytes=point.get("ramp_bytes", start.ramp_bytes),
            start_s=point.get("start_s", start.start_s),
        )

    def misfit(point: Mapping[str, float]) -> float:
        if not 0.1 <= point.get("efficiency", 0.5) <= 1:
            return math.inf
        changed = replace(link, achieved=(made(point),))
        logs = [abs(math.log(s.on_link(changed).predicted_s() / s.seconds)) for s in setups]
        return float(np.average(logs, weights=weights))

    best: tuple[float, dict[str, float]] | None = None
    for values in itertools.product(*(STARTS[k] for k in fit.determines)):
        point = dict(zip(fit.determines, values, strict=True))
        found = descend(misfit, point)
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None
    return made({k: float(f"{v:.{DIGITS}g}") for k, v in best[1].items()})


def catalog_entry(values: Achieved, rows: Sequence[str]) -> dict[str, Any]:
    """The entry as the link's file holds it."""
    stated: dict[str, Any] = {"kinds": list(values.kinds)}
    if values.operations:
        stated["operations"] = list(values.operations)
    if values.algorithms:
        stated["algorithms"] = list(values.algorithms)
    return {
        **stated,
        "efficiency": values.efficiency,
        "ramp": f"{values.ramp_bytes / 1e6:.{DIGITS}g} MB",
        "start": f"{values.start_s * 1e6:.{DIGITS}g} us",
        "status": "calibrated",
        "source": f"{len(rows)} calibrate rows of validation/data/collectives.csv: {rows[0]}"
        + (f" to {rows[-1]}" if len(rows) > 1 else ""),
    }
