"""FFTs: costs against counts made by hand, the search against brute force, and what cannot be divided."""

from __future__ import annotations

import json
import math

import pytest

import dfmodel
from dfmodel.catalog_files import list_names
from dfmodel.cli import main
from dfmodel.errors import InfeasibleError, InputError
from dfmodel.mapping.families import FamilyRun
from dfmodel.mapping.fft import FftPlan, FftSearch
from dfmodel.mapping.fft_cost import FftTimer, transform
from dfmodel.mapping.map_block import SolverSettings
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.workloads.fft import FftSettings, build

ASSUMPTIONS = load_assumptions("default")


def search_of(system, changes, **settings) -> FftSearch:
    run = FamilyRun(build(settings), load_system(system, changes), ASSUMPTIONS, FftPlan(), SolverSettings(), 0.0)
    return FftSearch(run, FftSettings(**settings), FftPlan())


@pytest.mark.parametrize(
    ("system", "changes", "settings"),
    [
        ("dgx_a100", {"nodes": 4}, {"nx": 256}),
        ("dgx_a100", {"nodes": 3}, {"nx": 48, "ny": 32, "nz": 96, "order": "natural"}),
        ("tpu_v5p", {"x": 4, "y": 2, "z": 4}, {"nx": 128, "dtype": "bf16", "direction": "pair"}),
        ("mi250x_node", {"nodes": 2}, {"length": 1 << 24, "order": "natural"}),
    ],
)
def test_search_is_brute_force(system, changes, settings):
    """No bound cuts the best plan, and none is above what it bounds."""
    search = search_of(system, changes, **settings)
    best = search.search()
    seconds = []
    for grid in search.grids:
        for _, layout in search.layouts(grid):
            for radix in search.radices:
                cost = transform(search.timer, layout, radix)
                assert search.least(layout) <= cost.seconds * (1 + 1e-12)
                seconds.append(cost.seconds)
    assert best.cost.seconds == pytest.approx(min(seconds), rel=1e-12)
    assert search.counted == len(seconds) == search.cut + len(search.found)


def test_bytes_and_flops_are_those_of_the_algorithm():
    """Pencils of n^3 points on p chips: two exchanges of 8 n^3 / p bytes, three passes, four sweeps, and
    5 n^3 log2 n^3 FLOP over the chips with radix 2."""
    plan = {"plan.grid_rows": 8, "plan.grid_columns": 32, "plan.radix": 2}
    result = dfmodel.optimize("fft", "dgx_a100", settings={"workload.nx": 512, **plan})
    local = 512**3 * 8 / 256
    assert result.metrics["exchanged_bytes_per_chip"] == pytest.approx(2 * local)
    transforms = [k for k in result.kernels if k.kernel.startswith("transform")]
    packing = [k for k in result.kernels if "pack" in k.kernel]
    assert sum(k.memory_bytes for k in transforms) == pytest.approx(3 * 2 * local)
    assert sum(k.memory_bytes for k in packing) == pytest.approx(4 * 2 * local)
    assert sum(k.flops for k in transforms) == pytest.approx(5 * 512**3 * 27 / 256)
    assert result.workload["flops"] == pytest.approx(5 * 512**3 * 27)


def test_six_steps_exchange_two_or_three_times():
    for order, exchanges in (("transposed", 2), ("natural", 3)):
        settings = {"workload.length": 1 << 30, "workload.order": order, "plan.use_all_chips": True}
        result = dfmodel.optimize("fft", "dgx_a100", settings=settings)
        assert sum(k.kernel.startswith("exchange") for k in result.kernels) == exchanges
        assert (1 << 30) % result.plan["n1"] == 0 and result.plan["n1"] % 256 == 0
        assert any(k.kernel == "twiddle" for k in result.kernels)


def test_lines_longer_than_on_chip_memory_take_more_passes():
    """A line that a unit cannot hold is transformed in two passes, one of its square in as many as the log says."""
    timer = FftTimer(load_system("dgx_a100"), ASSUMPTIONS, FftSettings())
    held = timer.line_points
    lengths = (1, math.floor(held), math.floor(held) + 1, math.floor(held**2), math.floor(held**2) + 1)
    assert [timer.passes(n) for n in lengths] == [0, 1, 2, 2, 3]
    whole = FftTimer(load_system("sn30_rack"), ASSUMPTIONS, FftSettings(dtype="bf16"))
    assert whole.line_points == pytest.approx(whole.system.chip.sram_bytes / 8)


