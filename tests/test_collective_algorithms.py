"""Every closed form of a collective algorithm against a message-level simulation of it.

The simulation runs on the physical wires, with all groups of a degree at once, and checks that the data
arrives: whole, partial and strided groups of each kind of dimension, fat trees, tori, products of dimensions.
"""

import itertools
import math
from dataclasses import replace

import collective_simulation as sim
import highspy
import numpy as np
import pytest

from dfmodel.systems.algorithms import Fabric, costs, double_binary_trees, fabric_of, torus_of
from dfmodel.systems.collectives import COLLECTIVES, collective
from dfmodel.systems.network import Dimension, Group, Link, Part

#: One byte per second and one second per hop: seconds are steps and loads.
UNIT = Link("unit", 1.0, 1.0)

#: (operation, algorithm) -> program by number of ranks, and whether its rounds wait for each other.
ROUNDS, PIPELINED = "rounds", "pipelined"


def both(gather, algorithm, how=ROUNDS):
    """Programs of an all-gather, the reduce-scatter that runs it backwards, and both as an all-reduce."""
    return {
        ("all_gather", algorithm): (gather, how),
        ("reduce_scatter", algorithm): (lambda n: sim.backwards(gather(n), True), how),
        ("all_reduce", algorithm): (lambda n: sim.all_reduce_of(gather(n)), how),
    }


def rooted(scatter, scatter_name, broadcast, broadcast_name, how=ROUNDS):
    """Programs of a scatter and a broadcast, and of the gather and the reduce that run them backwards."""
    return {
        ("scatter", scatter_name): (scatter, ROUNDS),
        ("gather", scatter_name): (lambda n: sim.backwards(scatter(n), False), ROUNDS),
        ("broadcast", broadcast_name): (broadcast, how),
        ("reduce", broadcast_name): (lambda n: sim.backwards(broadcast(n), True), how),
    }


PROGRAMS = {
    "ring": {
        **both(sim.ring_gather, "ring"),
        **both(sim.two_ring_gather, "bidirectional_ring"),
        ("all_reduce", "one_shot"): (lambda n: sim.two_ring_gather(n, n), ROUNDS),
        ("all_to_all", "direct"): (sim.ring_exchange, ROUNDS),
        **rooted(sim.ring_scatter, "direct", sim.ring_chain, "chain"),
        ("point_to_point", "direct"): (sim.ring_shift, ROUNDS),
    },
    "line": {
        **both(sim.line_gather, "line"),
        ("all_reduce", "one_shot"): (lambda n: sim.line_gather(n, n), ROUNDS),
        ("all_to_all", "direct"): (lambda n: sim.at_once(sim.pair_exchange(n)), ROUNDS),
        **rooted(sim.line_scatter, "direct", sim.line_chain, "chain"),
        ("point_to_point", "direct"): (sim.shift, ROUNDS),
    },
    "switch": {
        **both(sim.ring_gather, "ring"),
        **both(sim.bruck_gather, "halving_doubling"),
        **both(sim.pair_gather, "direct"),
        **both(sim.switch_gather, "in_network", PIPELINED),
        ("all_reduce", "in_network"): (sim.switch_all_reduce, PIPELINED),
        ("all_reduce", "recursive_doubling"): (sim.recursive_doubling, ROUNDS),
        ("all_reduce", "double_binary_tree"): (lambda n: sim.two_trees(double_binary_trees(n)), PIPELINED),
        ("all_to_all", "direct"): (sim.pair_exchange, ROUNDS),
        ("all_to_all", "bruck"): (sim.bruck_exchange, ROUNDS),
        **rooted(sim.binomial_scatter, "binomial", sim.binomial_broadcast, "binomial"),
        **rooted(sim.binomial_scatter, "binomial", sim.switch_broadcast, "in_network", PIPELINED),
        ("point_to_point", "direct"): (sim.shift, ROUNDS),
    },
    "full": {
        **both(sim.full_gather, "direct"),
        **both(sim.ring_gather, "ring"),
        ("all_reduce", "one_shot"): (lambda n: sim.full_gather(n, n), ROUNDS),
        ("all_to_all", "direct"): (lambda n: sim.at_once(sim.pair_exchange(n)), ROUNDS),
        **rooted(sim.full_scatter, "direct", sim.full_broadcast, "direct"),
        ("point_to_point", "direct"): (sim.shift, ROUNDS),
    },
}

KINDS = {"ring": "ring", "line": "mesh", "switch": "switch", "full": "fully_connected"}
OPERATIONS = (*COLLECTIVES, "scatter", "gather")


