"""What collectives cost on groups of chips: published numbers, laws on random groups, names and models.

Protects: no collective beats the cut its group spans; more bandwidth, less latency or fewer bytes never slow;
arrays equal scalars; a group pays for the links it really has. The formulas of each algorithm are checked by
simulation in test_collective_algorithms.py.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmodel.errors import InputError, UnknownNameError
from dfmodel.systems.algorithms import ALGORITHMS
from dfmodel.systems.collectives import (
    COLLECTIVES,
    bus_bytes_per_s,
    collective,
    collective_model,
    collective_seconds,
    legal_algorithms,
)
from dfmodel.systems.network import Achieved, Dimension, Group, Link, Part, place
from dfmodel.systems.one_direction import OneDirectionCollectives

UNIT = Link("unit", 1.0, 1.0)


def dimension(kind, size, name="d", link=UNIT, **options):
    return Dimension(name, kind, size, link, **options)


def whole(*dimensions):
    return Group(tuple(Part(d, d.size) for d in dimensions))


# --- published and derived numbers


def test_ring_of_eight_gives_the_published_times():
    """bf16[2048, 8192] on a bidirectional ring of 8, 45 GB/s per link and direction (the JAX scaling book,
    sharding chapter: 90 GB/s both ways). Each chip holds an eighth of the array for the all-to-all."""
    link = Link("ici", 45e9)
    array = 2048 * 8192 * 2
    eight = whole(dimension("ring", 8, link=link))
    assert collective("all_gather", array, eight).seconds * 1e6 == pytest.approx(326.2, abs=0.05)
    assert collective("all_reduce", array, eight).seconds * 1e6 == pytest.approx(652.4, abs=0.05)
    assert collective("all_to_all", array / 8, eight).seconds * 1e6 == pytest.approx(93.2, abs=0.05)
    many = whole(dimension("ring", 1_000_000, link=link))
    assert collective("all_gather", array, many).seconds * 1e6 == pytest.approx(372.8, abs=0.05)
    assert collective("all_reduce", array, many).seconds * 1e6 == pytest.approx(745.7, abs=0.05)


def test_mesh_all_to_all_takes_twice_the_ring():
    ring, mesh = (whole(dimension(kind, 8)) for kind in ("ring", "mesh"))
    assert collective("all_to_all", 1e9, mesh).seconds == pytest.approx(
        2 * collective("all_to_all", 1e9, ring).seconds, rel=1e-6
    )


def test_in_network_reduction_moves_more_than_the_message_once():
    """m (1 + 1/n) over the bandwidth, not m; used where it pays, only where the switch has it."""
    link = Link("nvlink4", 25e9, 1e-6)
    plain = whole(dimension("switch", 8, link=link, links_per_chip=18))
    sharp = whole(dimension("switch", 8, link=link, links_per_chip=18, in_network_reduction=True))
    cost = collective("all_reduce", 16e9, sharp, efficiency=0.8)
    assert cost.algorithm == "in_network"
    assert cost.seconds == pytest.approx(16e9 * 1.125 / (0.8 * 450e9), rel=1e-4)
    with pytest.raises(InputError, match=r"in_network.*cannot do all_reduce.*halving_doubling"):
        collective("all_reduce", 16e9, plain, algorithm="in_network")


def equal_injection(size):
    """Ring, torus, switch and fully connected, each chip sending 360 GB/s in all."""
    total, latency = 360e9, 1e-6
    side = {8: (("x", 2), ("y", 4)), 64: (("x", 8), ("y", 8))}[size]
    return {
        "ring": whole(dimension("ring", size, link=Link("l", total / 2, latency))),
        "torus": whole(*(dimension("ring", s, axis, Link("l", total / 4, latency)) for axis, s in side)),
        "switch": whole(dimension("switch", size, link=Link("l", total, latency))),
        "full": whole(dimension("fully_connected", size, link=Link("l", total / (size - 1), latency))),
    }


@pytest.mark.parametrize("size", [8, 64])
def test_equal_chips_on_other_topologies_differ_where_they_should(size):
    groups = equal_injection(size).values()
    for op, message in (("all_to_all", 1e6), ("all_reduce", 1e3)):
        seconds = [collective(op, message, g).seconds for g in groups]
        assert all(abs(a / b - 1) > 0.01 for a, b in itertools.combinations(seconds, 2)), (op, seconds)
    large = [collective("all_reduce", 1e15, g).seconds for g in groups]
    assert large == pytest.approx([2 * (size - 1) / size * 1e15 / 360e9] * 4, rel=1e-6)


def test_a_group_across_nodes_pays_for_the_link_between_nodes():
    """Mesh (2, 8): two ranks in different nodes never use the links inside one."""
    inside = dimension("switch", 8, "inside", Link("fast", 450e9))
    between = dimension("switch", 2, "between", Link("slow", 50e9))
    placed = place([("tp", (8, 1)), ("dp", (1, 2))], (inside, between))
    assert collective("all_reduce", 1e9, placed["dp"]).seconds == pytest.approx(1e9 / 50e9)
    both = Group((Part(inside, 8), Part(between, 2)))
    inner = collective("all_reduce", 1e9, Group((Part(inside, 8),))).seconds
    outer = 1e9 / 8 / 50e9
    in_turn = collective("all_reduce", 1e9, both, algorithm="hierarchical")
    assert in_turn.seconds == pytest.approx(inner + outer)
    overlapped = collective("all_reduce", 1e9, both)
    assert overlapped.algorithm == "pipelined"
    assert overlapped.seconds == pytest.approx(max(inner, outer) + min(inner, outer) / overlapped.pieces)


def test_a_point_to_point_message_waits_for_the_slowest_boundary():
    """Stages of a pipeline over 4 chips of each of 2 nodes: one boundary lies between the nodes."""
    inside = dimension("ring", 8, "inside", Link("fast", 100e9, 1e-6))
    between = dimension("switch", 2, "between", Link("slow", 10e9, 5e-6))
    group = Group((Part(inside, 4, 2), Part(between, 2)))
    cost = collective("point_to_point", 1e9, group)
    assert cost.seconds == 5e-6 + 1e9 / 10e9
    assert [p.dimension for p in cost.phases] == ["between"]
    # Two pipelines interleave on the ring: half of the bandwidth, two hops.
    assert collective("point_to_point", 1e9, Group(group.parts[:1])).seconds == 2e-6 + 1e9 / 50e9


def test_pods_and_what_joins_them_do_not_add_bandwidth():
    """A lightly oversubscribed tree: a chip's own link, not the pods', bounds the all-to-all."""
    tree = dimension("fat_tree", 8, oversubscription=1.2, pod_size=4)
    assert collective("all_to_all", 1e9, whole(tree)).seconds == pytest.approx(7 / 8 * 1e9, rel=1e-6)
    heavy = dimension("fat_tree", 8, oversubscription=3.0, pod_size=4)
    assert collective("all_to_all", 1e9, whole(heavy)).seconds == pytest.approx(3 * 4 / 8 * 1e9, rel=1e-6)


def test_a_strided_group_shares_its_links():
    """Two interleaved rings of 4 share a ring of 8: half of the bandwidth, twice the hops."""
    link = Link("l", 100e9, 1e-6)
    outer = Group((Part(dimension("ring", 8, link=link), 4, 2),))
    half = whole(dimension("ring", 4, link=Link("l", 50e9, 2e-6)))
    for op in COLLECTIVES:
        assert collective(op, 1e8, outer).seconds == pytest.approx(collective(op, 1e8, half).seconds)


# --- laws, on random groups


achieved = st.builds(
    Achieved,
    st.sampled_from([0.5, 0.8, 1.0]),
    st.sampled_from([0.0, 1e5, 1e7]),
    st.sampled_from([0.0, 1e-5, 5e-5]),
    operations=st.sampled_from([(), ("all_to_all",), ("all_reduce", "all_gather")]),
    algorithms=st.sampled_from([(), ("ring",), ("direct", "halving_doubling")]),
)


@st.composite
def groups(draw, kinds=("ring", "mesh", "switch", "fully_connected", "fat_tree")):
    parts = []
    for position in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(kinds))
        factors = draw(st.lists(st.integers(1, 4), min_size=3, max_size=3))
        size, stride = max(2, factors[0]), factors[1]
        total = size * stride * factors[2]
        options = {}
        if kind == "fat_tree":
            options = {
                "oversubscription": draw(st.sampled_from([1.0, 1.2, 2.0, 5.0])),
                "pod_size": draw(st.integers(1, 8)),
            }
        link = Link(
            "l",
            draw(st.sampled_from([1e9, 25e9, 450e9])),
            draw(st.sampled_from([0.0, 1e-6, 5e-6])),
            achieved=tuple(draw(st.lists(achieved, max_size=2))),
        )
        parts.append(Part(dimension(kind, total, f"d{position}", link, **options), size, stride))
    return Group(tuple(parts))


messages = st.floats(1.0, 1e12)
operations = st.sampled_from(COLLECTIVES)
many = settings(max_examples=150, deadline=None)


def out_bytes_per_s(part):
    """What one member can send into its part, from the wiring alone."""
    d = part.dimension
    if d.kind == "fully_connected":
        return (part.size - 1) * d.link.bytes_per_s
    shared = part.stride if d.kind in ("ring", "mesh") else 1
    return (2 if d.kind in ("ring", "mesh") else 1) * d.link.bytes_per_s / shared


def middle_bytes_per_s(part):
    """What crosses from the lower half of a part's members to the upper, in one line of the group."""
    d, half = part.dimension, part.size // 2
    if d.kind in ("ring", "mesh"):
        closed = d.kind == "ring" and part.size * part.stride == d.size
        return (2 if closed else 1) * d.link.bytes_per_s / part.stride
    if d.kind == "fully_connected":
        return half * (part.size - half) * d.link.bytes_per_s
    return half * d.link.bytes_per_s


