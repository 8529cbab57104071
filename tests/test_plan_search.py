"""The search of kernel-by-kernel chips: pruned equals exhaustive, bounds are admissible, plans distinct and legal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import dfmodel
from dfmodel.errors import InfeasibleError, InputError
from dfmodel.mapping.best_first import BestFirst
from dfmodel.mapping.block_costs import BlockCosts, longer_over, repriced
from dfmodel.mapping.map_block import SolverSettings
from dfmodel.mapping.plan import Plan, PlanRequest, plan_request
from dfmodel.mapping.search import Search
from dfmodel.mapping.space import PlanClass, PlanSpace, Rows
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import innermost, place
from dfmodel.systems.system import System
from dfmodel.workloads.registry import build_workload

TINY = {"layers": 4, "hidden": 512, "heads": 8, "ffn": 2048, "vocabulary": 1024, "sequence": 256, "max_sequence": 256}


def _settings(seed: int) -> dict[str, object]:
    """A small random problem: two dimensions, slow or fast links, memory that is plenty or short, an objective."""
    rng = random.Random(seed)
    inner, outer = rng.choice([(1, 2), (2, 2), (4, 1), (3, 1), (2, 3), (4, 2)])
    found: dict[str, object] = {f"workload.{k}": v for k, v in TINY.items()}
    found |= {
        "workload.layers": rng.choice([2, 4, 5]),
        "workload.batch": rng.choice([4, 6, 8]),
        "system.nodes": outer,
        "system.topology.nvlink.size": inner,
        "system.topology.nvlink.link.bandwidth": f"{rng.choice([1, 25, 100])} GB/s",
        "system.topology.infiniband.link.bandwidth": f"{rng.choice([1, 10, 50])} GB/s",
        "system.chip.memory.capacity": f"{rng.choice([40, 120, 300, 4000])} MiB",
        "system.chip.price": "1000 USD",
        "plan.objective": rng.choice(["time", "time", "cost", "energy"]),
        "plan.micro_batch": rng.choice([1, 2]),
    }
    if rng.random() < 0.3:
        found["plan.batch_at_most"] = True
    if rng.random() < 0.2:
        found["plan.use_all_chips"] = True
    return found


def _value(r: dfmodel.Result, objective: object) -> float:
    """What was minimised, from the result's own figures."""
    seconds = r.objective / r.plan["batch"]
    return seconds if objective == "time" else seconds * r.plan["chips_used"]


