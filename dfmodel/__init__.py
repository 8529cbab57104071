"""dfmodel: the best mapping of a workload on a system, proven and explained."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

__all__ = ["__version__", "evaluate", "optimize"]


def __getattr__(name: str) -> Any:
    """`optimize` and `evaluate` are imported on first use, so that `import dfmodel` stays cheap."""
    if name in ("optimize", "evaluate"):
        from dfmodel import api

        return getattr(api, name)
    raise AttributeError(f"module 'dfmodel' has no attribute '{name}'")