@many
@given(groups(), messages)
def test_no_collective_beats_the_cut_it_spans(group, message):
    """Blocks of the inner dimensions, and halves of every dimension: what must cross over what can."""
    n = group.size
    needs = []
    for inner in range(len(group.parts)):
        block = math.prod(p.size for p in group.parts[:inner])
        away = (n - block) / n
        outward = block * sum(map(out_bytes_per_s, group.parts[inner:]))
        needs.append((away, 2 * away, block * away, outward))
    for part in group.parts:
        low = part.size // 2 / part.size
        across = n / part.size * middle_bytes_per_s(part)
        needs.append((1 - low, 1.0, n * low * (1 - low), across))
    for gathered, reduced, exchanged, capacity in needs:
        for op, crossing in (
            ("all_gather", gathered),
            ("reduce_scatter", gathered),
            ("all_reduce", reduced),
            ("all_to_all", exchanged),
        ):
            assert collective(op, message, group).seconds >= crossing * message / capacity * (1 - 1e-9)


@many
@given(groups(), messages, operations, st.data())
def test_more_bandwidth_or_less_latency_never_slows(group, message, op, data):
    position = data.draw(st.integers(0, len(group.parts) - 1))
    part = group.parts[position]
    link = part.dimension.link
    before = collective(op, message, group).seconds
    for better in (
        replace(link, bytes_per_s=2 * link.bytes_per_s),
        replace(link, latency_s=link.latency_s / 2),
    ):
        parts = list(group.parts)
        parts[position] = replace(part, dimension=replace(part.dimension, link=better))
        assert collective(op, message, Group(tuple(parts))).seconds <= before * (1 + 1e-12)


