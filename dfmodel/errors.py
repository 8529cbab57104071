"""One family of exceptions: each message says what is wrong, where, and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DfmodelError(Exception):
    """Root of everything dfmodel raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(DfmodelError, ValueError):
    """A catalog, study, option or graph that cannot be used; carries every problem found at once."""

    exit_code = 3

    def __init__(self, problems: str | Iterable[str]):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class UnknownNameError(InputError, KeyError):
    """A name that no catalog holds."""

    def __init__(self, kind: str, name: str, valid: Iterable[str], where: str = ""):
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}unknown {kind} '{name}'{did_you_mean(name, valid)}")

    def __str__(self) -> str:
        return "\n".join(self.problems)


class InfeasibleError(DfmodelError):
    """Proved: no mapping satisfies the limits. The message names the binding resource and the shortfall."""

    exit_code = 4


class LimitError(DfmodelError):
    """A time limit was reached before any solution was found."""

    exit_code = 6


class MismatchError(DfmodelError):
    """A solver's answer differs from the independent evaluator's: a bug, never a warning."""


def did_you_mean(name: str, valid: Iterable[str], most: int = 12) -> str:
    """' (did you mean ...?)' with the nearest valid names, or the list of valid ones when none is near."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f" (did you mean '{near[0]}'?)"
    if not names:
        return ""
    shown = ", ".join(names[:most]) + (", ..." if len(names) > most else "")
    return f" (valid: {shown})"
