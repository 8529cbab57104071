"""What ships: the wheel holds the catalogs, and nothing tracked points outside the project."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_wheel_holds_catalogs_and_types(tmp_path: Path) -> None:
    """An installed dfmodel finds its catalogs inside the package."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "dfmodel/catalogs/chips/h100_sxm.yaml",
        "dfmodel/catalogs/models/gpt3_175b.yaml",
        "dfmodel/py.typed",
    } <= names
    in_tree = {f"dfmodel/{f.relative_to(ROOT)}" for f in (ROOT / "catalogs").rglob("*.yaml")}
    assert in_tree <= names
    assert any(name.endswith("LICENSE") for name in names)


def test_the_project_stands_alone() -> None:
    """No file refers to the place it was written in."""
    words = ("../" + "shared", "/" + "work/")
    for folder in ("dfmodel", "catalogs", "tests", "docs", "benchmarks", ".ci"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".yaml", ".md", ".csv", ".toml") or file.name == "run":
                text = file.read_text()
                assert not any(word in text for word in words), file


def test_modules_import_one_way() -> None:
    """Workloads and systems know nothing of each other nor of the mapping; the mapping nothing of reports."""
    forbidden = {
        "workloads": ("dfmodel.systems", "dfmodel.mapping", "dfmodel.reporting", "dfmodel.api"),
        "systems": ("dfmodel.workloads", "dfmodel.mapping", "dfmodel.reporting", "dfmodel.api"),
        "mapping": ("dfmodel.reporting", "dfmodel.api", "dfmodel.cli"),
        "reporting": ("dfmodel.api", "dfmodel.cli"),
    }
    for package, names in forbidden.items():
        for file in (ROOT / "dfmodel" / package).glob("*.py"):
            text = file.read_text()
            assert not [n for n in names if f"from {n}" in text or f"import {n}" in text], file
