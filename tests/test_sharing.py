"""Communications at the same time: alone nothing changes, on one link they share it, and nothing is lost or won."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmodel.systems.catalog import load_system
from dfmodel.systems.collectives import CollectiveCost, collective
from dfmodel.systems.network import Group, Part, place
from dfmodel.systems.sharing import fair_rates, stages_of, together

DGX = load_system("dgx", {"nodes": 4})
NVLINK, INFINIBAND = DGX.dimensions


def _on(*parts: Part) -> CollectiveCost:
    return collective("all_reduce", 1e9, Group(parts))


def test_alone_nothing_changes() -> None:
    for cost in (_on(Part(NVLINK, 8)), _on(Part(NVLINK, 8), Part(INFINIBAND, 4)), _on(Part(INFINIBAND, 4, 1))):
        assert together([cost]) == [pytest.approx(cost.seconds)]


def test_two_on_one_link_take_twice_and_two_on_two_links_do_not() -> None:
    """A link carries each at half its rate; the start uses none."""
    inner, outer = _on(Part(NVLINK, 8)), _on(Part(INFINIBAND, 4))
    assert together([outer, outer]) == [pytest.approx(2 * outer.seconds)] * 2
    assert together([inner, outer]) == [pytest.approx(inner.seconds), pytest.approx(outer.seconds)]


def test_the_shorter_leaves_the_link_to_the_longer() -> None:
    small, large = (collective("all_reduce", m, Group((Part(INFINIBAND, 4),))) for m in (1e8, 1e9))
    first, last = together([small, large])
    assert first == pytest.approx(2 * small.seconds)
    assert last == pytest.approx(small.seconds + large.seconds)


def test_pipelined_collectives_share_what_they_use_of_each_dimension() -> None:
    """One over both dimensions beside one over the outer: the outer is the bottleneck of both."""
    both, outer = _on(Part(NVLINK, 8), Part(INFINIBAND, 4)), _on(Part(INFINIBAND, 4))
    assert both.pieces > 1
    assert set(stages_of(both)[-1].busy) == {"nvlink", "infiniband"}
    done = together([both, outer])
    assert all(d >= c.seconds * (1 - 1e-12) for d, c in zip(done, (both, outer), strict=True))
    assert max(done) <= both.seconds + outer.seconds


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["all_reduce", "all_gather", "all_to_all", "point_to_point"]),
            st.floats(1e3, 1e10),
            st.sampled_from([(2, 1), (8, 1), (1, 4), (4, 2), (8, 4)]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_laws(calls: list[tuple[str, float, tuple[int, int]]]) -> None:
    """None is done before it would be alone, all are done no later than one after the other, and no dimension carries
    more than fits: the last is done no sooner than the busiest dimension could be."""
    costs = [collective(op, m, place([("d", f)], DGX.dimensions)["d"]) for op, m, f in calls]
    done = together(costs)
    assert all(d >= c.seconds * (1 - 1e-9) for d, c in zip(done, costs, strict=True))
    assert max(done) <= sum(c.seconds for c in costs) * (1 + 1e-9)
    busy: dict[str, float] = {}
    for cost in costs:
        for stage in stages_of(cost):
            for wire, share in stage.busy.items():
                busy[wire] = busy.get(wire, 0.0) + share * stage.seconds
    assert max(done) >= max(busy.values(), default=0.0) * (1 - 1e-9)


def test_fair_rates_fill_what_is_left() -> None:
    """Two on dimension a at half each; the third, on b with one of them, gets what that one leaves."""
    rates = fair_rates({0: {"a": 1.0}, 1: {"a": 1.0, "b": 0.4}, 2: {"b": 1.0}})
    assert rates == {0: pytest.approx(0.5), 1: pytest.approx(0.5), 2: pytest.approx(0.8)}
    assert fair_rates({0: {}}) == {0: 1.0}
