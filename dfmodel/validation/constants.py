"""Every constant that calibrate rows set, derived anew beside the one in use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfmodel.catalog_files import find, load_yaml
from dfmodel.systems.catalog import load_chip, load_link
from dfmodel.validation import fit_compute, fit_fft, fit_hpl, gemm
from dfmodel.validation.files import load_rules
from dfmodel.validation.fit_collectives import fit_all
from dfmodel.validation.llm_training import Case

#: Relative difference up to which a constant in use is the derived one: both are rounded to three digits.
SAME = 2e-3


@dataclass(frozen=True)
class Constant:
    """One constant: the file that holds it, its name there, the value derived, the value in use, and from how many
    rows it is derived."""

    file: str
    name: str
    derived: float
    in_use: float | None
    rows: int

    @property
    def agrees(self) -> bool:
        return self.in_use is not None and math.isclose(self.derived, self.in_use, rel_tol=SAME, abs_tol=1e-12)


def derived_constants(folder: Path | None = None) -> list[Constant]:
    """Constants of links, benchmarked matrix products, and chips in training and in HPL, and exchanges of FFTs; from
    measurements in `folder`, or the packaged ones."""
    return [
        *_of_links(folder),
        *_of_products(folder),
        *_of_training(folder),
        *_of_linpack(folder),
        *_of_exchanges(folder),
    ]


def _of_links(folder: Path | None) -> list[Constant]:
    found = []
    for fit, values, rows in fit_all(folder):
        link = load_link(fit.link)
        own = next(
            (
                a
                for a in link.achieved
                if not a.inherited and (a.kinds, a.operations, a.algorithms)
                == (fit.covers.kinds, fit.covers.operations, fit.covers.algorithms)
            ),
            None,
        )  # fmt: skip
        what = "/".join([*fit.covers.kinds, *fit.covers.operations[:1], *fit.covers.algorithms])
        for name in fit.determines:
            used = None if own is None else float(getattr(own, name))
            found.append(Constant(f"links/{fit.link}", f"{what} {name}", float(getattr(values, name)), used, len(rows)))
    return found


def _of_products(folder: Path | None) -> list[Constant]:
    rules = load_rules(gemm.TABLE)
    found = []
    for series in rules["series"]:
        rows = fit_compute.gemm_rows(series, folder)
        if rows:
            values = fit_compute.fit_gemm(series, rows, rules)
            where = f"setups/gemm {series['chip']} {series['dtype']}"
            found += [Constant(where, k, v, float(series["constants"][k]), len(rows)) for k, v in values.items()]
    for file, key in (("a100", "k_half"), ("a100", "tile_exponent"), ("h100", "k_half"), ("h100", "tile_exponent")):
        shape = next(c for c in found if c.file.startswith("setups/gemm A100") and c.name == key)
        found.append(
            Constant(f"efficiency/{file}", f"gemm.{key}", shape.derived, _in_use(file, f"gemm.{key}"), shape.rows)
        )
    return found


def _of_training(folder: Path | None) -> list[Constant]:
    cases = fit_compute.training_cases(folder)
    found = []
    for file, values in fit_compute.fit_training(cases).items():
        for name, value in values.items():
            found.append(Constant(f"efficiency/{file}", name, value, _in_use(file, name), _rows_of(file, name, cases)))
    shared = next(c for c in found if c.file == "efficiency/a100" and c.name == "attention_half")
    found.append(
        Constant("efficiency/h100", "attention_half", shared.derived, _in_use("h100", "attention_half"), shared.rows)
    )
    return found


def _of_linpack(folder: Path | None) -> list[Constant]:
    found = []
    for chip, (share, rows) in fit_hpl.fit_shares(folder).items():
        used = load_chip(chip).efficiency.matrix_max_of.get(fit_hpl.FORMAT)
        found.append(Constant(f"chips/{chip}", f"efficiency.matrix_max_of.{fit_hpl.FORMAT}", share, used, rows))
    return found


def _of_exchanges(folder: Path | None) -> list[Constant]:
    found = []
    for link, (share, rows) in fit_fft.fit_exchanges(folder).items():
        own = load_link(link).achieved_in("switch", "all_to_all", "direct")
        found.append(
            Constant(f"links/{link}", "switch/all_to_all efficiency", share, own.efficiency if own else None, rows)
        )
    return found


def _rows_of(file: str, name: str, cases: list[Case]) -> int:
    fit = next(f for f in fit_compute.TRAINING_FITS if f.file == file and name in f.start)
    return len([c for c in cases if fit.takes(c)])


def _in_use(file: str, name: str) -> float | None:
    """A constant of an efficiency file of the catalog, by its dotted name."""
    value: Any = load_yaml(find("efficiency", file, ()))
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else float(value)
