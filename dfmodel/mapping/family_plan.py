"""`plan.*` of families with plans of their own: typed, checked, with every problem and the nearest name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from dfmodel.catalog_files import settings_of


class FamilyPlan(BaseModel):
    """What every family's plan may ask: the `best` so many plans, those `within` a share of the optimum."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    best: int | None = Field(None, ge=1)
    within: float | None = Field(None, ge=0, lt=10)


class GridPlan(FamilyPlan):
    """A plan on a grid of chips: its sides, and whether every chip must be used."""

    grid_rows: int | None = Field(None, ge=1)
    grid_columns: int | None = Field(None, ge=1)
    use_all_chips: bool = False


Plan = TypeVar("Plan", bound=FamilyPlan)


def read(plan: type[Plan], settings: Mapping[str, Any]) -> Plan:
    """Checked settings. Raises InputError with every problem found."""
    return settings_of(plan, settings, "plan")


#: Alternatives kept where a plan does not say how many.
KEPT = 5


def kept(plan: FamilyPlan, ranked: list[tuple[float, Any]]) -> list[tuple[float, Any]]:
    """Of (value, plan) from the best on, those that are shown."""
    best = ranked[0][0]
    most = float("inf") if plan.within is None else best * (1 + plan.within) * (1 + 1e-12)
    return [r for r in ranked[: plan.best or KEPT] if r[0] <= most]
