"""Quantities with units: "3.35 TB/s", "80 GiB", "1 USD per GB/s" to SI floats and back to readable text.

Inside dfmodel every number is a float in base units (byte, second, FLOP, watt, USD, metre and their quotients). Text
from people always carries a unit, so GB (1e9) and GiB (2^30), or Gb/s and GB/s, cannot be mistaken.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from dfmodel.errors import InputError, did_you_mean

_SI = {
    "p": Fraction(1, 10**12),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "µ": Fraction(1, 10**6),
    "μ": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_BINARY = {
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
}
_SMALL = ("p", "n", "u", "µ", "μ", "m", "")
_LARGE = ("", "k", "M", "G", "T", "P", "E")

#: Powers of the base units (byte, second, FLOP, watt, USD, metre).
_Powers = tuple[int, int, int, int, int, int]
_NO_UNIT: _Powers = (0, 0, 0, 0, 0, 0)

#: Currencies people write by mistake: prices are in USD, and no rate is assumed.
_CURRENCIES = frozenset(
    ("EUR", "GBP", "JPY", "CNY", "RMB", "KRW", "TWD", "INR", "CHF", "CAD", "AUD", "€", "£", "¥", "$")
)


def _units() -> dict[str, tuple[Fraction, _Powers]]:
    """Every unit symbol with its size in base units and its powers of them."""
    si: list[tuple[tuple[str, ...], str, Fraction, _Powers]] = [
        (_LARGE, "B", Fraction(1), (1, 0, 0, 0, 0, 0)),
        (_LARGE, "b", Fraction(1, 8), (1, 0, 0, 0, 0, 0)),
        (("",), "byte", Fraction(1), (1, 0, 0, 0, 0, 0)),
        (("",), "bit", Fraction(1, 8), (1, 0, 0, 0, 0, 0)),
        (_SMALL, "s", Fraction(1), (0, 1, 0, 0, 0, 0)),
        (("",), "min", Fraction(60), (0, 1, 0, 0, 0, 0)),
        (("",), "h", Fraction(3600), (0, 1, 0, 0, 0, 0)),
        (("",), "day", Fraction(86400), (0, 1, 0, 0, 0, 0)),
        (("",), "year", Fraction(365 * 86400), (0, 1, 0, 0, 0, 0)),
        (("",), "years", Fraction(365 * 86400), (0, 1, 0, 0, 0, 0)),
        (_LARGE, "Hz", Fraction(1), (0, -1, 0, 0, 0, 0)),
        (_LARGE, "FLOP", Fraction(1), (0, 0, 1, 0, 0, 0)),
        (_LARGE, "OP", Fraction(1), (0, 0, 1, 0, 0, 0)),
        (_LARGE, "FLOPS", Fraction(1), (0, -1, 1, 0, 0, 0)),
        (tuple(dict.fromkeys(_SMALL + _LARGE)), "W", Fraction(1), (0, 0, 0, 1, 0, 0)),
        (tuple(dict.fromkeys(_SMALL + _LARGE)), "J", Fraction(1), (0, 1, 0, 1, 0, 0)),
        (("", "k", "M"), "Wh", Fraction(3600), (0, 1, 0, 1, 0, 0)),
        (("", "k", "M", "G"), "USD", Fraction(1), (0, 0, 0, 0, 1, 0)),
    ]
    found = {p + symbol: (_SI[p] * size, powers) for prefixes, symbol, size, powers in si for p in prefixes}
    for symbol, metres in (("um", Fraction(1, 10**6)), ("mm", Fraction(1, 1000)), ("cm", Fraction(1, 100))):
        found[symbol] = (metres, (0, 0, 0, 0, 0, 1))
        found[f"{symbol}2"] = (metres**2, (0, 0, 0, 0, 0, 2))
    for prefix, size in _BINARY.items():
        found[f"{prefix}B"] = (size, (1, 0, 0, 0, 0, 0))
        found[f"{prefix}b"] = (size / 8, (1, 0, 0, 0, 0, 0))
    return found


_UNITS = _units()


@dataclass(frozen=True)
class _Dimension:
    """A kind of quantity: its name, an example to show, the units it is printed in, small to large, and what to
    say of a unit that is not known."""

    powers: _Powers
    title: str
    example: str
    shown: tuple[str, ...]


DIMENSIONS: dict[str, _Dimension] = {
    "bytes": _Dimension((1, 0, 0, 0, 0, 0), "size", "80 GiB", ("B", "KiB", "MiB", "GiB", "TiB", "PiB")),
    "bandwidth": _Dimension(
        (1, -1, 0, 0, 0, 0), "bandwidth", "3.35 TB/s", ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s")
    ),
    "time": _Dimension((0, 1, 0, 0, 0, 0), "time", "150 ns", ("ps", "ns", "us", "ms", "s")),
    "frequency": _Dimension((0, -1, 0, 0, 0, 0), "frequency", "1.83 GHz", ("Hz", "kHz", "MHz", "GHz", "THz")),
    "flops": _Dimension(
        (0, 0, 1, 0, 0, 0),
        "amount of work",
        "1 GFLOP",
        ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"),
    ),
    "flop_rate": _Dimension(
        (0, -1, 1, 0, 0, 0),
        "compute rate",
        "989 TFLOP/s",
        ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s"),
    ),
    "power": _Dimension((0, 0, 0, 1, 0, 0), "power", "700 W", ("mW", "W", "kW", "MW", "GW")),
    "energy": _Dimension((0, 1, 0, 1, 0, 0), "energy", "3.6 MJ", ("pJ", "nJ", "uJ", "mJ", "J", "kJ", "MJ", "GJ", "TJ")),
    "money": _Dimension((0, 0, 0, 0, 1, 0), "price", "33000 USD", ("USD", "MUSD", "GUSD")),
    "energy_per_byte": _Dimension((-1, 1, 0, 1, 0, 0), "energy per byte", "7 pJ/bit", ("pJ/B", "nJ/B", "uJ/B", "J/B")),
    "money_per_bandwidth": _Dimension((-1, 1, 0, 0, 1, 0), "price of bandwidth", "1 USD per GB/s", ("USD per GB/s",)),
    "power_per_bandwidth": _Dimension((-1, 1, 0, 1, 0, 0), "power of bandwidth", "0.052 W per GB/s", ("W per GB/s",)),
    "money_per_size": _Dimension((-1, 0, 0, 0, 1, 0), "price of memory", "12 USD/GB", ("USD/GB",)),
    "energy_per_flop": _Dimension((0, 1, -1, 1, 0, 0), "energy per operation", "0.3 pJ/FLOP", ("pJ/FLOP", "nJ/FLOP")),
    "length": _Dimension((0, 0, 0, 0, 0, 1), "length", "300 mm", ("um", "mm", "cm")),
    "area": _Dimension((0, 0, 0, 0, 0, 2), "area", "814 mm2", ("um2", "mm2", "cm2")),
    "per_area": _Dimension((0, 0, 0, 0, 0, -2), "number per area", "0.1 /cm2", ("/cm2",)),
    "area_per_size": _Dimension((-1, 0, 0, 0, 0, 2), "area of memory", "0.5 mm2/MiB", ("mm2/MiB",)),
    "area_per_rate": _Dimension((0, 1, -1, 0, 0, 2), "area of compute", "0.3 mm2 per TFLOP/s", ("mm2 per TFLOP/s",)),
    "area_per_bandwidth": _Dimension(
        (-1, 1, 0, 0, 0, 2), "area of an interface", "0.1 mm2 per GB/s", ("mm2 per GB/s",)
    ),
    "money_per_area": _Dimension((0, 0, 0, 0, 1, -2), "price per area", "0.1 USD/mm2", ("USD/mm2",)),
    "money_per_energy": _Dimension((0, -1, 0, -1, 1, 0), "price of energy", "0.12 USD/kWh", ("USD/kWh",)),
}

_QUANTITY = re.compile(
    r"\s*([+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*?)\s*", re.ASCII | re.DOTALL
)
_LONGEST = 80


def parse(text: object, dimension: str, where: str = "") -> float:
    """`text` ("3.35 TB/s") as a float in base units of `dimension`, a key of DIMENSIONS; correctly rounded.

    Base units: bytes, B/s, s, Hz, FLOP, FLOP/s, W, J, USD, m, m2 and their quotients. `where`
    ("file: key") opens the message. Raises InputError for a missing or unknown unit, a unit of another
    dimension, and a number that is negative, not finite or out of a float's range.
    """
    try:
        return convert(text, dimension)
    except ValueError as fault:
        prefix = f"{where}: " if where else ""
        raise InputError(f"{prefix}{_shown(text)}: {fault}") from None


def convert(text: object, dimension: str) -> float:
    """`parse` that raises a plain ValueError saying only what is wrong; schemas add place and value."""
    wanted = DIMENSIONS[dimension]
    expected = f"expected a {wanted.title} such as '{wanted.example}'"
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f"a number without a unit; {expected}")
    if not isinstance(text, str):
        raise ValueError(f"not a quantity; {expected}")
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f"not a finite number with a unit; {expected}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"a number without a unit; {expected}")
    size, powers = _unit(unit, wanted)
    if powers != wanted.powers:
        actual = next((d.title for d in DIMENSIONS.values() if d.powers == powers), "another dimension")
        raise ValueError(f"'{unit}' is a unit of {actual}; {expected}")
    value = Fraction(number) * size
    if value < 0:
        raise ValueError(f"negative; {expected}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"too large; {expected}") from None


def quantity(text: str) -> tuple[float, str] | None:
    """`text` ("3.35 TB/s") as a float in base units and its dimension, a key of DIMENSIONS; None where it is none."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or not match.group(2):
        return None
    try:
        size, powers = _expression(match.group(2))
    except KeyError:
        return None
    dimension = next((name for name, d in DIMENSIONS.items() if d.powers == powers), None)
    return None if dimension is None else (float(Fraction(match.group(1)) * size), dimension)


