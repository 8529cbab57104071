"""HPL: closed sums equal steps played one by one, search equals brute force, and what cannot be run is explained."""

from __future__ import annotations

import itertools
import json
import math
import time
import tracemalloc

import numpy as np
import pytest

import dfmodel
from dfmodel.catalog_files import list_names
from dfmodel.cli import main
from dfmodel.errors import InfeasibleError, InputError
from dfmodel.mapping.families import FamilyRun
from dfmodel.mapping.grids import Grid, grids
from dfmodel.mapping.hpl import WIDTHS, HplPlan, HplSearch
from dfmodel.mapping.hpl_bound import closer_bound, least_seconds
from dfmodel.mapping.hpl_cost import HplTimer, Sizes, factorisation, steps
from dfmodel.mapping.map_block import SolverSettings
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.validation.paper import METRICS
from dfmodel.workloads.hpl import HplSettings, build, solve_flops

ASSUMPTIONS = load_assumptions("default")


def timer_of(system, **settings) -> HplTimer:
    return HplTimer(load_system(*system), ASSUMPTIONS, HplSettings(**settings))


def played(timer: HplTimer, sizes: Sizes, grid: Grid, overlap: str) -> float:
    """Seconds of a factorisation, one panel after another, every chip's share counted block by block."""
    width, blocks = sizes.block, sizes.blocks
    search = timer.search_s(grid.column, width)

    def held(first: int, parts: int) -> float:
        """Rows (or columns) of the blocks from `first` on that the chip with most of them holds."""
        return float(width * max(sum(1 for b in range(first, blocks) if b % parts == i) for i in range(parts)))

    def one(value: float) -> np.ndarray:
        return np.array([value])

    def panel(k: int) -> tuple[float, float]:
        rows = one(held(k, grid.rows))
        return float(timer.panel_s(rows, width, search)[0]), float(timer.broadcast_s(rows, width, grid.row)[0])

    total = sum(panel(0))
    for k in range(1, blocks):
        rows, columns = one(held(k, grid.rows)), one(held(k, grid.columns))
        update = float(timer.update_s(rows, columns, width)[0])
        exchange = float(timer.exchange_s(columns, width, grid.column)[0])
        ahead = sum(panel(k))
        total += {
            "none": update + ahead + exchange,
            "lookahead": max(update, ahead) + exchange,
            "split": max(update, ahead + exchange),
        }[overlap]
    return total + timer.solve_s(sizes, grid) + timer.refine_s(sizes, grid)


@pytest.mark.parametrize("overlap", ["none", "lookahead", "split"])
@pytest.mark.parametrize(("n", "block"), [(4096, 128), (5000, 192), (20000, 256), (300, 512)])
@pytest.mark.parametrize("settings", [{}, {"precision": "mixed", "dtype": "fp16"}])
def test_closed_sum_is_the_factorisation_played_step_by_step(overlap, n, block, settings):
    """A step that is miscounted, or a chip's share that is not the block-cyclic one, shows here."""
    timer = timer_of(("dgx_a100", {"nodes": 3}), **settings)
    for grid in grids(timer.system.dimensions, use_all_chips=True):
        sizes = Sizes(n, block)
        found = factorisation(timer, sizes, grid, overlap)
        assert found.seconds == pytest.approx(played(timer, sizes, grid, overlap), rel=1e-9)
        for kind, hidden in found.hidden.items():
            assert hidden == pytest.approx(found.work[kind] - found.exposed[kind], abs=1e-12)


@pytest.mark.parametrize(("blocks", "rows", "columns"), [(1, 3, 4), (2, 1, 1), (37, 4, 6), (64, 8, 8), (101, 7, 1)])
def test_steps_are_all_counted(blocks, rows, columns):
    """Every step once, with ceilings of the blocks left."""
    found = steps(Sizes(blocks * 10, 10), rows, columns)
    listed = [(r, c) for n, r, c in zip(found.count, found.rows, found.columns, strict=True) for _ in range(int(n))]
    assert listed == [(10 * math.ceil(b / rows), 10 * math.ceil(b / columns)) for b in range(1, blocks)]


