"""Collectives message by message: what each algorithm sends, over which links, and whether the data arrives.

A program is a list of rounds, a round a list of messages that are sent at once. Running one on wires gives
the steps (hops of the longest message of each round, summed), the load (bytes on the busiest link of each
round, summed) and the busiest link over all rounds together (what a pipelined run takes). Bytes are shares of
the collective's message, links have a bandwidth of 1 and hops a latency of 1, so steps and load are the two
numbers of the cost tables. Nothing here uses the formulas under test.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

SWITCH = -1


@dataclass(frozen=True)
class Message:
    """`turn` is the direction on a ring (0: the shorter way). `reduces` adds to what the target has;
    `without_own` leaves out what the sender itself contributed."""

    source: int
    target: int
    chunk: Hashable
    bytes: float
    reduces: bool = False
    turn: int = 0
    without_own: bool = False


Program = list[list[Message]]


@dataclass(frozen=True)
class Traffic:
    steps: float
    load: float
    busiest: float


# --- wires: (source position, target position, turn) -> links with their bandwidth, and hops


def ring_wires(size: int) -> Callable:
    def path(source: int, target: int, turn: int) -> tuple[list, float]:
        ahead = (target - source) % size
        turn = turn or (1 if ahead <= size - ahead else -1)
        hops = ahead if turn > 0 else size - ahead
        return [((turn, (source + turn * h) % size), 1.0) for h in range(hops)], hops

    return path


def line_wires(source: int, target: int, turn: int) -> tuple[list, float]:
    way = 1 if target > source else -1
    return [((way, at), 1.0) for at in range(source, target, way)], abs(target - source)


def switch_wires(source: int, target: int, turn: int) -> tuple[list, float]:
    if target == SWITCH:
        return [(("out", source), 1.0)], 0.5
    if source == SWITCH:
        return [(("in", target), 1.0)], 0.5
    return [(("out", source), 1.0), (("in", target), 1.0)], 1


def full_wires(source: int, target: int, turn: int) -> tuple[list, float]:
    return [((source, target), 1.0)], 1


def tree_wires(pod: int, oversubscription: float) -> Callable:
    def path(source: int, target: int, turn: int) -> tuple[list, float]:
        links, hops = switch_wires(source, target, turn)
        if source // pod != target // pod:
            links += [(("up", source // pod), pod / oversubscription)]
            links += [(("down", target // pod), pod / oversubscription)]
        return links, hops

    return path


def tiled(dimension: int, size: int, stride: int) -> list[dict[int, int]]:
    """Every group of one degree in a dimension: rank -> position, the switch standing for itself."""
    return [
        {SWITCH: SWITCH} | {rank: start + offset + rank * stride for rank in range(size)}
        for start in range(0, dimension - size * stride + 1, size * stride)
        for offset in range(stride)
    ]


def traffic(program: Program, wires: Callable, groups: Sequence[dict]) -> Traffic:
    """Runs the program in every group at once; `groups[g][rank]` is a position on the wires."""
    steps = load = 0.0
    total: Counter = Counter()
    for messages in program:
        now: Counter = Counter()
        longest = 0.0
        for members in groups:
            for m in messages:
                links, hops = wires(members[m.source], members[m.target], m.turn)
                longest = max(longest, hops)
                for link, bandwidth in links:
                    now[link] += m.bytes / bandwidth
        steps += longest
        load += max(now.values(), default=0.0)
        total += now
    return Traffic(steps, load, max(total.values(), default=0.0))


def deliver(program: Program, start: dict[tuple[int, Hashable], frozenset]) -> dict:
    """What every rank holds of every chunk in the end: the ranks whose contributions it contains.

    Fails where a message sends what its sender does not have, or a contribution would be added twice.
    """
    held = dict(start)
    for messages in program:
        sent = [(m, held[m.source, m.chunk] - ({m.source} if m.without_own else set())) for m in messages]
        for m, data in sent:
            if m.reduces:
                had = held.get((m.target, m.chunk), frozenset())
                assert not had & data, f"added twice: {m}"
                data |= had
            held[m.target, m.chunk] = data
    return held


# --- combining programs


def backwards(program: Program, reduces: bool) -> Program:
    """The dual: an all-gather becomes a reduce-scatter, a broadcast a reduce, a scatter a gather."""
    return [
        [replace(m, source=m.target, target=m.source, turn=-m.turn, reduces=reduces) for m in messages]
        for messages in reversed(program)
    ]


def together(*programs: Program) -> Program:
    return [list(itertools.chain(*rounds)) for rounds in itertools.zip_longest(*programs, fillvalue=[])]


def at_once(program: Program) -> Program:
    """All messages in one round: traffic of a program whose rounds do not wait for each other."""
    return [list(itertools.chain(*program))]


# --- all-gathers: block j starts at rank j; `scale` times the message in n blocks


def ring_gather(n: int, scale: float = 1.0, turn: int = 1, tag: str = "") -> Program:
    return [
        [Message(i, (i + turn) % n, (tag, (i - turn * r) % n), scale / n, turn=turn) for i in range(n)]
        for r in range(n - 1)
    ]


def two_ring_gather(n: int, scale: float = 1.0) -> Program:
    return together(ring_gather(n, scale / 2, 1, "a"), ring_gather(n, scale / 2, -1, "b"))


def line_gather(n: int, scale: float = 1.0) -> Program:
    return [
        [Message(i, i + 1, ("", i - r), scale / n) for i in range(n - 1) if i >= r]
        + [Message(i, i - 1, ("", i + r), scale / n) for i in range(1, n) if i + r < n]
        for r in range(n - 1)
    ]


def bruck_gather(n: int, scale: float = 1.0) -> Program:
    rounds, distance = [], 1
    while distance < n:
        blocks = range(min(distance, n - distance))
        rounds.append([Message(i, (i - distance) % n, ("", (i + b) % n), scale / n) for b in blocks for i in range(n)])
        distance *= 2
    return rounds


def pair_gather(n: int, scale: float = 1.0) -> Program:
    return [[Message(i, (i + r) % n, ("", i), scale / n) for i in range(n)] for r in range(1, n)]


def full_gather(n: int, scale: float = 1.0) -> Program:
    return at_once(pair_gather(n, scale))


def switch_gather(n: int) -> Program:
    """Each rank's block up once, multicast down to the others; reads of the switch are part of the round."""
    up = [Message(i, SWITCH, ("", i), 1 / n) for i in range(n)]
    down = [Message(SWITCH, i, ("", j), 1 / n) for i in range(n) for j in range(n) if i != j]
    return [up, down]


