"""Costs of every placement as arrays: equal to the scalar formulas, and thousands in milliseconds."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dfmodel.systems.catalog import load_system
from dfmodel.systems.collectives import PhysicalCollectives
from dfmodel.systems.network import factorizations, place
from dfmodel.systems.placements import placement_seconds

DEGREES = ("tensor", "context", "expert", "pipeline", "data")
OPS = ("all_reduce", "all_gather", "all_to_all", "point_to_point", "reduce_scatter")


@pytest.mark.parametrize("name", ["dgx", "tpu_v4", "dgx_superpod", "frontier", "fugaku"])
def test_arrays_equal_the_scalar_formulas(name: str) -> None:
    """Random placements and messages: the array has what `place` and the scalar model give."""
    smaller = {"frontier": {"group": 16, "groups": 8}, "fugaku": {f"topology.{d}.size": 6 for d in "xyz"}}
    system = load_system(name, smaller.get(name, {}))
    rng = np.random.default_rng(7)
    every = factorizations(system.dimensions, DEGREES)
    rows = every[rng.choice(len(every), 200, replace=False)]
    messages = rng.choice([1e4, 1e6, 3e8], len(rows))
    model = PhysicalCollectives(0.8)
    for degree, op in enumerate(OPS):
        found = placement_seconds(op, messages, rows, degree, system.dimensions, model)
        for i in rng.choice(len(rows), 25, replace=False):
            groups = place(list(zip(DEGREES, rows[i], strict=True)), system.dimensions)
            assert found[i] == pytest.approx(model(op, float(messages[i]), groups[DEGREES[degree]]), rel=1e-12)


def test_thousands_of_placements_in_milliseconds() -> None:
    """All 4,410 placements of five degrees on 256 chips: about ten milliseconds per collective once the few distinct
    groups are known (a wide limit here)."""
    system = load_system("dgx")
    factors = factorizations(system.dimensions, DEGREES)
    assert len(factors) == 4410
    model = PhysicalCollectives(0.8)
    placement_seconds("all_reduce", 1e7, factors, 0, system.dimensions, model)
    began = time.perf_counter()
    placement_seconds("all_reduce", 1e7, factors, 0, system.dimensions, model)
    assert time.perf_counter() - began < 0.2