def unit_size(unit: str) -> float:
    """How many base units one `unit` ("TB/s") is. Raises KeyError for an unknown symbol."""
    return float(_expression(unit)[0])


def format_quantity(value: float, dimension: str, digits: int = 4) -> str:
    """`value` in base units as readable text with `digits` significant digits: 3.35e12 is "3.35 TB/s".

    Finite values read back with `parse` (to the digits shown); infinity, as a capacity, is "unlimited".
    """
    if math.isinf(value):
        return "unlimited" if value > 0 else "-unlimited"
    units = DIMENSIONS[dimension].shown
    sizes = [float(_expression(unit)[0]) for unit in units]
    chosen = 0
    for i, size in enumerate(sizes):
        if abs(_rounded(value / size, digits)) >= 1:
            chosen = i
    if value == 0:
        chosen = sizes.index(1.0) if 1.0 in sizes else 0
    return f"{_plain(value / sizes[chosen], digits)} {units[chosen]}"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _plain(value: float, digits: int) -> str:
    """`value` rounded to significant digits, without an exponent where it can be read without one."""
    rounded = _rounded(value, digits)
    if rounded == int(rounded) and abs(rounded) < 1e7:
        return str(int(rounded))
    if 1e-4 <= abs(rounded) < 1e7:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
        return f"{rounded:.{decimals}f}".rstrip("0").rstrip(".")
    return f"{rounded:.{digits}g}"


