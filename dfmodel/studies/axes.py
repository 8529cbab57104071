"""Values that a sweep walks over: lists, ranges, and how the command line writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from dfmodel.errors import InputError
from dfmodel.units import quantity

#: More points than this are a mistake in a range, not a study.
MOST_POINTS = 1_000_000

#: Share of a step by which a range may overshoot its end, for sums of floats.
_ROUNDING = 1e-9

Axes = dict[str, tuple[Any, ...]]


def parse_grids(texts: Sequence[str], option: str = "--grid") -> Axes:
    """`key=a,b,c` texts as axes, values as YAML reads them ("[1, 2]" too). Raises InputError with every fault."""
    found: Axes = {}
    problems: list[str] = []
    for text in texts:
        key, sign, values = text.partition("=")
        if not sign or not key.strip():
            problems.append(f"{option} {text}: expected key=value,value, for example system.nodes=8,16")
            continue
        try:
            found[key.strip()] = _listed(values)
        except yaml.YAMLError:
            problems.append(f"{option} {text}: values cannot be read; separate them by commas")
            continue
        if not found[key.strip()]:
            problems.append(f"{option} {text}: no values; give at least one")
    if problems:
        raise InputError(problems)
    return found


def parse_ranges(texts: Sequence[str]) -> Axes:
    """`key=FROM:TO:STEP` texts as axes; see `range_values`."""
    found: Axes = {}
    problems: list[str] = []
    for text in texts:
        key, sign, values = text.partition("=")
        if not sign or not key.strip():
            problems.append(f"--range {text}: expected key=FROM:TO:STEP, for example system.nodes=8:512:*2")
            continue
        try:
            found[key.strip()] = range_values(values, f"--range {text}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return found


def range_values(text: str, where: str) -> tuple[Any, ...]:
    """The values of FROM:TO:STEP, both ends included where steps meet them; *STEP multiplies, STEP or +STEP adds.

    Ends may carry a unit ("1 TB/s:4 TB/s:*2"), which the values then carry too. Raises InputError for a range that
    never ends, is empty, or has more than MOST_POINTS values.
    """
    parts = [part.strip() for part in text.split(":")]
    if len(parts) != 3 or not all(parts):
        raise InputError(f"{where}: expected FROM:TO:STEP, for example 8:512:*2 or 0:100:25")
    times = parts[2].startswith("*")
    start, unit = _number(parts[0], where)
    stop, stop_unit = _number(parts[1], where)
    step, step_unit = _number(parts[2].removeprefix("*").removeprefix("+"), where)
    if unit != stop_unit or (step_unit != unit and not (times and not step_unit)):
        raise InputError(f"{where}: all of it must carry the same unit, the factor of * none")
    count = _count(start, stop, step, times, where)
    if count > MOST_POINTS:
        raise InputError(f"{where}: {count:,} values; a sweep takes at most {MOST_POINTS:,}: use a larger step")
    whole = all(isinstance(x, int) for x in (start, stop, step))
    values = [start * step**i if times else start + step * i for i in range(count)]
    plain = [v if whole else float(f"{v:.12g}") for v in values]
    return tuple(f"{v:.12g} {unit}" for v in plain) if unit else tuple(plain)


def _count(start: float, stop: float, step: float, times: bool, where: str) -> int:
    """How many values a range has. Raises InputError where no step ever passes the end."""
    if times:
        if start <= 0 or stop <= 0 or step <= 0:
            raise InputError(f"{where}: a range of factors needs numbers above 0")
        if step == 1 or ((stop > start) != (step > 1) and stop != start):
            raise InputError(f"{where}: never ends: multiplying {start:g} by {step:g} does not reach {stop:g}")
        return 1 + math.floor(math.log(stop / start) / math.log(step) + _ROUNDING)
    if step == 0 or ((stop > start) != (step > 0) and stop != start):
        raise InputError(f"{where}: never ends: adding {step:g} to {start:g} does not reach {stop:g}")
    return 1 + math.floor((stop - start) / step + _ROUNDING)


def axis_values(given: Any, where: str) -> tuple[Any, ...]:
    """Values of an axis in a study file: a list, one value, or {range: "8:512:*2"}. Raises InputError."""
    if isinstance(given, Mapping):
        if set(given) != {"range"}:
            raise InputError(f'{where}: expected a list of values or {{range: "FROM:TO:STEP"}}, got {dict(given)!r}')
        return range_values(str(given["range"]), where)
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not values:
        raise InputError(f"{where}: no values; give at least one")
    return values


def numbers(values: Sequence[Any]) -> tuple[list[float], str] | None:
    """Values as numbers in one unit with that unit ("" without); None where one is no number or they do not agree."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return [float(v) for v in values], ""
    read = [quantity(v) if isinstance(v, str) else None for v in values]
    if any(r is None for r in read) or len({r[1] for r in read if r is not None}) != 1:
        return None
    return [r[0] for r in read if r is not None], next(r[1] for r in read if r is not None)


def _listed(text: str) -> tuple[Any, ...]:
    text = text.strip()
    if text.startswith("["):
        return tuple(yaml.safe_load(text))
    return tuple(yaml.safe_load(part) for part in text.split(",") if part.strip())


def _number(text: str, where: str) -> tuple[int | float, str]:
    """A number and the unit behind it, "" without one."""
    digits, _, unit = text.partition(" ")
    try:
        number: int | float = int(digits)
    except ValueError:
        try:
            number = float(digits)
        except ValueError:
            raise InputError(f"{where}: '{text}' is no number; a unit stands behind a space: '1 TB/s'") from None
    if not math.isfinite(number):
        raise InputError(f"{where}: '{text}' is not finite: the range never ends")
    return number, unit.strip()