def _whole_and_pruned(settings: dict[str, object], *names: str) -> tuple[dfmodel.Result, dfmodel.Result] | None:
    """A problem searched without and with pruning, its counts checked; None where nothing fits, in both alike."""
    try:
        whole = dfmodel.optimize(*names, settings=settings, prune=False)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            dfmodel.optimize(*names, settings=settings)
        return None
    pruned = dfmodel.optimize(*names, settings=settings)
    for c in (whole.certificate, pruned.certificate):
        assert c.plans_counted == c.plans_evaluated + c.plans_infeasible + c.plans_settled_by_bound
    return whole, pruned


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_pruned_equals_exhaustive(first: int) -> None:
    """200 random problems: the same optimum with and without pruning, the counts add up, far fewer plans evaluated."""
    for seed in range(first, first + 10):
        settings = _settings(seed)
        found = _whole_and_pruned(settings)
        if found is None:
            continue
        whole, pruned = found
        objective = settings["plan.objective"]
        assert _value(pruned, objective) == pytest.approx(_value(whole, objective), rel=1e-9), seed
        assert pruned.certificate.plans_counted == whole.certificate.plans_counted
        assert pruned.certificate.plans_evaluated <= whole.certificate.plans_evaluated


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_pruned_equals_exhaustive_on_dataflow_chips(seed: int) -> None:
    """The same where every class has a partitioning of its own: forward passes, and a training run, on few sockets."""
    rng = random.Random(900 + seed)
    settings = {f"workload.{k}": v for k, v in TINY.items()} | {
        "workload.mode": "training" if seed == 0 else "forward",
        "workload.batch": rng.choice([4, 6]),
        "workload.layers": rng.choice([2, 4]),
        "system.x": rng.choice([1, 2, 3]),
        "system.y": rng.choice([1, 2]),
        "system.chip.sram": f"{rng.choice([2, 8, 64])} MiB",
        "system.memory": {"base": "ddr_dse", "bandwidth": f"{rng.choice([5, 50, 300])} GB/s"},
        "assumptions.partitions.overlap": rng.choice(["full", "none"]),
        "plan.micro_batch": 1,
    }
    found = _whole_and_pruned(settings, "llm", "dse_2d_torus")
    if found is None:
        return
    whole, pruned = found
    # what is proven of the winner afterwards may improve it further; the search itself must agree
    assert pruned.objective == pytest.approx(whole.objective, rel=1e-9)
    assert pruned.status == whole.status == "optimal"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_context_parallelism_pruned_equals_exhaustive(seed: int) -> None:
    """The same where the micro-batch is open too, so that classes dominate others: long sequences, few of them."""
    rng = random.Random(300 + seed)
    settings = {**_settings(seed), "workload.sequence": 2048, "workload.max_sequence": 2048}
    settings |= {
        "workload.batch": rng.choice([2, 4]),
        "workload.layers": 2,
        "system.topology.nvlink.size": rng.choice([2, 4]),
        "system.nodes": rng.choice([1, 2]),
        "system.chip.memory.capacity": f"{rng.choice([150, 400, 4000])} MiB",
        "workload.attention": rng.choice(["fused", "separate"]),
    }
    del settings["plan.micro_batch"]
    found = _whole_and_pruned(settings)
    if found is None:
        return
    whole, pruned = found
    objective = settings["plan.objective"]
    assert _value(pruned, objective) == pytest.approx(_value(whole, objective), rel=1e-9)
    assert pruned.certificate.plans_counted == whole.certificate.plans_counted


@pytest.mark.parametrize("prune", [True, False])
def test_any_schedule_is_the_best_of_each(prune: bool) -> None:
    """plan.schedule=any finds what the best of the searches with one schedule finds, and counts all their plans."""
    settings = {
        **{f"workload.{k}": v for k, v in TINY.items()},
        "workload.batch": 16,
        "workload.layers": 8,
        "system.topology.nvlink.size": 2,
        "system.nodes": 4,
        "plan.micro_batch": 1,
        "plan.tensor": 1,
    }
    runs = {
        schedule: dfmodel.optimize("llm", "dgx", settings={**settings, **asked}, prune=prune)
        for schedule, asked in (
            ("open", {}),
            *((s, {"plan.schedule": s}) for s in ("gpipe", "zb_h1", "zb_h2", "any")),
        )
    }
    found = runs.pop("any")
    assert found.objective == pytest.approx(min(r.objective for r in runs.values()), rel=1e-12)
    counted = sum(runs[s].certificate.plans_counted for s in ("open", "zb_h1", "zb_h2"))
    assert found.certificate.plans_counted == counted
    assert found.objective <= runs["gpipe"].objective


def _search(system: System, workload: dict[str, object], request: PlanRequest) -> Search:
    built = build_workload("llm", {**workload, "attention": "fused"})
    return Search(built, system, load_assumptions("default"), request, SolverSettings(), lambda text: None)


def _spaces() -> Iterator[tuple[Search, PlanSpace]]:
    for system, overrides, workload in (
        ("dgx", {"nodes": 2, "topology.nvlink.size": 4}, {**TINY, "batch": 8}),
        ("dgx", {"nodes": 3, "topology.nvlink.size": 2}, {**TINY, "batch": 12, "layers": 6}),
        ("tpu_v4", {"x": 2, "y": 2, "z": 2}, {**TINY, "batch": 8}),
        ("tpu_v4", {"x": 8, "y": 2, "z": 1}, {**TINY, "batch": 8}),  # groups share the links of a longer ring
    ):
        for request in ({}, {"micro_batch": 1, "batch_at_most": True}, {"use_all_chips": True, "micro_batch": 2}):
            search = _search(load_system(system, overrides), workload, plan_request(request))
            yield search, PlanSpace(search.workload, search.system, search.request)