@many
@given(groups(), messages, messages, operations)
def test_more_bytes_never_take_less(group, a, b, op):
    small, large = sorted((a, b))
    assert collective(op, small, group).seconds <= collective(op, large, group).seconds


@many
@given(groups(), st.lists(st.floats(0, 1e12), min_size=1), operations, st.sampled_from([1.0, 0.7]))
def test_arrays_equal_scalars(group, message, op, efficiency):
    seconds = collective_seconds(op, np.array(message), group, efficiency=efficiency)
    assert seconds.tolist() == [collective(op, m, group, efficiency=efficiency).seconds for m in message]


@many
@given(groups(), messages, operations)
def test_the_cheapest_algorithm_is_taken_and_its_phases_add_up(group, message, op):
    best = collective(op, message, group)
    named = [collective(op, message, group, algorithm=a) for a in legal_algorithms(op, group)]
    assert best.seconds == min(c.seconds for c in named)
    for cost in named:
        phases = cost.start_s + sum(p.seconds for p in cost.phases)
        if cost.pieces == 1:
            assert phases == pytest.approx(cost.seconds, rel=1e-12)
        assert phases >= cost.seconds * (1 - 1e-12)
    assert best.algorithm in ALGORITHMS


@many
@given(st.integers(2, 8), st.integers(2, 8), messages, operations)
def test_equal_rings_may_be_swapped(a, b, message, op):
    x, y = (dimension("ring", s, name, Link("l", 50e9, 1e-6)) for s, name in ((a, "x"), (b, "y")))
    swapped = collective(op, message, whole(y, x)).seconds
    assert collective(op, message, whole(x, y)).seconds == pytest.approx(swapped, rel=1e-12)