def _unit(unit: str, wanted: _Dimension) -> tuple[Fraction, _Powers]:
    try:
        return _expression(unit)
    except KeyError as error:
        symbol = str(error.args[0])
        if symbol in _CURRENCIES and wanted.powers[4]:
            raise ValueError(
                f"unknown currency '{symbol}': prices are in USD, and no exchange rate is assumed; convert it, for "
                f"example '{wanted.example}'"
            ) from None
        same_kind = [u for u, (_, powers) in _UNITS.items() if powers == wanted.powers] or list(_UNITS)
        raise ValueError(
            f"unknown unit '{symbol}'{did_you_mean(symbol, same_kind)}; "
            f"expected a {wanted.title} such as '{wanted.example}'"
        ) from None


def _expression(unit: str) -> tuple[Fraction, _Powers]:
    """Size and powers of "GB/s", "pJ/bit", "/cm2" or "USD per GB/s" (what follows `per` is one denominator)."""
    numerator, *denominators = re.split(r"(?:^|\s+)per\s+", unit)
    size, powers = _quotient(numerator)
    for denominator in denominators:
        size, powers = _divided((size, powers), _quotient(denominator))
    return size, powers


def _quotient(unit: str) -> tuple[Fraction, _Powers]:
    first, *rest = (symbol.strip() for symbol in unit.split("/"))
    found = (Fraction(1), _NO_UNIT) if not first else _UNITS[first]
    for symbol in rest:
        found = _divided(found, _UNITS[symbol])
    return found


def _divided(a: tuple[Fraction, _Powers], b: tuple[Fraction, _Powers]) -> tuple[Fraction, _Powers]:
    v, s, f, w, u, m = (x - y for x, y in zip(a[1], b[1], strict=True))
    return a[0] / b[0], (v, s, f, w, u, m)


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
