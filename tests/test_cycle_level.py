"""The cycle-level model: sharing of compute tiles against enumeration, and the original's cycle-level runs.

`OPTIMA` are nanoseconds per layer and sequence computed by an independent model with the same accounting; where a
number of tiles it did not try is better, the figure at its number is the check and the better one must not be worse.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import dfmodel
from dfmodel.mapping.allocation import ArrayWork, cycles_of, slowest_cycles, staircase, tiles_needed
from dfmodel.systems.chip import TileArray

#: Study, tiles of the independent optimum (None: any), its ns per layer, seconds in the original's log.
OPTIMA = [
    ("mapping_existing_8x1", None, 5_345_280, 1212.251846411307),
    ("mapping_dfmodel_4x2", 19, 6_882_755, 800.9758461146134),
    ("mapping_dfmodel_4x2_nooverlap", 19, 13_802_865, 1702.9330580274875),
    ("sweep_df_large", None, 6_350_438, 782.7577896959592),
    ("sweep_kbk_large", None, 10_194_371, 1134.5709898137713),
    ("sweep_kbk_small", None, 29_445_120, 3289.53005604864),
    ("memory_3d_08", None, 409_271_789, 1015813.1234920172),
]

NO_IDLE_SLOTS = TileArray(13, 3, 2, 1e9)


@pytest.mark.parametrize("study,tiles,nanoseconds,logged_s", OPTIMA, ids=[o[0] for o in OPTIMA])
def test_reference_run(study: str, tiles: int | None, nanoseconds: int, logged_s: float) -> None:
    """The independent optimum to its printed digit, never above it over all tile counts, and below the log."""
    best = dfmodel.optimize(study=study)
    assert best.status == "optimal"
    assert best.objective <= logged_s
    layer_ns = (best.metrics["layer_s"] or 0) * 1e9
    if tiles is None:
        assert layer_ns == pytest.approx(nanoseconds, abs=0.5)
        return
    assert layer_ns <= nanoseconds + 0.5
    same = dfmodel.optimize(study=study, settings={"assumptions.partitions.tiles": tiles})
    assert (same.metrics["layer_s"] or 0) * 1e9 <= nanoseconds + 0.5


def test_the_independent_optimum_at_its_own_tile_count() -> None:
    """At 19 tiles of 108 columns the full-overlap mapping study gives the independent figure exactly."""
    r = dfmodel.optimize(study="mapping_dfmodel_4x2", settings={"assumptions.partitions.tiles": 19})
    assert (r.metrics["layer_s"] or 0) * 1e9 == pytest.approx(6_882_755, abs=0.5)


@pytest.mark.parametrize("seed", range(120))
def test_sharing_of_tiles_equals_enumeration(seed: int) -> None:
    """Every way to give lanes x stages to up to three kernels, against the staircase and bisection."""
    rng = random.Random(seed)
    array = NO_IDLE_SLOTS
    works = [
        ArrayWork(rng.randint(1, 60), rng.randint(1, 20), rng.randint(1, 5), rng.random() < 0.6)
        for _ in range(rng.randint(1, 3))
    ]
    options = [
        [
            (across * down, cycles_of(w, array, across, down))
            for across in range(1, array.count + 1)
            for down in (range(1, array.count + 1) if w.systolic else [1])
            if across * down <= array.count
        ]
        for w in works
    ]
    best = min(
        (max(c for _, c in ways) for ways in itertools.product(*options) if sum(t for t, _ in ways) <= array.count),
        default=None,
    )
    stairs = [staircase(w, array) for w in works]
    assert slowest_cycles(stairs, array.count) == best
    values, needed = tiles_needed(stairs, array.count)
    enough = np.nonzero(needed.sum(axis=1) <= array.count)[0]
    assert (values[enough[0]] if len(enough) else None) == best


def test_the_reference_layer_at_cycle_level() -> None:
    """41 kernels, 450/50 GB/s, 128 tiles, free partitions, weights free of traffic: 22.9294 ms in 9 partitions."""
    from test_lattice import FAST_LINKS, ONCE, _layer

    from dfmodel.mapping.lattice import check_certificate, solve_lattice

    cycle = {"compute.model": "tiles", "partitions.maximum": 41, "partitions.halves": False, "partitions.tiles": 128}
    p = _layer({**cycle, "partitions.overlap": "full", **ONCE}, FAST_LINKS)
    found = solve_lattice(p)
    check_certificate(p, found)
    assert found.seconds * 1e3 == pytest.approx(22.9294, abs=5e-5)
    assert found.assignment is not None
    assert len(set(found.assignment)) == 9
    assert found.wall_s < 2