# --- names, errors, models


def test_a_named_algorithm_is_used_wherever_it_can_be():
    group = whole(dimension("ring", 4, "x"), dimension("switch", 4, "y"))
    cost = collective("all_reduce", 1e3, group, algorithm="bidirectional_ring")
    assert [p.algorithm for p in cost.phases if p.dimension == "x"].count("bidirectional_ring") >= 1
    for name in legal_algorithms("all_reduce", group):
        chosen = collective("all_reduce", 1e3, group, algorithm=name)
        assert name in {chosen.algorithm, *(p.algorithm for p in chosen.phases)}


def test_what_a_link_achieves_is_used_where_it_is_stated():
    """Efficiency, ramp and start of the entry that covers the phase; elsewhere the efficiency of the caller."""
    known = Achieved(0.5, 4e6, 1e-5, kinds=("switch",), operations=("all_reduce",))
    switch = whole(dimension("switch", 4, link=Link("l", 1e9, 0.0, achieved=(known,))))
    assert collective("all_reduce", 1e6, switch, algorithm="ring").seconds == pytest.approx(
        1e-5 + 1.5 * 1e6 * (1 + math.sqrt(4)) / 0.5 / 1e9
    )
    assert collective("all_gather", 1e6, switch, efficiency=0.8).seconds == pytest.approx(0.75 * 1e6 / 0.8 / 1e9)
    ring = whole(dimension("ring", 4, link=Link("l", 1e9, 0.0, achieved=(known,))))
    assert collective("all_reduce", 1e6, ring, efficiency=0.8).seconds == pytest.approx(0.75 * 1e6 / 0.8 / 1e9)


def test_the_software_starts_once():
    """A collective over two dimensions is one call: the longer of their starts, not the sum, nor one per piece."""
    inner, outer = (
        dimension("switch", 4, name, Link("l", 1e9, 0.0, achieved=(Achieved(1.0, 0.0, start),)))
        for name, start in (("x", 1e-5), ("y", 3e-5))
    )
    plain = whole(*(replace(d, link=replace(d.link, achieved=())) for d in (inner, outer)))
    for message in (1e3, 1e9):
        started = collective("all_reduce", message, whole(inner, outer)).seconds
        assert started == pytest.approx(collective("all_reduce", message, plain).seconds + 3e-5)


def test_nothing_to_do_costs_nothing():
    ring = whole(dimension("ring", 4))
    assert collective("all_reduce", 0, ring).seconds == 0
    assert collective("all_reduce", 1e9, Group()).seconds == 0
    assert collective_seconds("all_reduce", [0.0, 1e9], Group()).tolist() == [0, 0]
    assert Group((Part(dimension("ring", 4), 1),)) == Group()


