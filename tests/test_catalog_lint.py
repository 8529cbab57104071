"""The catalogs are whole and sound: every file lints, comes back from a dump and runs; slips are explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dfmodel.api import run
from dfmodel.catalog_files import list_names, load_yaml, packaged_catalogs
from dfmodel.cli import main
from dfmodel.config import build_config
from dfmodel.errors import InputError
from dfmodel.systems.catalog import load_chip, load_efficiency, load_link, load_memory, load_system
from dfmodel.systems.design_points import design_points
from dfmodel.systems.lint import LOADERS, lint_catalogs, lint_file
from dfmodel.systems.peaks import sparse_peaks

FILES = [(kind, name) for kind in LOADERS for name in list_names(kind)]
CHIPS = [n for n in list_names("chips") if "alias_of" not in load_yaml(packaged_catalogs() / "chips" / f"{n}.yaml")]

#: A layer pair that fits 230 MB a chip, whole on each of four chips.
SMALL = {
    "system.nodes": 1,
    "system.topology.nvlink.size": 4,
    "workload.layers": 2,
    "workload.hidden": 512,
    "workload.heads": 8,
    "workload.ffn": 2048,
    "workload.vocabulary": 1024,
    "workload.sequence": 256,
    "workload.batch": 8,
    "plan.tensor": 1,
    "plan.pipeline": 1,
    "plan.data": 4,
    "plan.micro_batch": 1,
    "plan.recompute": "none",
}

FOUR_NUMBERS = """
name: mine
peak: {matrix: {bf16: 800 TFLOP/s}}
memory: {capacity: 80 GiB, bandwidth: 4 TB/s, convention: "peak, read plus write"}
power: 600 W
sources: {"*": "a data sheet, 2026"}
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---------------------------------------------------------------- the packaged catalogs


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_every_file_lints(kind, name):
    """No value out of range, without a source, from memory alone, sparse, or in the wrong kind of gigabyte."""
    assert lint_file(kind, packaged_catalogs() / kind / f"{name}.yaml").problems == ()


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_every_file_comes_back_from_a_dump(kind, name, tmp_path):
    """Nothing of an entry depends on how its file is written (comments, flow style, quotes)."""
    data = load_yaml(packaged_catalogs() / kind / f"{name}.yaml")
    write(tmp_path / kind / f"{name}.yaml", yaml.safe_dump(data, sort_keys=False))
    assert load_yaml(tmp_path / kind / f"{name}.yaml") == data
    assert LOADERS[kind](name, dirs=[tmp_path]) == LOADERS[kind](name)


@pytest.mark.parametrize("name", CHIPS)
def test_every_chip_runs_with_its_memory_in_a_second(name):
    """Two small layers on four chips, in bf16 or what comes nearest: training, on dataflow chips the forward pass."""
    chip = load_chip(name)
    dtype = next(d for d in ("bf16", "fp16", "fp32", "fp64") if d in chip.matrix_flops_per_s)
    mode = "training" if chip.execution == "kernel_by_kernel" else "forward"
    settings = {**SMALL, "system.chip": name, "workload.dtype": dtype, "workload.mode": mode}
    config = build_config(settings=settings)
    seconds = []
    for _ in range(2):
        began = time.process_time()
        result = run(config)
        seconds.append(time.process_time() - began)
        if seconds[-1] < 1:
            break
    assert result.status == "optimal" and result.metrics["iteration_s"] > 0
    priced = ("price", "power", "energy")  # listed with their values
    keys = [key for key in chip.assumed if key.partition(".")[0] not in priced]
    assert set(result.assumed) >= {f"{name}.{key}: no published value, assumed" for key in keys}
    assert min(seconds) < 1, f"{min(seconds):.2f} s of CPU"