def test_real_data_take_half_and_a_pair_twice():
    settings = {"plan.grid_rows": 1, "plan.grid_columns": 256, "plan.radix": 2}
    one = dfmodel.optimize("fft", "dgx_a100", settings=settings)
    real = dfmodel.optimize("fft", "dgx_a100", settings={**settings, "workload.data": "real"})
    pair = dfmodel.optimize("fft", "dgx_a100", settings={**settings, "workload.direction": "pair"})
    assert real.workload["flops"] == one.workload["flops"] / 2
    assert sum(real.memory_bytes.values()) == sum(one.memory_bytes.values()) / 2
    assert pair.objective == pytest.approx(2 * one.objective, rel=1e-12)


def test_more_of_anything_is_no_slower():
    base = dfmodel.optimize("fft", "dgx_a100", settings={"workload.nx": 2048})
    for changes in (
        {"system.topology.infiniband.link.bandwidth": "50 GB/s"},
        {"system.chip.memory.bandwidth": "4 TB/s"},
        {"system.chip.sram": "240 MiB"},
        {"system.nodes": 64},
    ):
        faster = dfmodel.optimize("fft", "dgx_a100", settings={"workload.nx": 2048, **changes})
        assert faster.objective <= base.objective * (1 + 1e-12), changes


def test_wide_radices_go_to_matrix_units():
    """On chips whose arithmetic binds, the radix is chosen for the unit that is fastest."""
    result = dfmodel.optimize("fft", "mem3d_ring")
    one = {r: dfmodel.optimize("fft", "mem3d_ring", settings={"plan.radix": r}).objective for r in (2, 4, 8, 16, 32)}
    assert result.objective == pytest.approx(min([*one.values(), result.objective]))
    assert result.objective <= min(one.values()) * (1 + 1e-12)


@pytest.mark.parametrize("system", list_names("systems"))
def test_every_system_runs_it(system):
    """A whole result with a proof on every system of the catalog."""
    result = dfmodel.optimize("fft", system, settings={"workload.nx": 512})
    assert result.status == "optimal"
    assert sum(result.breakdown_s.values()) == pytest.approx(result.objective, rel=1e-9)
    assert sum(result.memory_bytes.values()) <= result.memory_capacity_bytes
    (mip,) = result.certificate.mips
    assert mip["status"] == "optimal" and mip["objective"] == pytest.approx(result.objective, rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"workload.nx": 1000, "plan.grid_columns": 256},
            InputError,
            "1,000 does not divide over 256 chips; nearest.*1,024",
        ),
        (
            {"workload.length": 1000, "plan.grid_columns": 32},
            InputError,
            "no two factors that 32 chips divide; nearest.*1,024",
        ),
        (
            {"workload.length": 1 << 20, "plan.n1": 1000},
            InputError,
            "does not divide 1,048,576; nearest that does: 1,024",
        ),
        ({"workload.nx": 1001, "plan.use_all_chips": True}, InputError, "no grid over all 256 chips divides"),
        ({"workload.nx": 16384, "workload.ny": 65536}, InfeasibleError, "short of memory by .* at least"),
        ({"plan.grid_rows": 32, "plan.grid_columns": 32}, InputError, r"needs 1,024 chips, the system has 256"),
        ({"plan.grid_columns": 37}, InputError, "37 does not divide the system's dimensions; nearest"),
        ({"workload.length": 4096, "workload.nx": 16}, InputError, "one-dimensional; remove one of them"),
        ({"workload.lenght": 4096}, InputError, "did you mean 'length'"),
        ({"plan.radixx": 4}, InputError, "did you mean 'radix'"),
        ({"workload.nx": 0}, InputError, "workload.nx"),
    ],
)
def test_what_cannot_be_run(settings, error, message):
    with pytest.raises(error, match=message):
        dfmodel.optimize("fft", "dgx_a100", settings=settings)


def test_uneven_sides_charge_the_chip_with_most():
    result = dfmodel.optimize(
        "fft", "dgx_a100", settings={"workload.nx": 1000, "workload.uneven": True, "plan.grid_columns": 256}
    )
    assert result.memory_bytes["data"] == pytest.approx(math.ceil(1000 / 256) * 1000 * 1000 * 8)


def test_command_line(tmp_path, capsys):
    """Text, JSON, folder and plots of a run; the run's config.yaml repeats it."""
    out = tmp_path / "run"
    assert main(["optimize", "--workload", "fft", "--out", str(out), "-q"]) == 0
    text = capsys.readouterr().out
    assert "per transform" in text and "slabs" in text and "one-hot program" in text
    assert (out / "plots" / "dataflow.png").stat().st_size > 10_000
    saved = json.loads((out / "result.json").read_text())
    assert main(["optimize", "--study", str(out / "config.yaml"), "--no-save", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["objective"] == saved["objective"]
    assert saved["system"]["name"] == "dgx_a100"