@pytest.mark.parametrize(
    "attempt, message",
    [
        (lambda g: collective("all_reduse", 1, g), "unknown collective 'all_reduse'.*'all_reduce'"),
        (lambda g: collective("all_reduce", 1, g, algorithm="rings"), "unknown algorithm 'rings'.*'ring'"),
        (lambda g: collective("all_reduce", 1, g, algorithm="bruck"), "'bruck' cannot do all_reduce on 4 of"),
        (lambda g: collective("all_reduce", -1, g), "message: -1 bytes; must be 0 or more"),
        (lambda g: collective_seconds("all_reduce", [1.0, math.nan], g), "message: nan bytes"),
        (lambda g: collective("all_reduce", 1, g, efficiency=0), "efficiency: 0; must be above 0"),
        (lambda g: collective_model("physics"), "unknown collective model 'physics'.*'physical'"),
    ],
)
def test_bad_requests_are_refused(attempt, message):
    with pytest.raises(InputError, match=message):
        attempt(whole(dimension("ring", 4)))
    assert issubclass(UnknownNameError, InputError)


def test_bus_bandwidth_follows_nccl_tests():
    assert bus_bytes_per_s("all_reduce", 8.0, 4, 2.0) == 6.0
    assert bus_bytes_per_s("all_gather", 8.0, 4, 2.0) == 3.0
    assert bus_bytes_per_s("broadcast", 8.0, 4, 2.0) == 4.0


@pytest.mark.parametrize(
    "kind, all_reduce, all_to_all",
    [
        ("ring", 7 / 8, 8),
        ("switch", 7 / 8, 2),
        ("fully_connected", 1 / 8, 1),
    ],
)
def test_one_direction_is_the_originals_table(kind, all_reduce, all_to_all):
    link = Link("l", 50e9, 100e-9)
    group = whole(dimension(kind, 8, link=link))
    model = collective_model("one_direction", all_reduce_factor=2)
    expected = {
        "all_reduce": 2 * all_reduce,
        "all_gather": all_reduce,
        "all_to_all": all_to_all,
        "point_to_point": 1.0,
    }
    for op, ratio in expected.items():
        assert model(op, 1e9, group) == pytest.approx(1e9 * ratio / 50e9)
        assert model(op, np.array([0.0, 1e9]), group).tolist() == [0.0, model(op, 1e9, group)]
    late = collective_model("one_direction", all_reduce_factor=2, link_latency=True)
    steps = 1 if kind == "fully_connected" else 7
    assert late("all_reduce", 1e9, group) - model("all_reduce", 1e9, group) == pytest.approx(2 * steps * 100e-9)


def test_one_direction_over_two_dimensions_moves_the_share_outwards():
    """On links of one bandwidth it is the one-dimensional formula of all chips; other operations wait."""
    two = whole(dimension("switch", 4, "x"), dimension("ring", 8, "y"))
    model = collective_model("one_direction")
    assert model("all_gather", 1e9, two) == pytest.approx(1e9 * 31 / 32)
    assert model("all_to_all", 1e9, two) == pytest.approx(1e9 * max(4 / 4, 8 * 8 / 8))


def test_one_direction_high_bandwidth_domain():
    """The rail-only system of the original: switches 8 x 2 x 1024, 900/50/50 GB/s, domain of 8."""
    fast, mid, slow = (
        dimension("switch", n, name, Link(name, b))
        for name, n, b in (("x", 8, 900e9), ("y", 2, 50e9), ("z", 1024, 50e9))
    )
    model = OneDirectionCollectives(high_bandwidth_domain=8, fast_dimension=fast, outer_dimension=mid)
    assert model("all_reduce", 1e9, whole(fast)) == pytest.approx(1e9 * 7 / (8 * 900e9))
    assert model("all_reduce", 1e9, whole(slow)) == pytest.approx(1e9 * (7 / (8 * 900e9) + 127 / (1024 * 50e9)))
    narrow = replace(model, high_bandwidth_domain=2)
    assert narrow("all_gather", 1e9, whole(fast)) == pytest.approx(1e9 * (1 / (2 * 900e9) + 3 / (8 * 50e9)))
    with pytest.raises(InputError, match="give outer_dimension"):
        replace(narrow, outer_dimension=None)("all_gather", 1e9, whole(fast))


def test_physical_model_prices_as_collective_does():
    group = whole(dimension("ring", 4))
    model = collective_model("physical", efficiency=0.5)
    expected = collective("all_reduce", 1e9, group, efficiency=0.5).seconds
    assert model("all_reduce", 1e9, group) == expected
    assert model("all_reduce", np.array([1e9]), group).tolist() == [expected]