def test_the_catalogs_hold_what_the_issue_names():
    """Chips, memories, links and systems that users look for by name."""
    assert len(CHIPS) >= 40
    wanted = {
        "chips": "v100_sxm2 v100_pcie a100_sxm_80 a100_pcie_80 h100_sxm h100_pcie h200_sxm gh200 b200_sxm gb200 "
        "b300_sxm l40s mi25 mi210 mi250 mi250x mi250x_die mi300a mi300x mi300x_die mi325x mi355x b200_die "
        "tpu_v3 tpu_v4 tpu_v5e tpu_v5p tpu_v6e tpu_7x sn10 sn30 sn40l wse2 wse3 groq_lpu ipu_gc200 ipu_bow "
        "gaudi2 gaudi3 trn1 trn2 tt_grayskull_e150 tt_wormhole_n300 tt_blackhole_p150 a64fx epyc7763 epyc9654 "
        "xeonmax9480 gpumax1550",
        "memories": "ddr4_channel ddr5_channel lpddr5_device gddr6_device hbm2_stack hbm2e_stack hbm3_stack "
        "hbm3e_stack stacked_3d",
        "links": "pcie3 pcie4 pcie5 pcie6 nvlink2 nvlink3 nvlink4 nvlink5 ib_edr ib_hdr ib_ndr ib_xdr ethernet_100g "
        "ethernet_200g ethernet_400g ethernet_800g slingshot11 tofud ici_v3 ici_v4 ici_v5e ici_v5p ici_v6e "
        "ici_7x xgmi_mi250x xgmi_mi300x xgmi_mi355x ucie_standard ucie_advanced",
        "systems": "dgx1 dgx2 dgx_a100 dgx_h100 dgx_h200 dgx_b200 dgx_superpod nvl72 frontier summit selene eos fugaku "
        "lumi leonardo tpu_v3 tpu_v4_pod tpu_v5e tpu_v5p_pod tpu_v6e tpu_7x_pod",
    }
    for kind, names in wanted.items():
        assert set(names.split()) <= set(list_names(kind))


@pytest.mark.parametrize("workload", ["llm", "hpl", "fft", "dlrm"])
def test_all_design_points_of_the_original_study_load(workload):
    points = design_points(workload)
    assert len({p.name for p in points}) == len(points) == 80
    systems = {p.name: load_system(p.system, p.overrides) for p in points}
    assert {s.chips for s in systems.values()} == {1024}
    nvlink = systems["h100/3d_torus_hbm_nvlink"]
    widest = [d.link.bytes_per_s for d in nvlink.dimensions]
    assert widest == ([450e9, 50e9, 50e9] if workload == "llm" else [450e9] * 3)
    assert systems["sn30/2d_torus_ddr_nvlink"].chip.memories[0].bytes_per_s == 300e9
    with pytest.raises(InputError, match="did you mean 'llm'"):
        design_points("lm")


@pytest.mark.parametrize(
    ("die", "package", "share"), [("mi250x_die", "mi250x", 2), ("b200_die", "b200_sxm", 2), ("mi300x_die", "mi300x", 8)]
)
def test_dies_add_up_to_their_package(die, package, share):
    part, whole = load_chip(die), load_chip(package)
    for table in ("matrix_flops_per_s", "vector_flops_per_s"):
        assert {k: v * share for k, v in getattr(part, table).items()} == pytest.approx(getattr(whole, table), rel=1e-6)
    assert part.sram_bytes * share == whole.sram_bytes and part.power_w * share == whole.power_w
    assert part.memories[0].capacity_bytes * share == whole.memories[0].capacity_bytes
    assert part.memories[0].bytes_per_s * share == whole.memories[0].bytes_per_s


def test_the_mi25_runs_on_the_constants_its_products_give():
    """Its chip file repeats what `dfmodel calibrate` holds to the measurements."""
    repository = Path(__file__).resolve().parent.parent
    setups = yaml.safe_load((repository / "validation" / "setups" / "gemm.yaml").read_text())
    series = next(s for s in setups["series"] if s["chip"] == "MI25")
    constants, curve = series["constants"], load_chip("mi25").efficiency
    assert (curve.matrix_max, curve.gemm.units) == (constants["rate"], series["units"])
    assert (curve.gemm.k_half, curve.gemm.tile_exponent, curve.gemm.blend) == (
        constants["k_half"],
        constants["tile_exponent"],
        constants["blend"],
    )


def test_what_a_memory_assumes_is_assumed_of_the_chip():
    assert "memory.bandwidth" in load_chip("sn30").assumed
    assert "memory.1.bandwidth" in load_chip("sn40l").assumed
    assert not {k for k in load_chip("sn30_dfmodel").assumed if k.startswith("memory")}


# ---------------------------------------------------------------- other names