def _plans(space: PlanSpace) -> Iterator[tuple[PlanClass, Rows, int, Plan]]:
    for c in space.classes():
        rows = space.rows(c)
        for row in range(len(rows)):
            for plan in space.plans_of(c, rows, row):
                yield c, rows, row, plan


def test_counted_plans_are_distinct_and_legal() -> None:
    """As many plans as counted, no two alike, each within the topology and the batch, each exportable."""
    for search, space in _spaces():
        seen = set()
        counted = sum(space.rows(c).plans for c in space.classes())
        for _, _, _, plan in _plans(space):
            key = (plan.factors, plan.sequence, plan.micro_batch, plan.recompute, plan.schedule, plan.chunks, plan.zero)
            assert key not in seen
            seen.add(key)
            for dimension, used in zip(search.system.dimensions, np.prod(plan.factors, axis=0), strict=True):
                assert used <= dimension.size
            assert plan.degree("pipeline") <= search.workload.layers
            assert plan.batch <= search.workload.batch
            assert search.request.batch_at_most or plan.batch == search.workload.batch
            assert not search.request.use_all_chips or plan.chips == search.system.chips
            assert plan.describe()["chips_used"] + plan.describe()["chips_idle"] == search.system.chips
        assert len(seen) == counted >= 50


def _key(c: PlanClass, rows: Rows, row: int) -> tuple[object, ...]:
    names = ("data", "pipeline", "micro_batches", "recompute", "zero", "chunks")
    return (c, *(int(getattr(rows, n)[row]) for n in names))


@pytest.mark.slow
def test_every_bound_is_admissible() -> None:
    """No plan of a space is faster than its bounds before and after mapping and in its place, and memory cuts none that
    fits."""
    from dfmodel.mapping import kernel_search

    checked = dominated = placed = 0
    for search, space in _spaces():
        bounds: list[tuple[PlanClass, Rows, np.ndarray]] = []
        of_classes: dict[PlanClass, float] = {}
        of_plans: list[tuple[Plan, float]] = []

        class Spy(BestFirst):
            def _push(self, bound: float, node: object) -> None:
                if hasattr(node, "bounds"):
                    bounds.append((node.plan_class, node.rows, node.bounds))  # noqa: B023
                elif hasattr(node, "plan"):
                    of_plans.append((node.plan, bound))  # noqa: B023
                else:
                    of_classes[node.plan_class] = max(of_classes.get(node.plan_class, 0.0), bound)  # type: ignore[attr-defined] # noqa: B023
                super()._push(bound, node)  # type: ignore[arg-type]

        kernel_search.BestFirst, kept = Spy, kernel_search.BestFirst  # type: ignore[misc]
        try:
            kernel_search.search_plans(search, search.request, search.value, lambda: np.inf)
        finally:
            kernel_search.BestFirst = kept  # type: ignore[misc]
        for plan, bound in of_plans:
            assert bound <= _value_of(search, plan) * (1 + 1e-9), plan.describe()
        placed += len(of_plans)
        known: dict[tuple[object, ...], float] = {}
        for c, rows, values in bounds:
            for row in range(len(rows)):
                key = _key(c, rows, row)
                known[key] = max(known.get(key, 0.0), float(values[row]))
        for c, rows, row, plan in _plans(space):
            found = search.evaluate(plan)
            if found is None:
                continue
            value = search.value(found) * (1 + 1e-9)
            if _key(c, rows, row) in known:
                assert known[_key(c, rows, row)] <= value, plan.describe()
                assert of_classes[c] <= value, plan.describe()
                checked += 1
            else:
                assert any(_value_of(search, other) <= value for other in _dominating(plan)), plan.describe()
                dominated += 1
    assert checked > 2000 and dominated > 200 and placed > 500


