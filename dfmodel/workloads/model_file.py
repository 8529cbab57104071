"""What the files of all kinds of models share: counts, printed parameter counts, checks of a run's settings."""

from __future__ import annotations

from typing import Annotated, TypeGuard

from pydantic import BaseModel, ConfigDict, Field

from dfmodel.errors import did_you_mean
from dfmodel.workloads.graph import DTYPE_BYTES

PositiveInt = Annotated[int, Field(gt=0, strict=True)]

#: Number formats a model can be trained or run in.
WORKING_DTYPES = tuple(d for d in DTYPE_BYTES if "int" not in d)


class PrintedCount(BaseModel):
    """A parameter count as a source prints it, e.g. "174.6 B"; tests hold the model to its last digit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    printed: str
    source: str


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def run_problems(sequence: object, batch: object, dtype: str) -> list[str]:
    """What is wrong with the settings every model's workload has."""
    problems = [
        f"workload.{key}: must be a positive whole number, got {value!r}"
        for key, value in (("sequence", sequence), ("batch", batch))
        if not is_count(value)
    ]
    if dtype not in WORKING_DTYPES:
        problems.append(f"workload.dtype: unknown number format '{dtype}'{did_you_mean(dtype, WORKING_DTYPES)}")
    return problems