def test_chips_have_short_names_that_end_somewhere(tmp_path):
    assert load_chip("h100") == load_chip("h100_sxm")
    assert load_system("dgx", {"chip": "h100"}) == load_system("dgx")
    assert load_system("dgx", {"chip": "h100", "chip.power": "500 W"}).chip.power_w == 500
    write(tmp_path / "chips" / "a.yaml", "alias_of: b\n")
    write(tmp_path / "chips" / "b.yaml", "alias_of: a\n")
    with pytest.raises(InputError, match="more than 10 aliases"):
        load_chip("a", dirs=[tmp_path])
    write(tmp_path / "chips" / "c.yaml", "alias_of: h100_sxm\noverrides: {power: 1 W}\n")
    with pytest.raises(InputError, match="only systems have variants"):
        load_chip("c", dirs=[tmp_path])
    write(tmp_path / "chips" / "d.yaml", "alias_of: h100_sxn\n")
    with pytest.raises(InputError, match=r"d\.yaml: alias_of: unknown chip 'h100_sxn' \(did you mean 'h100_sxm'"):
        load_chip("d", dirs=[tmp_path])


# ---------------------------------------------------------------- a chip of four numbers


def test_four_numbers_make_a_chip_and_the_rest_is_said_to_be_assumed(tmp_path):
    path = write(tmp_path / "chips" / "mine.yaml", FOUR_NUMBERS)
    chip = load_chip("mine", dirs=[tmp_path])
    assert (chip.kind, chip.execution, chip.sram_bytes) == ("gpu", "kernel_by_kernel", 64 * 2**20)
    assert chip.vector_flops_per_s == {"fp32": 50e12}
    assert set(chip.assumed) == {"kind", "execution", "fusions", "sram", "peak.vector.fp32"}
    assert lint_file("chips", path, [tmp_path]).problems == ()
    result = run(build_config(settings={**SMALL, "system.chip": "mine"}, dirs=[tmp_path]), [tmp_path])
    assert "mine.sram: no published value, assumed" in result.assumed
    assert "mine.peak.vector.fp32: no published value, assumed" in result.assumed


def test_defaults_never_replace_what_a_file_states(tmp_path):
    text = FOUR_NUMBERS.replace("matrix: {bf16: 800 TFLOP/s}", "matrix: {fp8: 800 TFLOP/s}, vector: {fp32: 1 TFLOP/s}")
    write(tmp_path / "chips" / "mine.yaml", text + "kind: tpu\nsram: 7 MiB\nfusions: []\n")
    chip = load_chip("mine", dirs=[tmp_path])
    assert (chip.kind, chip.sram_bytes, chip.fusions) == ("tpu", 7 * 2**20, ())
    assert chip.vector_flops_per_s == {"fp32": 1e12} and chip.assumed == ("execution",)
    write(tmp_path / "chips" / "mine.yaml", FOUR_NUMBERS.replace("bf16", "fp8"))
    assert load_chip("mine", dirs=[tmp_path]).vector_flops_per_s == {"fp32": 25e12}  # half the width, half the rate


def test_a_dataflow_chip_states_its_memory_on_the_chip(tmp_path):
    write(tmp_path / "chips" / "mine.yaml", FOUR_NUMBERS + "execution: dataflow\nkind: rdu\n")
    with pytest.raises(InputError, match="sram: missing"):
        load_chip("mine", dirs=[tmp_path])


# ---------------------------------------------------------------- slips


@pytest.mark.parametrize(
    ("matrix", "wrong"),
    [
        ({"bf16": "989 TFLOP/s", "fp8": "3958 TFLOP/s"}, "peak.matrix.fp8: 4 times bf16"),
        ({"bf16": "2250 TFLOP/s", "fp8": "4500 TFLOP/s", "fp4": "18000 TFLOP/s"}, "peak.matrix.fp4: 4 times fp8"),
        ({"tf32": "494.5 TFLOP/s", "bf16": "1979 TFLOP/s"}, "peak.matrix.bf16: 4 times tf32"),
        ({"bf16": "1979 TFLOP/s", "int8": "1000 TOP/s"}, "peak.matrix.int8: 0.505 times bf16"),
        ({"bf16": "100 TFLOP/s", "fp8": "210 TFLOP/s"}, None),
        ({"bf16": "100 TFLOP/s", "fp8": "95 TFLOP/s"}, None),
        ({"bf16": "100", "fp8": "9 TFLOP/s"}, None),
    ],
)
def test_peaks_with_sparsity_are_told_from_dense_ones(matrix, wrong):
    found = list(sparse_peaks({"peak": {"matrix": matrix}}))
    assert [line[: len(wrong)] for line in found] == [wrong] if wrong else not found
    narrowest = list(matrix)[-1]
    assert not list(sparse_peaks({"peak": {"matrix": matrix}, "dense": {narrowest: "a document"}}))


