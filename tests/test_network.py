"""Dimensions, groups and placements: what is refused, strides, every split of every dimension, speed."""

import itertools
import math
import time

import numpy as np
import pytest

from dfmodel.errors import InputError
from dfmodel.systems.collectives import collective
from dfmodel.systems.network import Dimension, Group, Link, Part, distinct_groups, factorizations, place

UNIT = Link("unit", 1.0, 1.0)


def dimension(kind, size, name="d", link=UNIT, **options):
    return Dimension(name, kind, size, link, **options)


def whole(*dimensions):
    return Group(tuple(Part(d, d.size) for d in dimensions))


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: Link("l", 0.0), "link l: bandwidth: 0.0"),
        (lambda: Link("l", 1.0, -1e-6), "link l: latency: -1e-06 s; must be 0 or more"),
        (lambda: dimension("ring", 0), "dimension d: size: 0; must be 1 or more"),
        (lambda: dimension("rings", 4), "dimension d: unknown kind of dimension 'rings'.*'ring'"),
        (lambda: dimension("ring", 4, links_per_chip=1), "links_per_chip: 1; a ring of 4 needs 2 or more"),
        (lambda: dimension("ring", 4, oversubscription=2.0), "oversubscription: a ring has no switch"),
        (lambda: dimension("mesh", 4, in_network_reduction=True), "in_network_reduction: a mesh"),
        (lambda: dimension("switch", 4, pod_size=2), "pod_size: a switch has no pods"),
        (lambda: Part(dimension("ring", 8), 0), "dimension d: size of a group: 0; must be 1 or more"),
        (lambda: Part(dimension("ring", 8), 4, 4), r"4 \(times 4 of more inner degrees\) is larger"),
        (lambda: whole(dimension("ring", 4), dimension("ring", 4)), "dimension named twice"),
        (lambda: place([("tp", (4,)), ("dp", (4,))], [dimension("ring", 8)]), "degree dp: .*at most 2"),
        (lambda: place([("tp", (4, 1))], [dimension("ring", 8)]), "degree tp: 2 factors for 1 dimensions"),
        (lambda: place([("tp", (2,)), ("tp", (2,))], [dimension("ring", 8)]), "degree tp: placed twice"),
    ],
)
def test_impossible_networks_and_groups_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_place_gives_strides():
    x, y = dimension("ring", 8, "x"), dimension("switch", 6, "y")
    placed = place([("tp", (4, 1)), ("pp", (2, 2)), ("dp", (1, 3))], (x, y))
    assert placed["tp"] == Group((Part(x, 4),))
    assert placed["pp"] == Group((Part(x, 2, 4), Part(y, 2)))
    assert placed["dp"] == Group((Part(y, 3, 2),))
    assert str(placed["pp"]) == "2 of x (stride 4) x 2 of y"


def test_factorizations_are_all_and_only_the_splits():
    dimensions = [dimension("ring", 12, "x"), dimension("ring", 4, "y")]
    found = factorizations(dimensions, ["tp", "pp", "dp"])
    splits = [
        [f for f in itertools.product(range(1, d.size + 1), repeat=3) if math.prod(f) == d.size] for d in dimensions
    ]
    expected = {tuple(zip(*pair, strict=True)) for pair in itertools.product(*splits)}
    assert {tuple(map(tuple, row)) for row in found.tolist()} == expected
    assert len(found) == len(expected)
    assert factorizations([dimension("ring", 1)], ["tp"]).tolist() == [[[1]]]
    with pytest.raises(InputError, match="fix some degrees"):
        factorizations([dimension("ring", 2**20, c) for c in "xyz"], list("abcdefgh"))


def test_placements_as_arrays_equal_scalars_and_are_fast():
    """Every placement of five degrees on 8 x 128 chips, priced group by group; a random sample by place()."""
    names = ["tp", "cp", "ep", "pp", "dp"]
    x = dimension("switch", 8, "x", Link("nvlink", 450e9, 1e-6))
    y = dimension("ring", 128, "y", Link("cable", 50e9, 2e-6))
    begin = time.perf_counter()
    factors = factorizations((x, y), names)
    found, index = distinct_groups(factors, 4, (x, y))
    seconds = np.array([collective("all_reduce", 1e9, g).seconds for g in found])[index]
    assert len(factors) == 35 * 330 and time.perf_counter() - begin < 1
    for row in np.random.default_rng(0).integers(0, len(factors), 50):
        groups_of_row = place(list(zip(names, factors[row].tolist(), strict=True)), (x, y))
        assert seconds[row] == collective("all_reduce", 1e9, groups_of_row["dp"]).seconds
        assert math.prod(g.size for g in groups_of_row.values()) == 1024
