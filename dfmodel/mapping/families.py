"""How each family of workloads is mapped: one entry per family, loaded when a run needs it.

A family's module has `FAMILY`, a MappedFamily: how it reads `plan.*` and how it searches. It gives an ordinary Result
(describe.py fills in what all results say alike).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.map_block import SolverSettings
from dfmodel.mapping.result import Result
from dfmodel.systems.system import System
from dfmodel.workloads.graph import Workload

#: Family -> module with its `FAMILY`. Layered models are searched by mapping/search.py.
MODULES: dict[str, str] = {"fft": "dfmodel.mapping.fft", "hpl": "dfmodel.mapping.hpl"}


@dataclass(frozen=True)
class FamilyRun:
    """One run of a family: `request` is what its `read_plan` gave; `began` and `deadline` are perf_counter seconds."""

    workload: Workload
    system: System
    assumptions: Assumptions
    request: Any
    settings: SolverSettings
    began: float
    deadline: float | None = None
    progress: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class MappedFamily:
    """`read_plan` checks `plan.*` settings and raises InputError with every problem, nearest valid name given;
    `search` returns the best mapping or raises InputError, InfeasibleError or LimitError; `plan_keys` are those that
    `evaluate` needs to be stated."""

    read_plan: Callable[[Mapping[str, Any]], Any]
    search: Callable[[FamilyRun], Result]
    plan_keys: tuple[str, ...]


def mapped_family(name: str) -> MappedFamily:
    """The family `name`, its module loaded."""
    found: MappedFamily = import_module(MODULES[name]).FAMILY
    return found
