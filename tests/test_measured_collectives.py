"""Collectives against published measurements: constants come from calibrate rows alone, the others judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dfmodel.errors import InputError
from dfmodel.systems.catalog import load_link
from dfmodel.validation.collectives import Comparison, compare, is_large
from dfmodel.validation.files import packaged_measurements
from dfmodel.validation.fit_collectives import fit_all

ROWS = compare()


def _mean_error(use: str, rows: list[Comparison] = ROWS) -> float:
    return float(np.mean([abs(c.error_pct) for c in rows if c.use == use and is_large(c) and c.error_pct is not None]))


def test_catalog_constants_are_the_fitted_ones() -> None:
    """What the link files say is achieved is what `python benchmarks/collectives.py --fit` derives."""
    by_link: dict[str, list[object]] = {}
    for fit, values, _ in fit_all():
        by_link.setdefault(fit.link, []).append(values)
    for name, values in by_link.items():
        assert list(load_link(name).achieved[: len(values)]) == values


def test_rows_that_judge_do_not_set_constants(tmp_path: Path) -> None:
    """Spoiling every validate row changes no constant."""
    frame = pd.read_csv(packaged_measurements() / "data" / "collectives.csv")
    judged = frame["use"] != "calibrate"
    frame.loc[judged, ["time_us", "algbw_GBps", "busbw_GBps"]] *= 3
    frame.to_csv(tmp_path / "collectives.csv", index=False)
    assert [v for _, v, _ in fit_all(tmp_path)] == [v for _, v, _ in fit_all()]


def test_error_above_one_megabyte() -> None:
    """Mean absolute error on rows that judge and on rows that calibrate; every row is predicted or says why not."""
    assert _mean_error("validate") <= 3.0
    assert _mean_error("calibrate") <= 6.0
    refused = {c.id for c in ROWS if c.predicted is None}
    assert refused == {
        "pcie5_H200",
        "gtc25_all_to_all_PCIe_Gen5_2x4_GPUs",
        "gtc25_all_to_all_PCIe_Gen6_2x4_GPUs",
        "hccl_gaudi3_ar_256M",
        "hccl_gaudi3_ag_16M",
    }
    assert all(c.why_not for c in ROWS if c.predicted is None)
    assert len(ROWS) == 108


def test_in_network_reduction_follows_the_number_of_chips() -> None:
    """m (1 + 1/n) over the bandwidth: five to eight H200 within 1.5 %, constants from runs of eight alone."""
    errors = [c.error_pct for c in ROWS if c.id.startswith("nccl_H200_g") and "NVLS" in c.id]
    assert len(errors) == 4
    assert all(e is not None and abs(e) < 1.5 for e in errors)


def test_a_table_with_faults_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        compare(tmp_path)
    (tmp_path / "collectives.csv").write_text("id,use\na,calibrate\n")
    with pytest.raises(InputError, match="missing columns: collective"):
        compare(tmp_path)
