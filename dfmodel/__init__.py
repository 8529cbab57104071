"""dfmodel: the best mapping of a workload on a system, proven and explained."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

__all__ = ["__version__", "evaluate", "optimize", "sweep"]


def __getattr__(name: str) -> Any:
    """`optimize`, `evaluate` and `sweep` are imported on first use, so that `import dfmodel` stays cheap."""
    if name in ("optimize", "evaluate"):
        from dfmodel import api

        return getattr(api, name)
    if name == "sweep":
        from dfmodel.studies.run import sweep

        return sweep
    raise AttributeError(f"module 'dfmodel' has no attribute '{name}'")