def all_reduce_of(gather: Program) -> Program:
    return backwards(gather, reduces=True) + gather


# --- all-reduces of their own


def recursive_doubling(n: int) -> Program:
    """Bar-Noy, Kipnis, Schieber: sums of k become sums of 2k, or of 2k - 1 without the sender's own."""
    lengths = [n]
    while lengths[-1] > 1:
        lengths.append((lengths[-1] + 1) // 2)
    lengths.reverse()
    rounds = []
    for k, longer in itertools.pairwise(lengths):
        odd = longer == 2 * k - 1
        distance = k - 1 if odd else k
        rounds.append([Message((i + distance) % n, i, "sum", 1.0, True, without_own=odd) for i in range(n)])
    return rounds


def two_trees(parents: Sequence[Sequence[int]]) -> Program:
    """Half of the vector up and down each tree, level by level."""
    up = []
    for tree, parent in enumerate(parents):
        depth = {r: 0 for r, p in enumerate(parent) if p < 0}
        while len(depth) < len(parent):
            depth |= {r: depth[p] + 1 for r, p in enumerate(parent) if p in depth and r not in depth}
        levels: Program = [[] for _ in range(max(depth.values()))]
        for rank, level in depth.items():
            if level:
                levels[-level].append(Message(rank, parent[rank], tree, 0.5, reduces=True))
        up.append(levels)
    rising = together(*([[]] * (max(map(len, up)) - len(t)) + t for t in up))
    return rising + backwards(rising, reduces=False)


def switch_all_reduce(n: int) -> Program:
    """Each rank has its block of all vectors reduced on the way to it, and stores it back to all at once."""
    pull = [Message(i, SWITCH, j, 1 / n, reduces=True) for i in range(n) for j in range(n)]
    result = [Message(SWITCH, j, j, 1 / n) for j in range(n)]
    push = [Message(j, SWITCH, j, 1 / n) for j in range(n)]
    spread = [Message(SWITCH, i, j, 1 / n) for i in range(n) for j in range(n)]
    return [pull, result, push, spread]


# --- all-to-alls: block (i, j) of 1/n from i to j


def ring_exchange(n: int) -> Program:
    found = []
    for i, j in itertools.permutations(range(n), 2):
        ahead = (j - i) % n
        ways = (1, -1) if 2 * ahead == n else (1,) if 2 * ahead < n else (-1,)
        found += [Message(i, j, (i, j), 1 / n / len(ways), turn=way) for way in ways]
    return [found]


def pair_exchange(n: int) -> Program:
    return [[Message(i, (i + r) % n, (i, (i + r) % n), 1 / n) for i in range(n)] for r in range(1, n)]


def bruck_exchange(n: int) -> Program:
    rounds, distance = [], 1
    at = {(i, j): i for i in range(n) for j in range(n)}
    while distance < n:
        moving = [b for b in at if (b[1] - b[0]) % n & distance]
        rounds.append([Message(at[b], (at[b] + distance) % n, b, 1 / n) for b in moving])
        at |= {b: (at[b] + distance) % n for b in moving}
        distance *= 2
    return rounds


# --- from the root, rank 0


def ring_scatter(n: int) -> Program:
    """Farthest block first, both ways; the opposite block of an even ring is split over both."""
    rounds: Program = [[] for _ in range(n // 2)]
    for turn in (1, -1):
        for start, distance in enumerate(range(n // 2, 0, -1)):
            share = 1 / n / (2 if 2 * distance == n else 1)
            for hop in range(distance):
                here, there = turn * hop % n, turn * (hop + 1) % n
                chunk = (turn * distance % n, turn if 2 * distance == n else 0)
                rounds[start + hop].append(Message(here, there, chunk, share, turn=turn))
    return rounds


def line_scatter(n: int) -> Program:
    rounds: Program = [[] for _ in range(n - 1)]
    for start, block in enumerate(range(n - 1, 0, -1)):
        for hop in range(block):
            rounds[start + hop].append(Message(hop, hop + 1, (block, 0), 1 / n))
    return rounds


def _tree_rounds(n: int) -> Iterable[tuple[int, int]]:
    distance = 1 << (n - 1).bit_length() >> 1
    while distance:
        yield distance, 2 * distance
        distance //= 2


def binomial_scatter(n: int) -> Program:
    return [
        [
            Message(i, i + d, (block, 0), 1 / n)
            for i in range(0, n - d, span)
            for block in range(i + d, min(i + span, n))
        ]
        for d, span in _tree_rounds(n)
    ]


def binomial_broadcast(n: int) -> Program:
    return [[Message(i, i + d, "all", 1.0) for i in range(0, n - d, span)] for d, span in _tree_rounds(n)]


def full_scatter(n: int) -> Program:
    return [[Message(0, j, (j, 0), 1 / n) for j in range(1, n)]]


def full_broadcast(n: int) -> Program:
    return [[Message(0, j, "all", 1.0) for j in range(1, n)]]


def switch_broadcast(n: int) -> Program:
    return [[Message(0, SWITCH, "all", 1.0)], [Message(SWITCH, j, "all", 1.0) for j in range(1, n)]]


def line_chain(n: int) -> Program:
    return [[Message(i, i + 1, "all", 1.0)] for i in range(n - 1)]


def ring_chain(n: int) -> Program:
    """Both ways, in two halves; the opposite rank of an even ring gets one from each side."""
    rounds = []
    for r in range(n // 2):
        opposite = 2 * (r + 1) == n
        rounds.append(
            [
                Message(turn * r % n, turn * (r + 1) % n, half, 0.5, turn=turn)
                for turn in (1, -1)
                for half in ("a", "b")
                if not opposite or (half == "a") == (turn == 1)
            ]
        )
    return rounds


def shift(n: int) -> Program:
    """Point-to-point: every member sends its message to the next."""
    return [[Message(i, i + 1, i, 1.0) for i in range(n - 1)]]


def ring_shift(n: int) -> Program:
    """The same on a closed ring, the last to the first; two ranks use both cables."""
    if n == 2:
        return [[Message(i, 1 - i, (i, turn), 0.5, turn=turn) for i in range(2) for turn in (1, -1)]]
    return [[Message(i, (i + 1) % n, i, 1.0, turn=1) for i in range(n)]]


# --- in the network of a fat tree: every pod's leaf switch, -2 - pod, reduces before the spine, SWITCH, does


def leaf_wires(pod: int, oversubscription: float) -> Callable:
    """Chips are positions, leaves ("leaf", pod): what leaves a pod shares its reduced bandwidth."""

    def path(source: Hashable, target: Hashable, turn: int) -> tuple[list, float]:
        if source == SWITCH:
            return [(("down", target), pod / oversubscription)], 0.5
        if target == SWITCH:
            return [(("up", source), pod / oversubscription)], 0.5
        return [(("out", source) if isinstance(source, int) else ("in", target), 1.0)], 0.5

    return path


def tiled_with_leaves(dimension: int, size: int, stride: int, pod: int, members: int) -> list[dict]:
    """As `tiled`, with the leaf switch of each pod of the group."""
    return [
        group | {-2 - p: ("leaf", group[p * members] // pod) for p in range(size // members)}
        for group in tiled(dimension, size, stride)
    ]


def leaf_all_reduce(n: int, g: int) -> Program:
    """As `switch_all_reduce`; a leaf keeps blocks of its own pod and sends sums of others to the spine."""
    leaf = [-2 - i // g for i in range(n)]
    leaves = sorted(set(leaf))
    pull = [Message(i, leaf[i], j, 1 / n, True) for i in range(n) for j in range(n)]
    up = [Message(f, SWITCH, j, 1 / n, True) for f in leaves for j in range(n) if leaf[j] != f]
    down = [Message(SWITCH, leaf[j], j, 1 / n, True) for j in range(n)]
    result = [Message(leaf[j], j, j, 1 / n) for j in range(n)]
    push = [Message(j, leaf[j], j, 1 / n) for j in range(n)]
    across = [Message(leaf[j], SWITCH, j, 1 / n) for j in range(n)]
    back = [Message(SWITCH, f, j, 1 / n) for f in leaves for j in range(n) if leaf[j] != f]
    spread = [Message(leaf[i], i, j, 1 / n) for i in range(n) for j in range(n)]
    return [pull, up, down, result, push, across, back, spread]


def leaf_broadcast(n: int, g: int) -> Program:
    leaves = [-2 - p for p in range(n // g)]
    return [
        [Message(0, -2, "all", 1.0)],
        [Message(-2, SWITCH, "all", 1.0)],
        [Message(SWITCH, f, "all", 1.0) for f in leaves[1:]],
        [Message(-2 - i // g, i, "all", 1.0) for i in range(1, n)],
    ]


# --- products of dimensions: rank r has one coordinate per axis, the first changing fastest


def coordinates(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(reversed(c)) for c in itertools.product(*(range(s) for s in reversed(sizes)))]


def product_wires(wires: Sequence[Callable], sizes: Sequence[int]) -> Callable:
    """Each axis has its own wires along each of its lines; a message moves along one axis."""
    at = coordinates(sizes)

    def path(source: int, target: int, turn: int) -> tuple[list, float]:
        a, b = at[source], at[target]
        (axis,) = [k for k in range(len(sizes)) if a[k] != b[k]]
        links, hops = wires[axis](a[axis], b[axis], turn)
        line = a[:axis] + a[axis + 1 :]
        return [((axis, line, link), bandwidth) for link, bandwidth in links], hops

    return path


def gather_along(
    axis: int,
    inside: Sequence[int],
    sizes: Sequence[int],
    gather: Program,
    part: Hashable = "",
    share: float = 1.0,
) -> Program:
    """An all-gather of `share` of the message over one axis, in every line of it at once.

    Block j of a line is what its members hold with coordinate j on the axis: blocks of the whole product
    whose coordinates on the axes `inside` (reduced before, gathered later) are the line's own.
    """
    at = coordinates(sizes)
    rank = {c: r for r, c in enumerate(at)}
    rounds = []
    for messages in gather:
        sent = []
        for line, m in itertools.product([c for c in at if c[axis] == 0], messages):
            source, target = (rank[(*line[:axis], r, *line[axis + 1 :])] for r in (m.source, m.target))
            blocks = [b for b in at if b[axis] == m.chunk[1] and all(b[k] == line[k] for k in inside)]
            sent += [Message(source, target, (part, b), share / len(at), turn=m.turn) for b in blocks]
        rounds.append(sent)
    return rounds


def reduce_over_axes(
    order: Sequence[int],
    sizes: Sequence[int],
    gathers: Sequence[Program],
    part: Hashable = "",
    share: float = 1.0,
) -> list[Program]:
    """All-reduce: reduce-scatters over the axes in this order, then all-gathers back; a program per phase."""
    there = [gather_along(axis, order[:k], sizes, gathers[axis], part, share) for k, axis in enumerate(order)]
    return [backwards(p, reduces=True) for p in there] + list(reversed(there))


def exchange_over_axes(sizes: Sequence[int], exchanges: Sequence[Program]) -> list[Program]:
    """All-to-all through the axes in order: a round per axis, every block moving to its coordinate there."""
    at = coordinates(sizes)
    rank = {c: r for r, c in enumerate(at)}
    phases = []
    for axis, exchange in enumerate(exchanges):
        ways = {}
        for m in itertools.chain(*exchange):
            ways.setdefault((m.source, m.target), []).append((m.turn, m.bytes * sizes[axis]))
        sent = []
        for a, b in itertools.permutations(at, 2):
            if a[axis] == b[axis]:
                continue
            here, there = (*b[:axis], *a[axis:]), (*b[: axis + 1], *a[axis + 1 :])
            sent += [
                Message(rank[here], rank[there], (a, b), part / len(at), turn=turn)
                for turn, part in ways[a[axis], b[axis]]
            ]
        phases.append([sent])
    return phases


# --- pieces of a message that follow each other through phases


def makespan(seconds: Sequence[float], wires: Sequence[Hashable], pieces: int) -> float:
    """Time until every piece has gone through every phase, one phase at a time on the same wires.

    Whoever can start first goes; of two, the one in the earlier phase, or in the later: the better of both.
    """
    return min(_makespan(seconds, wires, pieces, order) for order in (1, -1))


def _makespan(seconds: Sequence[float], wires: Sequence[Hashable], pieces: int, order: int) -> float:
    free = dict.fromkeys(wires, 0.0)
    at = dict.fromkeys(range(pieces), (0, 0.0))
    while at:
        start, _, piece = min((max(t, free[wires[k]]), order * k, piece) for piece, (k, t) in at.items())
        phase = at[piece][0]
        free[wires[phase]] = start + seconds[phase]
        at[piece] = (phase + 1, free[wires[phase]])
        if phase + 1 == len(seconds):
            del at[piece]
    return max(free.values())
