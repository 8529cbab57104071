"""Blocks to stages: bisection, the integer program and a dynamic program agree."""

from __future__ import annotations

import itertools
import math
import random
import time

import pytest

from dfmodel.mapping.stage_mip import solve_stages
from dfmodel.mapping.stages import Run, divide, slowest_s


def _case(seed: int) -> tuple[list[Run], int, list[float], float]:
    """Up to three runs, extra seconds of stages, and (for half of them) memory that falls short somewhere."""
    rng = random.Random(seed)
    stages = rng.randint(1, 6)
    limited = seed % 2 == 0
    runs = []
    for _ in range(rng.randint(1, 3)):
        own = rng.uniform(0.5, 2.0)
        held = [own * (1 + 0.3 * (stages - i)) for i in range(stages)] if limited else []
        runs.append(Run(rng.randint(1, 9), rng.uniform(0.1, 2.0) * 1e-3, held))
    extra = [rng.choice([0.0, 0.2e-3]) for _ in range(stages)]
    total = sum(r.count for r in runs)
    return runs, stages, extra, (rng.uniform(1.5, 4.0) * total / stages if limited else math.inf)


def _best(runs: list[Run], stages: int, extra: list[float], capacity: float) -> float:
    """Dynamic program over every cut of the blocks into intervals."""
    blocks = [r for r in runs for _ in range(r.count)]
    n = len(blocks)
    ahead = [[0.0, *itertools.accumulate(b.seconds for b in blocks)]]
    best = [0.0] + [math.inf] * n
    for stage in range(stages):
        held = [0.0, *itertools.accumulate(b.bytes[stage] if b.bytes else 0.0 for b in blocks)]
        following = [math.inf] * (n + 1)
        for end in range(1, n + 1):
            for start in range(end):
                if held[end] - held[start] <= capacity * (1 + 1e-12) and best[start] < math.inf:
                    own = extra[stage] + ahead[0][end] - ahead[0][start]
                    following[end] = min(following[end], max(best[start], own))
        best = following
    return best[n]


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_three_ways_agree(first: int) -> None:
    """200 random cases: bisection = integer program = dynamic program, with and without memory limits."""
    for seed in range(first, first + 20):
        runs, stages, extra, capacity = _case(seed)
        expected = _best(runs, stages, extra, capacity)
        found = divide(runs, stages, extra, capacity)
        counts, result = solve_stages(runs, stages, extra, capacity)
        if math.isinf(expected):
            assert found is None, seed
            assert result.status == "infeasible", seed
            continue
        assert found is not None and counts is not None, seed
        assert slowest_s(runs, found, extra) == pytest.approx(expected, rel=1e-9), seed
        assert slowest_s(runs, counts, extra) == pytest.approx(expected, rel=1e-6), seed
        for stage, row in enumerate(found):
            assert sum(n * r.bytes[stage] for n, r in zip(row, runs, strict=True) if r.bytes) <= capacity * (1 + 1e-9)
        assert [sum(c) for c in zip(*found, strict=True)] == [r.count for r in runs]


def test_the_cases_reach_both_answers() -> None:
    fits = [math.isfinite(_best(*_case(seed))) for seed in range(200)]
    assert 20 <= fits.count(False) <= 180


def test_a_thousand_layers_on_64_stages() -> None:
    """Bisection and the program, each under half a second (a wide limit for the program's start)."""
    runs = [Run(1, 3e-3), Run(1000, 1e-3), Run(1, 5e-3)]
    began = time.perf_counter()
    found = divide(runs, 64)
    bisected = time.perf_counter() - began
    began = time.perf_counter()
    _, result = solve_stages(runs, 64)
    solved = time.perf_counter() - began
    assert found is not None
    assert result.objective == pytest.approx(slowest_s(runs, found) * 1e3, rel=1e-6)
    assert bisected < 0.5
    assert solved < 2.5


def test_more_stages_than_blocks() -> None:
    assert divide([Run(3, 1.0)], 4) is None
