"""Workloads that are not layered models: what builds them by name, and what a run takes where it does not say.

Only names, so that the command line and the configuration read it without loading a builder.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The family of layered models and graph files.
LAYERS = "layers"


@dataclass(frozen=True)
class WorkloadFamily:
    """`builder` is the module whose `build(settings)` gives the Workload; `system` the system of a run that names none;
    `dtypes` the formats it is run in, best first: a run that names none takes the first that its chip has."""

    builder: str
    system: str
    dtypes: tuple[str, ...] = ()


#: Narrower formats stand in on chips that have no wider one; the result says so.
FAMILIES: dict[str, WorkloadFamily] = {
    "fft": WorkloadFamily("dfmodel.workloads.fft", "dgx_a100", ("fp32", "bf16", "fp16", "fp64")),
    "hpl": WorkloadFamily("dfmodel.workloads.hpl", "dgx_h100", ("fp64", "fp32", "tf32", "bf16", "fp16")),
}


def family_of(workload: str) -> str:
    """Name of the family that a workload's name stands for."""
    return workload if workload in FAMILIES else LAYERS