@pytest.mark.parametrize(
    ("system", "changes", "n"),
    [
        ("dgx_a100", {"nodes": 6}, None),
        ("mi250x_node", {"nodes": 4}, 200_000),
        ("tpu_v5p", {"x": 2, "y": 4, "z": 3}, None),
    ],
)
def test_search_is_brute_force(system, changes, n):
    """No bound cuts the best grid, and no bound is above what it bounds."""
    loaded = load_system(system, changes)
    dtype = "fp64" if "fp64" in loaded.chip.matrix_flops_per_s else "bf16"
    settings = HplSettings(n=n, dtype=dtype)
    run = FamilyRun(build({"n": n, "dtype": dtype} if n else {"dtype": dtype}), loaded, ASSUMPTIONS, HplPlan(),
                    SolverSettings(), 0.0)  # fmt: skip
    search = HplSearch(run, settings, HplPlan())
    best = search.search()
    values = []
    for grid, width in itertools.product(search.grids, WIDTHS):
        sizes = search.sizes(grid, width)
        if sizes is None or not search.fits(grid, sizes):
            continue
        seconds = factorisation(search.timer, sizes, grid, "split").seconds
        loose, close = least_seconds(search.timer, [grid], [sizes])[0], closer_bound(search.timer, grid, sizes)
        assert loose <= seconds * (1 + 1e-12) and close <= seconds * (1 + 1e-12)
        values.append(seconds / solve_flops(sizes.n))
    assert best.value == pytest.approx(min(values), rel=1e-12)
    assert search.counted == len(search.grids) * len(WIDTHS)
    assert search.counted == search.infeasible + search.cut + len(search.found)


@pytest.mark.parametrize("system", list_names("systems"))
def test_every_system_runs_it(system):
    """A whole result with a proof on every system of the catalog."""
    result = dfmodel.optimize("hpl", system, settings={"plan.use_all_chips": True})
    assert result.status == "optimal"
    assert sum(result.breakdown_s.values()) == pytest.approx(result.objective, rel=1e-9)
    assert sum(result.memory_bytes.values()) <= result.memory_capacity_bytes
    assert result.plan["grid_rows"] * result.plan["grid_columns"] == result.plan["chips_used"]
    (mip,) = result.certificate.mips
    assert mip["status"] == "optimal"
    assert mip["objective"] == pytest.approx(result.objective / solve_flops(result.plan["n"]), rel=1e-9)


def test_more_of_anything_is_no_slower():
    """Faster chips, links and memory, more overlap and a larger matrix never lower the rate."""

    def rate(overlap="split", **changes):
        found = dfmodel.optimize("hpl", "dgx_a100", settings={"plan.overlap": overlap, "plan.block": 512, **changes})
        return found.metrics["rmax_flops_per_s"]

    base = rate()
    assert rate(**{"system.chip.peak.matrix.fp64": "39 TFLOP/s"}) > base
    assert rate(**{"system.topology.infiniband.link.bandwidth": "50 GB/s"}) >= base
    assert rate(**{"system.chip.memory.bandwidth": "4 TB/s"}) >= base
    assert rate(**{"workload.memory_fill": 0.5}) < base
    assert rate("none") < rate("lookahead") < base


def test_the_grid_follows_the_network():
    """Near square where links are equal; along the fast dimension where the others are slow."""
    equal = dfmodel.optimize("hpl", "hpl_circe").plan
    assert equal["grid_rows"] == equal["grid_columns"] == 24
    slow = dfmodel.optimize(
        "hpl", "dgx_a100", settings={"system.topology.infiniband.link.bandwidth": "0.5 GB/s", "plan.overlap": "none"}
    )
    assert "of nvlink" in slow.plan["placement"]["grid_rows"] + slow.plan["placement"]["grid_columns"]
    assert slow.baselines[0]["share"] >= 1


def test_a_hundred_thousand_chips_in_a_second_and_little_memory():
    """One factorisation of N = 2.4e7 on 100,000 chips: segments, not steps, and no array over chips."""
    timer = timer_of(("dgx_h100", {"nodes": 12500}), n=24_000_000)
    grid = next(g for g in grids(timer.system.dimensions, 250, 400) if g.chips == 100_000)
    tracemalloc.start()
    began = time.perf_counter()
    factorisation(timer, Sizes(24_000_000, 512), grid, "split")
    seconds = time.perf_counter() - began
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1.0
    assert most < 20e6


