"""The training iteration: memory against published closed forms, ZeRO, tiers, overlap, schedules, and what adds up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyomo.environ as pyo
import pytest
from megatron_memory import CASES, GIB, Case, first_stage

import dfmodel
from dfmodel.errors import InfeasibleError, InputError
from dfmodel.mapping.model_state import optimizer_traffic, state_bytes, state_messages
from dfmodel.mapping.solver import solve
from dfmodel.mapping.tiers import Held, Tier, place
from dfmodel.systems.catalog import load_system
from dfmodel.systems.memory import Memory, merged
from dfmodel.systems.system import with_tiers

SMALL = {
    "workload.layers": 8,
    "workload.hidden": 2048,
    "workload.heads": 16,
    "workload.ffn": 8192,
    "workload.batch": 64,
    "system.nodes": 1,
}
FIXED = {**SMALL, "plan.tensor": 2, "plan.pipeline": 2, "plan.data": 2, "plan.micro_batch": 1}


def _run(**changes: object) -> dfmodel.Result:
    return dfmodel.optimize(settings={**FIXED, **{k.replace("__", "."): v for k, v in changes.items()}})


# --- published closed forms


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_korthikantis_memory(case: Case) -> None:
    """Parameters with optimizer state to 0.1 % (the closed form leaves out norms and biases), activations exactly, of
    the layers of the first stage; the embedding comes on top."""
    state = first_stage(case, "none", False, with_embedding=False)
    held = sum(state[p] for p in ("weights", "gradients", "optimizer state")) / GIB
    assert case.closed_state() == pytest.approx(case.state, rel=1e-9)
    assert held == pytest.approx(case.state, rel=1e-3)
    assert state["activations"] / GIB == pytest.approx(case.none, rel=1e-9)
    selective = first_stage(case, "selective", True, with_embedding=False)
    assert selective["activations"] / GIB == pytest.approx(case.selective, rel=1e-9)
    physical = first_stage(case, "none", False, with_embedding=True)
    assert 1.01 < (physical["weights"] / state["weights"]) < 1.15
    assert physical["activations"] >= state["activations"]


def test_korthikantis_shares_of_activation_memory() -> None:
    """Relative to tensor parallelism alone, 175B: 61.96, 56.5, 18.48 and 8.70 %."""
    case = CASES[1]
    base = first_stage(case, "none", False, with_embedding=False)["activations"]
    for mode, sequence, percent in (
        ("none", True, 61.96),
        ("selective", False, 56.5),
        ("selective", True, 18.48),
        ("full", False, 8.70),
    ):
        held = first_stage(case, mode, sequence, with_embedding=False)["activations"]
        assert 100 * held / base == pytest.approx(percent, abs=0.03)
        assert held / GIB == pytest.approx(case.closed_activations(mode, sequence), rel=1e-9)


# --- ZeRO


@pytest.mark.parametrize("data", [1, 4, 64])
def test_zero_divides_the_state(data: int) -> None:
    """16, 4 + 12/N, 2 + 14/N and 16/N bytes per parameter with 16-bit gradients, 18 with fp32 ones (ZeRO, table 1)."""
    per = [state_bytes(2.0, 1.0, zero, data, "fp16", 12.0).total for zero in range(4)]
    assert per == pytest.approx([16, 4 + 12 / data, 2 + 14 / data, 16 / data])
    assert state_bytes(2.0, 1.0, 0, data, "fp32", 12.0).total == 18


def test_zero_messages() -> None:
    """Elements sent per parameter and step with one micro-batch: 2 (an all-reduce sends each twice), 2, 2, 3."""
    passes = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
    for zero, elements in enumerate((2, 2, 2, 3)):
        messages = state_messages(2.0, 1.0, zero, "bf16")
        assert sum(passes[m.operation] * m.bytes / 2 for m in messages) == elements
    assert optimizer_traffic(100.0, 1, 4, "fp32") == pytest.approx(optimizer_traffic(100.0, 0, 4, "fp32") / 4)


def test_zero_in_a_run() -> None:
    """Each stage holds less; 1 sends as much as 0 and updates less; 3 gathers weights in every micro-batch."""
    runs = [_run(plan__zero=z, plan__recompute="none") for z in range(4)]
    held = [sum(v for k, v in r.memory_bytes.items() if k in ("weights", "gradients", "optimizer state")) for r in runs]
    assert held == sorted(held, reverse=True)
    assert held[0] > held[3]
    assert runs[1].breakdown_s["optimizer"] < runs[0].breakdown_s["optimizer"]
    gathered = [
        r.breakdown_s.get("parameter gathering", 0.0) + r.hidden_s.get("parameter gathering", 0.0) for r in runs
    ]
    assert gathered[0] == 0 < gathered[1] < gathered[3]


# --- overlap and sharing


def test_nothing_hides_without_overlap() -> None:
    """With no overlap all of the reduction is exposed; more overlap never slows; exposed and hidden stay the sum."""
    runs = [_run(plan__zero=1, assumptions__iteration__overlap_share=s) for s in (0.0, 0.5, 1.0)]
    sums = [r.breakdown_s["data-parallel reduction"] + r.hidden_s["data-parallel reduction"] for r in runs]
    assert sums == pytest.approx([sums[0]] * 3)
    assert [r.objective for r in runs] == sorted((r.objective for r in runs), reverse=True)
    slower = _run(
        plan__zero=1, assumptions__iteration__overlap_share=1.0, assumptions__iteration__bucket_parameters=1e12
    )
    assert slower.objective >= runs[2].objective


def test_groups_that_share_links_hide_less() -> None:
    """Tensor- and data-parallel chips of one switch take turns on its links: less of the reduction is hidden than where
    the data-parallel group has links of its own."""
    base = {**SMALL, "system.nodes": 2, "plan.tensor": 4, "plan.data": 2, "plan.pipeline": 2, "plan.zero": 0,
            "plan.micro_batch": 1, "plan.recompute": "none", "system.topology.infiniband.link": "nvlink4",
            "system.topology.infiniband.in_network_reduction": True,
            "system.topology.nvlink.link.bandwidth": "4 GB/s"}  # fmt: skip
    shared = dfmodel.optimize(settings={**base, "plan.placement": {"data": {"nvlink": 2, "infiniband": 1}}})
    apart = dfmodel.optimize(settings={**base, "plan.placement": {"data": {"nvlink": 1, "infiniband": 2}}})
    assert "nvlink" in shared.plan["placement"]["data"]
    assert "infiniband" in apart.plan["placement"]["data"]
    assert shared.breakdown_s["data-parallel reduction"] > apart.breakdown_s["data-parallel reduction"]


# --- recomputation and schedules


def test_recomputation_trades_time_for_memory() -> None:
    """Unfused attention, so scores are kept: none, selective, full hold ever less and take ever longer; FSDP's full
    leaves out the last matrix kernel."""
    held, again, done = {}, {}, {}
    for mode in ("none", "selective", "full", "full_but_last"):
        r = _run(plan__recompute=mode, plan__zero=0, workload__attention="separate")
        held[mode], again[mode] = r.memory_bytes["activations"], r.breakdown_s["recomputation"]
        done[mode] = r.metrics["hfu"] * r.objective
    assert held["none"] > held["selective"] > held["full"] == held["full_but_last"]
    assert again["none"] == 0 < again["selective"] < again["full_but_last"] < again["full"]
    assert done["none"] < done["selective"] < done["full_but_last"] < done["full"]


def test_schedules_of_a_run() -> None:
    """Interleaving shrinks the bubble, sends and holds more; zero bubble fills it; GPipe holds all micro-batches."""
    base = {"plan__zero": 0, "plan__recompute": "none"}
    plain = _run(**base)
    inter = _run(**base, plan__chunks=2)
    assert (inter.plan["schedule"], inter.plan["chunks"]) == ("interleaved", 2)
    assert inter.breakdown_s["pipeline bubble"] < plain.breakdown_s["pipeline bubble"]
    assert inter.breakdown_s["pipeline communication"] > plain.breakdown_s["pipeline communication"]
    assert inter.memory_bytes["activations"] > plain.memory_bytes["activations"]
    h1, h2 = (_run(**base, plan__schedule=s) for s in ("zb_h1", "zb_h2"))
    assert plain.objective > h1.objective > h2.objective
    gpipe = _run(**base, plan__schedule="gpipe")
    assert gpipe.memory_bytes["activations"] > 5 * plain.memory_bytes["activations"]


def test_what_a_run_adds_up_to() -> None:
    """Categories of time make the iteration, categories of bytes what the tiers hold; the layers are all placed."""
    for zero in (0, 1):
        r = _run(plan__zero=zero)
        assert sum(r.breakdown_s.values()) == pytest.approx(r.objective, rel=1e-12)
        held = sum(sum(tier.values()) for tier in r.memory_tiers.values())
        assert held == pytest.approx(sum(r.memory_bytes.values()), rel=1e-12)
        assert [sum(column) for column in zip(*r.plan["layers_per_stage"], strict=True)] == [1, 8, 1]
        assert all(v >= 0 for v in (*r.breakdown_s.values(), *r.hidden_s.values()))


def test_host_time_comes_on_top() -> None:
    assert _run(assumptions__iteration__host_s=0.25).objective == pytest.approx(_run().objective + 0.25)


# --- memory tiers


def _program(held: dict[str, Held], tiers: list[Tier]) -> float | None:
    """The linear program of the placement by HiGHS: seconds, or None where nothing fits."""
    m = pyo.ConcreteModel(name="tiers")
    m.x = pyo.Var(list(held), range(len(tiers)), domain=pyo.NonNegativeReals)
    m.placed = pyo.Constraint(list(held), rule=lambda m, c: sum(m.x[c, t] for t in range(len(tiers))) == held[c].bytes)
    m.room = pyo.Constraint(
        range(len(tiers)), rule=lambda m, t: sum(m.x[c, t] for c in held) <= tiers[t].capacity_bytes
    )
    m.objective = pyo.Objective(
        expr=sum(m.x[c, t] * held[c].density / tiers[t].bytes_per_s for c in held for t in range(len(tiers)) if t > 0)
    )
    return solve(m).objective


@pytest.mark.parametrize("seed", range(60))
def test_placement_is_the_programs_optimum(seed: int) -> None:
    """Filling the nearest tier with what is moved most equals the linear program, and is feasible when it is; more
    capacity or bandwidth of any tier never costs time."""
    rng = np.random.default_rng(seed)
    held = {
        f"c{i}": Held(float(rng.integers(0, 50)), float(rng.integers(0, 500))) for i in range(int(rng.integers(1, 6)))
    }
    held = {k: v if v.bytes else Held(0.0, 0.0) for k, v in held.items()}
    tiers = [
        Tier(f"t{i}", float(rng.integers(5, 80)), float(rng.integers(1, 20))) for i in range(int(rng.integers(1, 5)))
    ]
    found, optimum = place(held, tiers), _program(held, tiers)
    assert found.fits == (optimum is not None)
    if optimum is None:
        assert sum(found.missing.values()) == pytest.approx(
            sum(h.bytes for h in held.values()) - sum(t.capacity_bytes for t in tiers)
        )
        return
    assert found.seconds == pytest.approx(optimum, rel=1e-7, abs=1e-9)
    for i, tier in enumerate(tiers):
        for better in (
            replace(tier, capacity_bytes=1.5 * tier.capacity_bytes),
            replace(tier, bytes_per_s=2 * tier.bytes_per_s),
        ):
            assert place(held, [*tiers[:i], better, *tiers[i + 1 :]]).seconds <= found.seconds * (1 + 1e-12)


def test_state_spills_to_the_next_tier() -> None:
    """With little HBM the optimizer state, moved least, goes to the second tier and costs time; without a second tier
    the error says what is short by how much."""
    small = {**FIXED, "plan.zero": 0, "plan.recompute": "none"}
    two = [{"base": "hbm3_h100", "capacity": "2.5 GiB"}, "ddr5_12ch"]
    spilled = dfmodel.optimize(settings={**small, "system.chip.memory": two})
    plenty = dfmodel.optimize(settings=small)
    assert "optimizer state" in spilled.memory_tiers["ddr5_12ch"]
    assert "activations" not in spilled.memory_tiers["ddr5_12ch"]
    assert spilled.breakdown_s["lower memory tiers"] > 0
    assert spilled.objective > plenty.objective
    faster = [two[0], {"base": "ddr5_12ch", "bandwidth": "1 TB/s"}]
    assert dfmodel.optimize(settings={**small, "system.chip.memory": faster}).objective < spilled.objective
    with pytest.raises(InfeasibleError, match=r"is short of memory .* per chip for optimizer state"):
        dfmodel.optimize(settings={**small, "system.chip.memory": two[0]})


def test_tiers_read_as_one() -> None:
    """The original's reading: capacities together, bandwidth their capacity-weighted mean; or the first tier alone."""
    near, far = Memory("near", 64e9, 1600e9), Memory("far", 960e9, 200e9)
    one = merged([near, far])
    assert (one.capacity_bytes, one.bytes_per_s) == (1024e9, pytest.approx((64 * 1600 + 960 * 200) / 1024 * 1e9))
    assert merged([near, replace(far, capacity_bytes=math.inf)]).bytes_per_s == 200e9
    system = load_system("sn40l_ring")
    assert len(with_tiers(system, "placed").chip.memories) >= len(with_tiers(system, "first").chip.memories) == 1


# --- bad input


@pytest.mark.parametrize(
    "settings,text",
    [
        ({"plan.pipeline": 16, "plan.tensor": 1, "plan.data": 1, "system.nodes": 2}, "more pipeline stages than"),
        ({"plan.micro_batch": 3}, "no plan divides a batch of 64"),
        ({"plan.chunks": 3}, "8 layers do not divide into 2 stages of 3 chunks; with 2 stages chunks may be 2, 4"),
        ({"plan.chunks": 2, "workload.batch": 66, "plan.data": 2, "plan.micro_batch": 11}, "multiples of the 2 stages"),
        ({"plan.chunks": 2, "plan.schedule": "gpipe"}, "only schedule interleaved has chunks"),
        ({"plan.schedule": "interleaved"}, "needs the number of chunks"),
        ({"plan.schedule": "1f2b"}, "must be one of gpipe"),
        ({"plan.zero": 4}, "must be one of 0, 1, 2, 3"),
        ({"assumptions.memory.gradient": "fp8"}, "memory.gradient"),
    ],
)
def test_plans_that_cannot_be(settings: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        dfmodel.optimize(settings={**FIXED, **settings})