def _dominating(plan: Plan) -> Iterator[Plan]:
    """Plans with fewer context and more data parallel chips and smaller micro-batches that do the same."""
    tensor, context, data, pipeline = plan.factors
    for prime in (2, 3, 5, 7):
        for axis, factor in enumerate(context):
            if factor % prime == 0 and plan.micro_batch % prime == 0:
                fewer = tuple(c // prime if i == axis else c for i, c in enumerate(context))
                more = tuple(d * prime if i == axis else d for i, d in enumerate(data))
                factors = (tensor, fewer, more, pipeline)
                yield replace(plan, factors=factors, micro_batch=plan.micro_batch // prime)


def _value_of(search: Search, plan: Plan) -> float:
    found = search.evaluate(plan)
    return np.inf if found is None else search.value(found)


def test_repriced_blocks_equal_mapped_ones() -> None:
    """A thousand random contexts of a large space: a mapping priced over another group equals the scalar evaluation of
    the same mapping there, to 1e-12."""
    search = _search(load_system("dgx", {"nodes": 16}), {**TINY, "heads": 32, "hidden": 1024}, PlanRequest())
    space = PlanSpace(search.workload, search.system, search.request)
    classes = [c for c in space.classes() if c.degree * c.context_degree > 1]
    rng = random.Random(3)
    compared = 0
    while compared < 1000:
        c = rng.choice(classes)
        dimensions = search.system.dimensions
        groups = place([("tensor", c.tensor), ("context", c.context)], dimensions)
        inner = {name: innermost(group.size, dimensions) for name, group in groups.items()}
        where, there_in = (search.mapper.context_of(g["tensor"], c.sequence, g["context"]) for g in (inner, groups))
        for block in range(3):
            here = search.mapper.mapped_in(where, c.micro_batch, block)
            there = search.mapper.mapped_in(there_in, c.micro_batch, block)
            for mode in space.recomputes:
                longer = [
                    longer_over(here.evaluation, mode, over, lambda op, size, g=groups[over]: search.price(op, size, g))
                    for over in ("tensor", "context")
                ]
                moved = repriced(here.costs(mode, True), longer)
                expected: BlockCosts = there.costs(mode, True)
                for name in ("forward_s", "backward_s", "weights_s", "repeated_s", "saved_bytes", "parameters"):
                    assert getattr(moved, name) == pytest.approx(getattr(expected, name), rel=1e-12, abs=1e-18)
                compared += 1


def test_the_k_best_plans() -> None:
    """The K best distinct plans equal those of full enumeration; within a margin none is outside it."""
    settings = {**_settings(4), "plan.objective": "time", "system.chip.memory.capacity": "4000 MiB"}
    whole = dfmodel.optimize(settings={**settings, "plan.best": 12}, prune=False)
    best = dfmodel.optimize(settings={**settings, "plan.best": 12, "plan.within": 0.5})
    expected = [a["iteration_s"] for a in whole.alternatives if a["iteration_s"] <= 1.5 * whole.objective][:12]
    assert [a["iteration_s"] for a in best.alternatives] == pytest.approx(expected, rel=1e-9)
    assert [a["rank"] for a in best.alternatives] == list(range(1, len(expected) + 1))
    assert len({str(dict(a)) for a in best.alternatives}) == len(best.alternatives)


def test_a_proof_that_slows_the_winner_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks faster by themselves may hold more and make a slower iteration: then the winner stays as it was."""
    settings = {**_settings(4), "plan.objective": "time", "system.chip.memory.capacity": "4000 MiB"}
    kept = dfmodel.optimize(settings=settings)

    def slower(self: Search, plan: Plan) -> object:
        found = self.evaluate(plan)
        assert found is not None
        return replace(found, iteration=replace(found.iteration, seconds=2 * found.iteration.seconds))

    monkeypatch.setattr(Search, "_again", slower)
    again = dfmodel.optimize(settings=settings)
    assert again.objective == pytest.approx(kept.objective, rel=1e-12)
    assert again.status == "optimal"


def test_baselines_are_never_better() -> None:
    """Pure data parallelism, Megatron's rule and a plan to compare with stand beside the optimum, none below it."""
    small = {"workload.layers": 8, "workload.hidden": 2048, "workload.heads": 16, "workload.ffn": 8192,
             "workload.batch": 64, "system.nodes": 2}  # fmt: skip
    r = dfmodel.optimize(settings={**small, "plan.compare": {"tensor": 2, "pipeline": 2, "data": 4}})
    assert [b["name"].split()[0] for b in r.baselines] == ["pure", "Megatron's", "the"]
    shares = [b["share"] for b in r.baselines]
    assert all(s is not None and s >= 1 - 1e-9 for s in shares)
    fixed = dfmodel.optimize(settings={**small, "plan.tensor": 2, "plan.pipeline": 2, "plan.data": 4})
    assert r.baselines[2]["seconds"] == pytest.approx(fixed.objective, rel=1e-9)


def test_idle_chips() -> None:
    """A batch that only an odd number of chips divides leaves chips idle, unless all must be used; limits on chips,
    power and cost are kept."""
    base = {**{f"workload.{k}": v for k, v in TINY.items()}, "workload.batch": 5, "workload.layers": 5,
            "system.nodes": 1, "system.topology.nvlink.size": 6, "plan.tensor": 1}  # fmt: skip
    r = dfmodel.optimize(settings=base)
    assert (r.plan["chips_used"], r.plan["chips_idle"]) == (5, 1)
    with pytest.raises((InfeasibleError, InputError)):
        dfmodel.optimize(settings={**base, "plan.use_all_chips": True, "plan.pipeline": 1})
    assert dfmodel.optimize(settings={**base, "plan.at_most_chips": 3}).plan["chips_used"] <= 3
    priced = {**base, "system.chip.price": "1000 USD", "cost": "stated"}
    assert dfmodel.optimize(settings={**priced, "plan.at_most_cost": "2100 USD"}).plan["chips_used"] <= 2
    watts = dfmodel.optimize(settings={**base, "plan.at_most_power": "1.5 kW", "cost": "stated"})
    assert watts.plan["chips_used"] <= 2


@pytest.mark.parametrize(
    "settings,text",
    [
        ({"plan.objective": "speed"}, "must be one of time, cost, energy"),
        ({"plan.objective": "cost", "cost": "stated"}, "price of chip 'h100_sxm' is not stated"),
        ({"plan.at_most_power": "3 parsecs"}, "plan.at_most_power"),
        ({"plan.best": 0}, "plan.best"),
        ({"plan.within": "much"}, "plan.within"),
        ({"plan.compare": {"tensr": 2}}, "tensr"),
        ({"plan.placement": {"tensor": {"nvlnk": 2}}}, "did you mean 'nvlink'"),
        ({"plan.tensor": 512}, "needs 512 chips, the system has 256"),
    ],
)
def test_what_cannot_be_asked(settings: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        dfmodel.optimize(settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 30, 5))
def test_more_of_a_resource_never_hurts(first: int) -> None:
    """On random small problems: doubling link or memory bandwidth, memory or peak never gives a worse optimum."""
    for seed in range(first, first + 5):
        settings = {**_settings(seed), "plan.objective": "time"}
        memory = str(settings["system.chip.memory.capacity"]).split()[0]
        try:
            before = dfmodel.optimize(settings=settings)
        except InfeasibleError:
            continue
        for better in (
            {"system.chip.memory.bandwidth": "6.7 TB/s"},
            {"system.chip.memory.capacity": f"{2 * int(memory)} MiB"},
            {"system.chip.peak.matrix.bf16": "1978 TFLOP/s"},
            {"system.topology.nvlink.link.bandwidth": "200 GB/s"},
            {"system.topology.infiniband.link.bandwidth": "100 GB/s"},
            {"system.topology.nvlink.link.latency": "0 us"},
        ):
            after = dfmodel.optimize(settings={**settings, **better})
            old, new = (r.objective / r.plan["batch"] for r in (before, after))
            assert new <= old * (1 + 1e-9), (seed, better)
