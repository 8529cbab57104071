"""Closed forms of the pipeline schedules against the schedules played step by step."""

from __future__ import annotations

import random

import pytest

from dfmodel.mapping.schedules import SCHEDULES, StageSeconds, in_flight, messages, pipeline_s
from dfmodel.mapping.timeline import Operation, Timeline, orders, play


def _played(schedule: str, s: StageSeconds, m: int, chunks: int = 1) -> Timeline:
    splits = schedule.startswith("zb")

    def seconds(stage: int, o: Operation) -> float:
        whole = {
            "F": s.forward[stage],
            "B": s.backward[stage] + (0.0 if splits else s.weights[stage]),
            "W": s.weights[stage],
        }[o.kind]
        return whole / chunks

    return play(orders(schedule, len(s.forward), m, chunks), seconds)


def _case(schedule: str, rng: random.Random) -> tuple[StageSeconds, int, int]:
    """Equal stages; micro-batches a multiple of the stages where chunks are interleaved."""
    p, chunks = rng.randint(1, 9), rng.randint(2, 4) if schedule == "interleaved" else 1
    m = p * rng.randint(1, 5) if schedule == "interleaved" else rng.randint(1, 6 * p)
    f, b, w = (rng.uniform(0.1, 3.0) for _ in range(3))
    return StageSeconds([f] * p, [b] * p, [w] * p, (f + b + w) / chunks), m, chunks


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_bubbles_equal_the_simulation(schedule: str) -> None:
    """Seconds, hence bubble fractions, of 200 random cases with equal stages."""
    rng = random.Random(f"bubble {schedule}")
    for _ in range(200):
        s, m, chunks = _case(schedule, rng)
        found = pipeline_s(schedule, s, m)
        played = _played(schedule, s, m, chunks).seconds
        assert found == pytest.approx(played, rel=1e-9), (s, m, chunks)
        ideal = m * s.totals[0]
        assert 1 - ideal / found == pytest.approx(1 - ideal / played, abs=1e-9)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_micro_batches_in_flight_equal_the_simulation(schedule: str) -> None:
    rng = random.Random(f"flight {schedule}")
    for _ in range(200):
        s, m, chunks = _case(schedule, rng)
        timeline = _played(schedule, s, m, chunks)
        p = len(s.forward)
        for stage in range(p):
            held = in_flight(schedule, stage, p, m, chunks)
            assert held * chunks == pytest.approx(timeline.in_flight(stage)), (schedule, stage, p, m, chunks)


def test_unequal_stages_are_never_faster_than_said() -> None:
    """1f1b and gpipe: the formula is never below the schedule played; gpipe's is exact."""
    rng = random.Random("unequal")
    for _ in range(300):
        p, m = rng.randint(2, 8), rng.randint(1, 40)
        s = StageSeconds(*([rng.uniform(0.2, 2.0) for _ in range(p)] for _ in range(3)))
        assert pipeline_s("gpipe", s, m) == pytest.approx(_played("gpipe", s, m).makespan_s)
        assert pipeline_s("1f1b", s, m) >= _played("1f1b", s, m).makespan_s * (1 - 1e-12)
        assert pipeline_s("1f1b", s, m) >= m * max(s.totals)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_what_a_stage_waits_for_at_either_end(schedule: str) -> None:
    """Data-parallel communication may hide in the time before a stage's first forward pass and after its last backward
    one: a chunk of every stage before it. Equal stages, 100 cases."""
    rng = random.Random(f"ends {schedule}")
    for _ in range(100):
        s, m, chunks = _case(schedule, rng)
        played = _played(schedule, s, m, chunks).operations
        one = s.forward[0] / chunks, (s.backward[0] + s.weights[0]) / chunks
        for i, stage in enumerate(played):
            assert stage[0][1] - played[0][0][1] >= i * one[0] * (1 - 1e-9)
            assert played[0][-1][2] - stage[-1][2] >= i * one[1] * (1 - 1e-9)


def test_published_bubbles() -> None:
    """(p-1)/m, divided by the chunks; a third of 1F1B's for ZB-H1 with equal passes; none for ZB-H2."""
    p, m = 8, 32
    s = StageSeconds([1.0] * p, [1.0] * p, [1.0] * p, 3.0)
    ideal = 3.0 * m
    assert pipeline_s("1f1b", s, m) / ideal - 1 == pytest.approx((p - 1) / m)
    assert pipeline_s("interleaved", StageSeconds(s.forward, s.backward, s.weights, 1.0), m) / ideal - 1 == (
        pytest.approx((p - 1) / (3 * m))
    )
    assert pipeline_s("zb_h1", s, m) - ideal == pytest.approx((pipeline_s("1f1b", s, m) - ideal) / 3)
    assert pipeline_s("zb_h2", s, m) == pytest.approx(ideal)


def test_messages_over_borders() -> None:
    """Every border is crossed once each way per chunk; chunks wrap round from the last stage to the first."""
    for p in (1, 2, 5):
        for v in (1, 2, 3):
            sent = [messages(i, p, v) for i in range(p)]
            assert sum(f for f, _ in sent) == sum(b for _, b in sent) == p * v - 1


def test_orders_that_wait_for_each_other_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="wait for each other"):
        play([[Operation("B", 0), Operation("F", 0)]], lambda stage, o: 1.0)
