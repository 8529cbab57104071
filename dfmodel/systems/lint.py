"""What no schema sees in catalog files: values out of range, peaks with sparsity, GB for GiB, values without a source.

`dfmodel validate catalog` runs these checks over whole folders. Every check yields lines "key: what is wrong, and the
mend"; what is merely assumed, or hidden by a file of the same name, is told apart from problems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfmodel.catalog_files import Dirs, catalog_dirs, holders, load_yaml
from dfmodel.errors import InputError
from dfmodel.systems.catalog import load_chip, load_efficiency, load_link, load_memory, load_system
from dfmodel.systems.merge import assumed_values, covered, number_paths, unsourced_values
from dfmodel.systems.peaks import sparse_peaks
from dfmodel.units import convert, format_quantity

LOADERS: dict[str, Callable[..., object]] = {
    "chips": load_chip,
    "memories": load_memory,
    "links": load_link,
    "efficiency": load_efficiency,
    "systems": load_system,
}

_PER_BIT = 8e-12  # J per byte of one pJ per bit

#: Kind of file -> key, dimension, least and largest believable value in base units.
_RANGES: dict[str, tuple[tuple[str, str, float, float], ...]] = {
    "chips": (
        ("sram", "bytes", 2**18, 1e11),
        ("power", "power", 1.0, 1e5),
        ("price", "money", 10.0, 1e7),
        ("tiles.clock", "frequency", 1e8, 1e10),
    ),
    "memories": (
        ("capacity", "bytes", 1e8, 1e15),
        ("bandwidth", "bandwidth", 1e9, 1e17),
        ("energy", "energy_per_byte", 0.01 * _PER_BIT, 100 * _PER_BIT),
    ),
    "links": (
        ("bandwidth", "bandwidth", 1e8, 2e13),
        ("latency", "time", 0.0, 1e-3),
        ("energy", "energy_per_byte", 0.01 * _PER_BIT, 1000 * _PER_BIT),
    ),
}
_LEAST_PEAK, _LARGEST_PEAK = 1e9, 1e19

#: What a source text says of a value that was written down from memory.
_UNREAD = "recalled"

_QUANTITY = re.compile(r"\s*([\d._]+)\s*([KMGTP]?i?B)\s*")
_DECIMAL = {"GB": 1e9, "TB": 1e12}
_BINARY = {"GiB": 2.0**30, "TiB": 2.0**40}
#: How far a printed value may be from the round one it stands for.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class FileReport:
    """One catalog file: its problems, the keys of what it assumes, and the file of its name that comes before it."""

    kind: str
    path: Path
    problems: tuple[str, ...]
    assumed: tuple[str, ...]
    hidden_by: Path | None


def lint_catalogs(folders: Sequence[Path] | None = None, dirs: Dirs = ()) -> list[FileReport]:
    """A report of every chip, memory, link, curve and system in `folders` (None: all that are searched), by folder.

    Names inside the files are looked up in `folders`, `dirs` and the other catalogs. Raises InputError for a folder
    that does not exist or holds no catalog.
    """
    dirs = (*(folders or ()), *dirs)
    searched = catalog_dirs(dirs)
    chosen = searched if folders is None else list(folders)
    reports = []
    for folder in dict.fromkeys(chosen):
        files = [(kind, path) for kind in LOADERS for path in sorted((folder / kind).glob("*.yaml"))]
        if not files:
            raise InputError(f"{folder}: no catalog files; a catalog has folders {', '.join(LOADERS)}")
        reports += [lint_file(kind, path, dirs) for kind, path in files]
    return reports


def lint_file(kind: str, path: Path, dirs: Dirs = ()) -> FileReport:
    """The report of one file of the catalog folder `kind`."""
    dirs = tuple(dirs)
    problems: list[str] = []
    data: dict[str, Any] = {}
    try:
        data = load_yaml(path)
        LOADERS[kind](str(path), dirs=dirs)
    except InputError as error:
        problems += error.problems
    for found in _problems(kind, data):
        line = f"{path}: {found}"
        if line not in problems:
            problems.append(line)
    first = holders(kind, path.stem, dirs)
    hidden_by = first[0] if first and first[0].resolve() != path.resolve() else None
    return FileReport(kind, path, tuple(problems), _assumed(data), hidden_by)


def _problems(kind: str, data: Mapping[str, Any]) -> Iterator[str]:
    if any(not isinstance(data.get(key, {}), Mapping) for key in ("sources", "status")) and kind != "efficiency":
        return  # the schema explains
    if kind != "efficiency":
        yield from _unsourced(data)
    yield from _out_of_range(kind, data, "")
    if kind == "chips":
        yield from sparse_peaks(data)
        yield from _peaks(data)
        memory = data.get("memory")
        for position, tier in enumerate(memory if isinstance(memory, list) else [memory]):
            if isinstance(tier, Mapping):
                prefix = f"memory.{position}." if isinstance(memory, list) else "memory."
                yield from _out_of_range("memories", tier, prefix)
                yield from _sizes(tier, ("capacity",), prefix)
                yield from _binary_rates(tier, prefix)
    yield from _sizes(data, ("capacity", "sram"), "")
    yield from _binary_rates(data, "")


def _assumed(data: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(assumed_values(data)))
    except AttributeError:
        return ()  # sources or status is not a table: the schema explains


def _unsourced(data: Mapping[str, Any]) -> Iterator[str]:
    if "alias_of" not in data:
        for path in unsourced_values(data):
            yield f"{path}: no source; name the document under sources.{path}, or set status.{path}: assumed"
    sources, status = data.get("sources", {}), data.get("status", {})
    numbers = list(number_paths(data))
    for key, text in sources.items():
        if _UNREAD not in str(text) or covered(key, status) == "assumed":
            continue
        mine = [p for p in numbers if covered(p, sources) == text]
        if not mine or any(covered(p, status) != "assumed" for p in mine):
            yield f"sources.{key}: {_UNREAD}, not read; cite a document that was, or set status.{key}: assumed"


def _out_of_range(kind: str, data: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, dimension, least, largest in _RANGES.get(kind, ()):
        value = _value(_at(data, key), dimension)
        if value is not None and not least <= value <= largest:
            found, low, high = (format_quantity(v, dimension) for v in (value, least, largest))
            yield f"{prefix}{key}: {found} is not between {low} and {high}; is the unit right?"


def _peaks(data: Mapping[str, Any]) -> Iterator[str]:
    """Rates out of range, vector rates above matrix rates, and fp64 of one engine given for both."""
    rates = {
        engine: {k: r for k, v in table.items() if (r := _value(v, "flop_rate")) is not None}
        for engine in ("matrix", "vector")
        if isinstance(table := _at(data, f"peak.{engine}"), Mapping)
    }
    for engine, table in rates.items():
        for dtype, rate in table.items():
            if not _LEAST_PEAK <= rate <= _LARGEST_PEAK:
                found = format_quantity(rate, "flop_rate")
                yield f"peak.{engine}.{dtype}: {found} is no chip's rate; is the unit right?"
    matrix, vector = rates.get("matrix", {}), rates.get("vector", {})
    for dtype in sorted(set(matrix) & set(vector)):
        if vector[dtype] > matrix[dtype] * (1 + _ROUNDING):
            yield f"peak.vector.{dtype}: above peak.matrix.{dtype}; are the two exchanged?"
    if "fp64" in matrix and vector and "fp64" not in vector:
        yield "peak.vector.fp64: missing; matrix units and vector units have fp64 rates of their own, give both"


def _sizes(data: Mapping[str, Any], keys: Sequence[str], prefix: str) -> Iterator[str]:
    """GB where 2^30 bytes are meant and the reverse: a value that is the other unit's round number."""
    for key in keys:
        text = data.get(key)
        match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            continue
        try:
            number = float(match[1].replace("_", ""))
        except ValueError:
            continue
        unit = match[2]
        if unit in _DECIMAL:
            binary = unit[0] + "iB"
            other = number * _DECIMAL[unit] / _BINARY[binary]
            if _is_round(number):
                exact = f"{number * _DECIMAL[unit]:_.0f} B"
                yield (
                    f"{prefix}{key}: {text} is {other:.4g} {binary}, and memories come in {binary}; write {number:g} "
                    f"{binary}, or {exact} where the decimal size is meant"
                )
            elif _is_round(other):
                yield f"{prefix}{key}: {text} is {other:.0f} {binary} written in {unit}; write {other:.0f} {binary}"
        elif unit in _BINARY and not float(number).is_integer():
            decimal = unit.replace("i", "")
            if _is_round(other := number * _BINARY[unit] / _DECIMAL[decimal]):
                yield f"{prefix}{key}: {text} is {other:.0f} {decimal} written in {unit}; write {other:.0f} {decimal}"


def _is_round(number: float) -> bool:
    """Whether it is, to the digits people print, a size that memories are sold in: a multiple of 4."""
    nearest = round(number / 4) * 4
    return nearest > 0 and abs(number / nearest - 1) < _ROUNDING / 4


def _binary_rates(data: Mapping[str, Any], prefix: str) -> Iterator[str]:
    text = data.get("bandwidth")
    if isinstance(text, str) and re.search(r"[KMGTP]i[Bb]/s", text):
        value = _value(text, "bandwidth")
        decimal = f", which is {format_quantity(value, 'bandwidth')}" if value is not None else ""
        yield f"{prefix}bandwidth: {text}{decimal}; bandwidths are counted in powers of ten, write it so"


def _at(data: Mapping[str, Any], key: str) -> Any:
    node: Any = data
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _value(text: object, dimension: str) -> float | None:
    try:
        return convert(text, dimension)
    except ValueError:
        return None