def test_a_changed_peak_is_a_question_and_not_a_slip():
    chip = load_system("dgx", {"chip.peak.matrix.bf16": "400 TFLOP/s"}).chip
    assert chip.matrix_peak("bf16") == 400e12


SLIPS = """
kind: gpu
execution: kernel_by_kernel
peak: {matrix: 989 TFLOP/s, vector: {fp32: 67 TFLOP/s}}
sram: 50 MiB
memory: {capacity: 80 GB, bandwidth: 3.35 TB/s}
price: 30000 EUR
power: 700 kW
"""


def test_every_slip_of_a_file_is_listed_at_once(tmp_path, capsys):
    """A peak without dtype, a bandwidth without convention, a currency, GB for GiB, a wrong unit, no sources."""
    path = write(tmp_path / "chips" / "bad.yaml", SLIPS)
    write(tmp_path / "chips" / "sparse.yaml", SLIPS.replace("989 TFLOP/s", "{bf16: 989 TFLOP/s, fp8: 3958 TFLOP/s}"))
    write(tmp_path / "links" / "fast.yaml", "bandwidth: 400 GiB/s\n")
    problems = lint_file("chips", path).problems
    for words in (
        "peak.matrix: a peak without its dtype; write {bf16: 989 TFLOP/s}",
        "memory: convention: missing",
        "memory.capacity: 80 GB is 74.51 GiB, and memories come in GiB; write 80 GiB, or 80_000_000_000 B",
        "price: unknown currency 'EUR': prices are in USD",
        "power: 700 kW is not between 1 W and 100 kW; is the unit right?",
        "sram: no source",
    ):
        assert any(words in p for p in problems), words
    assert all(p.startswith(f"{path}: ") for p in problems)
    assert main(["validate", "catalog", str(tmp_path)]) == 3
    err = capsys.readouterr().err
    assert all(p in err for p in problems)
    assert "sparse.yaml: peak.matrix.fp8: 4 times bf16, taken for a peak with sparsity" in err
    assert "fast.yaml: convention: missing" in err
    assert "fast.yaml: bandwidth: 400 GiB/s, which is 429.5 GB/s; bandwidths are counted in powers of ten" in err


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("85.9 GB", "85.9 GB is 80 GiB written in GB"),
        ("74.5 GiB", "74.5 GiB is 80 GB written in GiB"),
        ("186 GB", None),
        ("80 GiB", None),
        ("80_000_000_000 B", None),
        ("94 GiB", None),
    ],
)
def test_a_gigabyte_of_the_other_kind_is_recognised(text, wrong, tmp_path):
    path = write(
        tmp_path / "memories" / "m.yaml",
        f"capacity: {text}\nbandwidth: 1 TB/s\nconvention: peak, read plus write\nsources: {{'*': a document}}\n",
    )
    problems = lint_file("memories", path).problems
    assert len(problems) == (wrong is not None)
    assert not wrong or wrong in problems[0]


def test_peaks_of_the_two_engines_are_kept_apart(tmp_path):
    text = FOUR_NUMBERS.replace("bf16: 800 TFLOP/s}", "fp64: 60 TFLOP/s, fp32: 50 TFLOP/s}, vector: {fp32: 60 TFLOP/s}")
    problems = lint_file("chips", write(tmp_path / "chips" / "mine.yaml", text)).problems
    assert any("peak.vector.fp32: above peak.matrix.fp32" in p for p in problems)
    assert any("peak.vector.fp64: missing; matrix units and vector units" in p for p in problems)