def dimension(kind, size, name="d", link=UNIT, **options):
    return Dimension(name, kind, size, link, **options)


def whole(*dimensions):
    return Group(tuple(Part(d, d.size) for d in dimensions))


def wires_of(part):
    return {
        "ring": sim.ring_wires(part.dimension.size),
        "line": sim.line_wires,
        "switch": sim.switch_wires,
        "full": sim.full_wires,
    }[part.shape]


def parts_of(shape):
    """Whole dimensions of 2 to 9, and every size and stride that tiles one of 8, 9 or 12."""
    kind = KINDS[shape]
    options = {"in_network_reduction": True} if kind == "switch" else {}
    found = [Part(dimension(kind, n, **options), n) for n in range(2, 10)]
    for total in (8, 9, 12):
        d = dimension(kind, total, **options)
        found += [
            Part(d, size, stride)
            for size in range(2, total + 1)
            for stride in range(1, total // size + 1)
            if total % (size * stride) == 0
        ]
    if kind == "ring":
        found += [Part(dimension("ring", 12), 4, 2), Part(dimension("ring", 8), 4, 1)]
    return found


def start_of(op, n, program):
    """What ranks hold before: their own vector or block, blocks for the others, or all at the root."""
    chunks = {m.chunk for m in itertools.chain(*program)}
    if op in ("all_reduce", "reduce_scatter", "reduce"):
        return {(r, c): frozenset({r}) for r in range(n) for c in chunks}
    if op == "gather":
        return {(c[0], c): frozenset({c[0]}) for c in chunks}
    if op in ("broadcast", "scatter"):
        return {(0, c): frozenset({0}) for c in chunks}
    first = {"all_gather": lambda c: c[1], "all_to_all": lambda c: c[0]}
    at = first.get(op, lambda c: c[0] if isinstance(c, tuple) else c)
    return {(at(c), c): frozenset({at(c)}) for c in chunks}


def assert_arrived(op, n, program, vectors=False):
    """Everything is where the operation wants it, each contribution once."""
    held = sim.deliver(program, start_of("all_gather" if vectors else op, n, program))
    chunks = {m.chunk for m in itertools.chain(*program)}
    everyone = frozenset(range(n))
    if vectors or op == "all_gather":
        assert all(held[r, c] == {c[1]} for r in range(n) for c in chunks)
        assert len({c[1] for c in chunks}) == n
    elif op == "all_reduce":
        assert all(held[r, c] == everyone for r in range(n) for c in chunks)
    elif op == "reduce_scatter":
        assert all(held[c if isinstance(c, int) else c[1], c] == everyone for c in chunks)
    elif op == "reduce":
        assert all(held[0, c] == everyone for c in chunks)
    elif op == "broadcast":
        assert all(held[r, c] == {0} for r in range(n) for c in chunks)
    elif op == "scatter":
        assert all(held[c[0], c] == {0} for c in chunks) and len({c[0] for c in chunks}) == n - 1
    elif op == "gather":
        assert all(held[0, c] == {c[0]} for c in chunks)
    elif op == "all_to_all":
        assert len(chunks) == n * (n - 1) and all(held[c[1], c] == {c[0]} for c in chunks)


def test_every_algorithm_has_a_simulation():
    for shape, programs in PROGRAMS.items():
        fabric = fabric_of(parts_of(shape)[3])
        assert {(op, name) for op in OPERATIONS for name in costs(fabric, op)} == set(programs)


@pytest.mark.parametrize("shape", PROGRAMS)
def test_costs_equal_the_simulation(shape):
    """Latency and bytes of every algorithm, for whole, partial and strided groups that all run at once."""
    for part in parts_of(shape):
        programs = PROGRAMS[part.shape]
        groups = sim.tiled(part.dimension.size, part.size, part.stride)
        fabric = fabric_of(part)
        for (op, name), (build, how) in programs.items():
            program = build(part.size)
            found = sim.traffic(program, wires_of(part), groups)
            cost = costs(fabric, op)[name]
            load = found.load if how == ROUNDS else found.busiest
            case = (part.dimension.kind, part.dimension.size, part.size, part.stride, op, name)
            assert cost.s_per_byte == pytest.approx(load, rel=1e-12), case
            assert cost.latency_s == pytest.approx(found.steps, rel=1e-12), case


@pytest.mark.parametrize("n", range(2, 10))
def test_simulated_algorithms_do_their_job(n):
    for programs in PROGRAMS.values():
        for (op, name), (build, _) in programs.items():
            if op != "point_to_point":
                assert_arrived(op, n, build(n), vectors=name == "one_shot")


TREES = [
    # dimension, pod, oversubscription, size, stride
    (8, 4, 2.0, 8, 1),
    (8, 4, 8.0, 8, 1),
    (8, 4, 3.0, 4, 2),
    (12, 4, 2.0, 12, 1),
    (12, 6, 4.0, 6, 2),
    (16, 4, 4.0, 8, 1),
    (16, 8, 6.0, 4, 4),
]


@pytest.mark.parametrize("total, pod, over, size, stride", TREES)
def test_a_fat_tree_pays_for_what_leaves_its_pods(total, pod, over, size, stride):
    d = dimension("fat_tree", total, oversubscription=over, pod_size=pod, in_network_reduction=True)
    part = Part(d, size, stride)
    g = part.members_per_pod
    fabric = fabric_of(part)
    wires = sim.tree_wires(pod, over)
    groups = sim.tiled(total, size, stride)
    assert fabric.shape == "tree" and g == pod // stride

    for name, gather in (("ring", sim.ring_gather), ("direct", sim.pair_gather)):
        program = gather(size)
        found = sim.traffic(program, wires, groups)
        load = found.busiest if name == "direct" else found.load
        assert costs(fabric, "all_gather")[name][:2] == pytest.approx((found.steps, load))
        assert costs(fabric, "all_reduce")[name][:2] == pytest.approx((2 * found.steps, 2 * load))
    found = sim.traffic(sim.pair_exchange(size), wires, groups)
    assert costs(fabric, "all_to_all")["direct"][:2] == pytest.approx((found.steps, found.busiest))
    found = sim.traffic(sim.shift(size), wires, groups)
    assert costs(fabric, "point_to_point")["direct"][:2] == pytest.approx((found.steps, found.load))

    leaves = sim.tiled_with_leaves(total, size, stride, pod, g)
    for op, build in (("all_reduce", sim.leaf_all_reduce), ("broadcast", sim.leaf_broadcast)):
        program = build(size, g)
        assert_arrived(op, size, program)
        found = sim.traffic(program, sim.leaf_wires(pod, over), leaves)
        assert costs(fabric, op)["in_network"][:2] == pytest.approx((found.steps, found.busiest))


@pytest.mark.parametrize("total, pod, over, size, stride", TREES)
def test_pods_in_turn_equal_the_simulation(total, pod, over, size, stride):
    """Reduce-scatter inside pods, all-reduce between them, gather back: on the wires of the whole tree."""
    d = dimension("fat_tree", total, oversubscription=over, pod_size=pod)
    part = Part(d, size, stride)
    g = part.members_per_pod
    sizes = (g, size // g)
    phases = sim.reduce_over_axes((0, 1), sizes, [sim.ring_gather(n) for n in sizes])
    program = list(itertools.chain(*phases))
    assert_arrived("all_reduce", size, program)
    found = sim.traffic(program, sim.tree_wires(pod, over), sim.tiled(total, size, stride))
    # The two inner phases wait for the outer ones: rounds of the whole program, one after another.
    cost = collective("all_reduce", 1e9, Group((part,)), algorithm="hierarchical")
    assert [p.op for p in cost.phases] == ["reduce_scatter", "all_reduce", "all_gather"]
    assert cost.seconds / 1e9 == pytest.approx(found.load, rel=1e-6)


def test_groups_inside_a_pod_or_of_one_chip_per_pod_see_a_plain_switch():
    d = dimension("fat_tree", 16, oversubscription=4.0, pod_size=4)
    inside, across, blocked = Part(d, 4), Part(d, 4, 4), Part(replace(d, pod_size=None), 16)
    assert (inside.shape, inside.bytes_per_s) == ("switch", 1.0)
    assert (across.shape, across.bytes_per_s) == ("switch", 0.25)
    assert (blocked.shape, blocked.bytes_per_s) == ("switch", 0.25)
    # 6 chips in pods of 4: some group is split 4 + 2 and another 2 + 4; runs of 2 are sure.
    assert Part(replace(d, size=12), 6).members_per_pod == 2


MIXED = [
    (("ring", 4), ("switch", 3)),
    (("mesh", 3), ("ring", 4)),
    (("switch", 4), ("fully_connected", 3)),
    (("fully_connected", 2), ("mesh", 2), ("ring", 3)),
    (("ring", 3), ("switch", 2), ("switch", 2)),
]
GATHERS = {
    "ring": ("ring", sim.ring_gather),
    "mesh": ("line", sim.line_gather),
    "switch": ("ring", sim.ring_gather),
    "fully_connected": ("direct", sim.full_gather),
}


@pytest.mark.parametrize("dims", MIXED)
def test_hierarchical_all_reduce_moves_its_share(dims):
    """Phase by phase against the simulation of the whole product: outer phases move their share only."""
    dimensions = [dimension(kind, n, f"d{i}") for i, (kind, n) in enumerate(dims)]
    sizes = tuple(n for _, n in dims)
    group = whole(*dimensions)
    programs = sim.reduce_over_axes(range(len(dims)), sizes, [GATHERS[kind][1](n) for kind, n in dims])
    assert_arrived("all_reduce", group.size, list(itertools.chain(*programs)))
    wires = sim.product_wires([wires_of(p) for p in group.parts], sizes)
    members = [{r: r for r in range(group.size)}]
    found = [sim.traffic(p, wires, members) for p in programs]

    message = 1e12
    for axis, (kind, _) in enumerate(dims):
        name = GATHERS[kind][0]
        share = math.prod(sizes[:axis])
        gather = costs(fabric_of(group.parts[axis]), "all_gather")[name]
        for phase in (axis, len(programs) - 1 - axis):
            assert (found[phase].steps, found[phase].load) == pytest.approx(
                (gather.latency_s, gather.s_per_byte / share)
            )
    cost = collective("all_reduce", message, group, algorithm="hierarchical")
    outermost = next(p for p in cost.phases if p.op == "all_reduce")
    assert outermost.bytes == message / math.prod(sizes[:-1])
    assert cost.phases[-1].bytes == message
    scattered = collective("reduce_scatter", message, group)
    assert [p.bytes for p in scattered.phases] == [message / math.prod(sizes[:k]) for k in range(len(dims))]


@pytest.mark.parametrize("side, dims", [(2, 2), (3, 2), (4, 2), (5, 2), (2, 3), (3, 3)])
def test_equal_torus_equals_the_simulation(side, dims):
    """Parts of the message in rotated orders, both ways round: all 2d links of a chip busy in every round."""
    sizes = (side,) * dims
    parts = [
        sim.reduce_over_axes(
            [(first + k) % dims for k in range(dims)],
            sizes,
            [sim.ring_gather(side, turn=turn)] * dims,
            part=(first, turn),
            share=1 / (2 * dims),
        )
        for first in range(dims)
        for turn in (1, -1)
    ]
    program = list(itertools.chain(*(sim.together(*phases) for phases in zip(*parts, strict=True))))
    n = side**dims
    if n <= 16:
        assert_arrived("all_reduce", n, program)
    wires = sim.product_wires([sim.ring_wires(side)] * dims, sizes)
    found = sim.traffic(program, wires, [{r: r for r in range(n)}])
    group = whole(*(dimension("ring", side, f"d{i}") for i in range(dims)))
    (phase,) = collective("all_reduce", 1e9, group, algorithm="torus_multi_ring").phases
    assert found.load == pytest.approx(2 * (n - 1) / n / (2 * dims))
    assert phase.seconds == pytest.approx(found.steps + 1e9 * found.load)


@pytest.mark.parametrize("a, b, ratio", [(2, 8, 1.0), (4, 3, 1.0), (4, 8, 2.0), (3, 5, 0.25), (2, 6, 20.0)])
def test_unequal_torus_splits_the_message_so_that_both_rings_are_busy(a, b, ratio):
    """Two orders, weighted: the least time over the weights is the bound of the formula."""
    x = Fabric("x", "ring", a, 1.0, 1.0)
    y = Fabric("y", "ring", b, ratio, 1.0)
    sizes, n = (a, b), a * b
    wires = sim.product_wires([sim.ring_wires(a), sim.ring_wires(b)], sizes)

    def loads(order):
        """Bytes on the busiest link of each axis when the whole message goes in this order, both ways."""
        found = []
        for axis in (0, 1):
            parts = [
                sim.reduce_over_axes(order, sizes, [sim.ring_gather(s, turn=t) for s in sizes], (t,), 0.5)[: len(sizes)]
                for t in (1, -1)
            ]
            program = list(itertools.chain(*itertools.chain(*parts)))
            only = [[m for m in r if _axis(m, sizes) == axis] for r in program]
            found.append(sim.traffic(only, wires, [{r: r for r in range(n)}]).busiest)
        return found

    xy, yx = loads((0, 1)), loads((1, 0))
    weights = np.linspace(0, 1, 200_001)
    each = [weights * p + (1 - weights) * q for p, q in zip(xy, yx, strict=True)]
    best = np.maximum(each[0], each[1] / ratio).min()
    assert costs(torus_of((x, y)), "reduce_scatter")["torus_multi_ring"].s_per_byte == pytest.approx(best, rel=1e-4)


def _axis(message, sizes):
    a, b = (sim.coordinates(sizes)[r] for r in (message.source, message.target))
    return 0 if a[0] != b[0] else 1


@pytest.mark.parametrize(
    "dims",
    [
        (("ring", 4), ("ring", 3)),
        (("mesh", 3), ("ring", 5)),
        (("switch", 4), ("switch", 3)),
        (("ring", 2), ("fully_connected", 3), ("mesh", 4)),
    ],
)
def test_all_to_all_over_dimensions_equals_the_simulation(dims):
    exchanges = {
        "ring": sim.ring_exchange,
        "mesh": lambda n: sim.at_once(sim.pair_exchange(n)),
        "switch": sim.pair_exchange,
        "fully_connected": lambda n: sim.at_once(sim.pair_exchange(n)),
    }
    sizes = tuple(n for _, n in dims)
    group = whole(*(dimension(kind, n, f"d{i}") for i, (kind, n) in enumerate(dims)))
    phases = sim.exchange_over_axes(sizes, [exchanges[kind](n) for kind, n in dims])
    wires = sim.product_wires([wires_of(p) for p in group.parts], sizes)
    members = [{r: r for r in range(group.size)}]
    start = {(r, (a, b)): frozenset({r}) for r, a in enumerate(sim.coordinates(sizes)) for b in sim.coordinates(sizes)}
    held = sim.deliver(list(itertools.chain(*phases)), start)
    ranks = sim.coordinates(sizes)
    assert all((r, (a, b)) in held for r, b in enumerate(ranks) for a in ranks)

    message = 1e12
    found = [sim.traffic(p, wires, members) for p in phases]
    cost = collective("all_to_all", message, group, algorithm="dimension_ordered")
    assert cost.seconds == pytest.approx(message * max(t.busiest for t in found))
    cost = collective("all_to_all", message, group, algorithm="phased")
    assert cost.seconds == pytest.approx(message * sum(t.busiest for t in found))


@pytest.mark.parametrize("rings", [((2, 1.0), (3, 5.0), (7, 0.5)), ((4, 2.0), (4, 2.0), (4, 1.0), (2, 1.0))])
def test_torus_of_more_dimensions_reaches_its_cut_bound(rings):
    """The formula is the linear program: the best split of a reduce-scatter over all orders of the rings."""
    torus = torus_of(tuple(Fabric(str(i), "ring", size, b, 1.0) for i, (size, b) in enumerate(rings)))
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    orders = list(itertools.permutations(range(len(rings))))
    shares = [model.addVariable(0, 1) for _ in orders]
    seconds = model.addVariable(0)
    model.addConstr(sum(shares) == 1)
    for axis, (size, b) in enumerate(rings):
        left = [math.prod(rings[k][0] for k in order[: order.index(axis)]) for order in orders]
        load = sum((size - 1) / size / n * share for n, share in zip(left, shares, strict=True))
        model.addConstr(load <= 2 * b * seconds)
    model.minimize(1.0 * seconds)
    found = costs(torus, "reduce_scatter")["torus_multi_ring"].s_per_byte
    assert found == pytest.approx(model.getInfo().objective_function_value, rel=1e-9)


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
def test_pieces_can_follow_each_other_as_fast_as_is_charged(op):
    """A schedule of the pieces, every dimension doing one thing at a time, takes no longer; nor much less."""
    random = np.random.default_rng(0)
    for _ in range(60):
        sizes = random.integers(2, 9, 3)
        bandwidths = 10.0 ** random.uniform(0, 2, 3)
        kinds = random.choice(["switch", "mesh", "fully_connected", "fat_tree"], 3)
        group = Group(
            tuple(
                Part(
                    dimension(
                        str(kind),
                        int(4 * n),
                        f"d{i}",
                        Link("l", float(b), 1.0),
                        **({"oversubscription": 3.0, "pod_size": 4} if kind == "fat_tree" else {}),
                    ),
                    int(4 * n),
                )
                for i, (n, b, kind) in enumerate(zip(sizes, bandwidths, kinds, strict=True))
            )
        )
        cost = collective(op, 10.0 ** random.uniform(1, 6), group, algorithm="pipelined")
        each = [p.seconds / cost.pieces for p in cost.phases]
        wires = [p.dimension.split()[0] for p in cost.phases]
        found = sim.makespan(each, wires, cost.pieces)
        assert found <= cost.seconds * (1 + 1e-9)
        assert found >= cost.seconds - sum(each)
