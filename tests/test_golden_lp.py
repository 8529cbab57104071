"""Every constraint function's rows, as text: a changed sign, coefficient or missing row shows as a diff."""

from __future__ import annotations

import pytest
from golden_lp import FOLDER, texts

TEXTS = texts()


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_rows_are_the_stored_ones(name: str) -> None:
    """Run `python tests/golden_lp.py` after a deliberate change, and read the diff."""
    assert TEXTS[name] == (FOLDER / f"{name}.lp").read_text()


def test_every_constraint_function_has_a_text_and_no_text_is_stale() -> None:
    """A new constraint without a golden text fails here, and so does a text whose function is gone."""
    assert {f.stem for f in FOLDER.glob("*.lp")} == set(TEXTS)


def test_every_constraint_function_is_listed() -> None:
    """Functions named add_* of the two program modules are in CONSTRAINTS, the objective apart."""
    from dfmodel.mapping import partitioning, path_mip, sharding_mip, stage_mip

    for module in (partitioning, path_mip, sharding_mip, stage_mip):
        named = {n for n in vars(module) if n.startswith("add_") and n != "add_objective"}
        assert named == {f.__name__ for f in module.CONSTRAINTS}