def test_mixed_precision_is_faster_and_says_what_it_stores():
    double = dfmodel.optimize("hpl", "dgx_a100")
    mixed = dfmodel.optimize("hpl", "dgx_a100", settings={"workload.precision": "mixed", "workload.dtype": "fp16"})
    assert mixed.metrics["rmax_flops_per_s"] > 4 * double.metrics["rmax_flops_per_s"]
    assert mixed.plan["n"] > 1.3 * double.plan["n"]
    assert mixed.workload["stored_in"] == "fp32" and "refinement" in mixed.breakdown_s


def test_circe_is_as_close_as_its_log_allows():
    """The original's solver left whole numbers one too high: at most 5e-6, and never above it."""
    result = dfmodel.optimize(study="hpl_circe")
    gain = 1 - METRICS["final_s"](result) / 0.06304543074356042
    assert 0 <= gain <= 5e-6


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"workload.n": 10_000_000}, InfeasibleError, r"short of memory by .* the largest N on its 256 chips is about"),
        ({"workload.n": 500}, InputError, "nothing to hold; the smallest N is"),
        ({"plan.grid_rows": 64, "plan.grid_columns": 64}, InputError, r"needs 4,096 chips, the system has 256"),
        ({"plan.grid_rows": 37}, InputError, "cannot be placed on 8 x 32 chips; nearest that can: 16, 32, 64"),
        ({"plan.grid_row": 4}, InputError, r"plan.grid_row: unknown key \(did you mean 'grid_rows'"),
        ({"plan.overlap": "all"}, InputError, "plan.overlap"),
        ({"plan.tensor": 8}, InputError, "plan.tensor: unknown key"),
        ({"workload.nb": 8}, InputError, "workload.nb: unknown key"),
        ({"workload.memory_fill": 1.5}, InputError, "workload.memory_fill"),
        ({"workload.iterations": 3}, InputError, "--assumptions paper"),
        ({"workload.dtype": "fp8"}, InputError, "no matrix peak for dtype 'fp8'"),
    ],
)
def test_what_cannot_be_run(settings, error, message):
    with pytest.raises(error, match=message):
        dfmodel.optimize("hpl", "dgx_a100", settings=settings)


def test_the_largest_matrix_it_names_fits():
    """The remedy of a message works."""
    with pytest.raises(InfeasibleError) as caught:
        dfmodel.optimize("hpl", "dgx_a100", settings={"workload.n": 10_000_000})
    named = int(str(caught.value).split("is about ")[1].split(":")[0].replace(",", ""))
    assert dfmodel.optimize("hpl", "dgx_a100", settings={"workload.n": named}).plan["n"] == named


def test_a_small_matrix_is_said_to_be_small():
    result = dfmodel.optimize("hpl", "dgx_a100", settings={"workload.n": 200_000})
    assert any("runs on lists fill 80 to 90 %" in text for text in result.assumed)


def test_command_line(tmp_path, capsys):
    """Text, JSON, folder and plots of a run; the run's config.yaml repeats it; evaluate takes its plan."""
    out = tmp_path / "run"
    assert main(["optimize", "--workload", "hpl", "--out", str(out), "--best", "3", "-q"]) == 0
    text = capsys.readouterr().out
    assert "per solve" in text and "Rmax" in text and "number 3" in text and "one-hot program" in text
    assert {p.name for p in (out / "plots").iterdir()} >= {"time_breakdown.png", "dataflow.png", "roofline.png"}
    saved = json.loads((out / "result.json").read_text())
    assert main(["optimize", "--study", str(out / "config.yaml"), "--no-save", "--json", "-q"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["objective"] == saved["objective"]
    plan = {k: saved["plan"][k] for k in ("grid_rows", "grid_columns", "block")}
    assert dfmodel.evaluate("hpl", "dgx_h100", plan=plan).objective == pytest.approx(saved["objective"])
    with pytest.raises(InputError, match="evaluate needs block as well"):
        dfmodel.evaluate("hpl", "dgx_h100", plan={"grid_rows": 8, "grid_columns": 32})
