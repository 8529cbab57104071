"""The original study's 80 design points by name: which system file each is, and what it changes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from dfmodel.catalog_files import load_yaml, packaged_catalogs
from dfmodel.errors import UnknownNameError


@dataclass(frozen=True)
class DesignPoint:
    """`load_system(system, overrides)` is the point."""

    name: str
    system: str
    overrides: dict[str, Any]


def design_points(workload: str = "llm") -> tuple[DesignPoint, ...]:
    """The 4 accelerators x 5 topologies x 4 combinations of memory and link, as the study of `workload` (llm, hpl, fft,
    dlrm) has them; names as "h100/2d_torus_ddr_pcie". Raises UnknownNameError for another workload."""
    data = load_yaml(packaged_catalogs() / "design_points.yaml")
    if workload not in data["workloads"]:
        raise UnknownNameError("workload of the design space", workload, data["workloads"])
    changes = data["workloads"][workload]
    points = []
    for accelerator, topology, memory, link in itertools.product(
        data["accelerators"], data["topologies"], data["memories"], data["links"]
    ):
        overrides = {
            **data["accelerators"][accelerator],
            **data["memories"][memory],
            **changes.get(link, data["links"][link]),
            **changes.get(topology, {}),
        }
        points.append(DesignPoint(f"{accelerator}/{topology}_{memory}_{link}", data["topologies"][topology], overrides))
    return tuple(points)