def test_values_from_memory_must_be_marked_assumed(tmp_path):
    text = FOUR_NUMBERS.replace("a data sheet, 2026", "a data sheet (recalled, not re-read)")
    path = write(tmp_path / "chips" / "mine.yaml", text)
    assert any("sources.*: recalled, not read" in p for p in lint_file("chips", path).problems)
    path.write_text(text + 'status: {"*": assumed}\n')
    report = lint_file("chips", path)
    assert report.problems == () and "power" in report.assumed


def test_a_peak_without_unit_or_dtype_is_explained(tmp_path):
    path = write(tmp_path / "mine.yaml", FOUR_NUMBERS.replace("{matrix: {bf16: 800 TFLOP/s}}", "989 TFLOP/s"))
    with pytest.raises(InputError, match=r"peak: a peak without its unit and dtype; write peak: \{matrix: \{bf16: 989"):
        load_chip(str(path))


# ---------------------------------------------------------------- several catalogs, and the command


def test_which_file_of_a_name_wins_is_said(tmp_path, capsys, monkeypatch):
    """First of --catalog, then of the environment, then the packaged one; `show` and `validate catalog` say so."""
    first, second = tmp_path / "first", tmp_path / "second"
    text = FOUR_NUMBERS.replace("name: mine\n", "")
    for folder in (first, second):
        write(folder / "chips" / "h100_sxm.yaml", text)
    monkeypatch.setenv("DFMODEL_CATALOG_PATH", str(second))
    packaged = packaged_catalogs() / "chips" / "h100_sxm.yaml"
    assert main(["show", "chip", "h100_sxm", "--catalog", str(first)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"# {first / 'chips' / 'h100_sxm.yaml'}"
    assert shown[1:3] == [f"# comes before {second / 'chips' / 'h100_sxm.yaml'}", f"# comes before {packaged}"]
    assert main(["validate", "catalog", "--catalog", str(first)]) == 0
    out = capsys.readouterr().out
    for hidden in (second / "chips" / "h100_sxm.yaml", packaged):
        assert f"hidden: {hidden}: 'h100_sxm' is taken from {first / 'chips' / 'h100_sxm.yaml'}" in out
    assert load_chip("h100", dirs=[first]).matrix_peak("bf16") == 800e12


def test_validate_catalog_prints_what_is_assumed_and_counts(capsys):
    assert main(["validate", "catalog"]) == 0
    out = capsys.readouterr().out
    assert "chips/tpu_v5e: peak.vector.fp32, sram\n" in out
    assert f"{len(list_names('chips'))} chips, " in out and out.endswith("; 0 problems\n")
    assert main(["validate", "catalog", str(packaged_catalogs()), "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    assert len(reports) == len(FILES) and all(r["problems"] == [] for r in reports)


def test_validate_catalog_of_a_folder_without_one(tmp_path, capsys):
    assert main(["validate", "catalog", str(tmp_path / "gone")]) == 3
    assert "gone: no such folder" in capsys.readouterr().err
    with pytest.raises(InputError, match="no catalog files; a catalog has folders chips, memories"):
        lint_catalogs([tmp_path])


@pytest.mark.parametrize("command", [("list", "chips"), ("show", "chip", "h100"), ("show", "chip", "h100", "--json")])
def test_list_and_show_start_at_once(command):
    """200 ms cold: nothing heavy is imported. The time is printed; its limit here allows a slow machine."""
    heavy = ("pydantic", "pyomo", "pandas", "numpy", "matplotlib", "highspy", "scipy")
    code = (
        "import sys; from dfmodel.cli import main; code = main(sys.argv[1:]); "
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True, env=dict(os.environ)
        )
        seconds.append(time.perf_counter() - began)
    print(f"dfmodel {' '.join(command)}: {min(seconds) * 1e3:.0f} ms")
    assert done.stderr.strip() == "[]" and "h100_sxm" in done.stdout
    assert min(seconds) < 1


def test_loaders_take_short_names_of_every_kind(tmp_path):
    write(tmp_path / "memories" / "m.yaml", "alias_of: hbm3_h100\n")
    write(tmp_path / "links" / "l.yaml", "alias_of: nvlink4\n")
    write(tmp_path / "efficiency" / "e.yaml", "alias_of: h100\n")
    dirs = [tmp_path]
    assert load_memory("m", dirs) == load_memory("hbm3_h100")
    assert load_link("l", dirs) == load_link("nvlink4")
    assert load_efficiency("e", dirs) == load_efficiency("h100")
