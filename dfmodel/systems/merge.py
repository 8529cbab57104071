"""Catalog data before it is checked: changing single values by dotted key, and layering changes on a base."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dfmodel.errors import InputError, did_you_mean

#: Keys whose text value is the name of another catalog file.
REFERENCE_KEYS = frozenset({"chip", "memory", "efficiency", "link", "process"})

#: The entry of a table by name for what none of its other keys begins.
OTHER = "other"

_TEXT_KEYS = frozenset({"sources", "status", "source", "notes", "title", "name"})
_NUMBER = re.compile(r"\s*[+-]?\.?\d")


def set_value(data: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set dotted `key` ("topology.0.link.bandwidth") of `data` in place; list items by index or by name.

    A catalog name on the way becomes `{base: name}`, so that one value of what it names can be changed. A new
    last key is added: the schema says whether it exists. Raises InputError for a path that leads nowhere.
    """
    parts = key.split(".")
    node: Any = data
    for i, part in enumerate(parts[:-1]):
        node = _child(node, part, f"{where}: {'.'.join(parts[: i + 1])}")
    last = parts[-1]
    if isinstance(node, list):
        node[item_index(node, last, f"{where}: {key}")] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise InputError(f"{where}: {key}: '{'.'.join(parts[:-1])}' is a single value and has no '{last}'")


def overlaid(base: Any, changes: Any) -> Any:
    """`changes` laid over `base`, mappings key by key; a base file named by text takes single changes."""
    if isinstance(changes, Mapping) and isinstance(base, Mapping):
        return {**base, **{k: overlaid(base[k], v) if k in base else v for k, v in changes.items()}}
    if isinstance(changes, Mapping) and isinstance(base, list) and all(k.isdecimal() for k in changes):
        # Items of a list in a base file, addressed by index: memory.1.bandwidth.
        beyond = [k for k in changes if int(k) >= len(base)]
        if beyond:
            raise InputError(f"no item {beyond[0]}: the list has {len(base)} (counted from 0)")
        return [overlaid(v, changes[str(i)]) if str(i) in changes else v for i, v in enumerate(base)]
    if isinstance(changes, Mapping) and isinstance(base, str) and "base" not in changes:
        return {"base": base, **changes}
    return changes


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A catalog entry `base` with `changes` overlaid.

    A changed value keeps no source of the base: unless `changes` states one, it counts as assumed.
    """
    own = {k: v for k, v in changes.items() if k not in ("base", "sources", "status")}
    result: dict[str, Any] = overlaid(base, own)
    for key in ("sources", "status"):
        if not isinstance(changes.get(key, {}), Mapping) or not isinstance(base.get(key, {}), Mapping):
            # Not tables of key paths: an efficiency curve's single status, or a fault the schema reports.
            if own or key in changes:
                result[key] = changes.get(key, "assumed")
            if "source" in base and own:
                result["source"] = changes.get("source", "changed by the user")
            return result
    sources, status = changes.get("sources", {}), changes.get("status", {})
    assumed = {path: "assumed" for path in number_paths(own) if not covered(path, sources)}
    result["sources"] = {**base.get("sources", {}), **sources}
    result["status"] = {**base.get("status", {}), **assumed, **status}
    return result


def number_paths(data: Any, prefix: str = "") -> Iterator[str]:
    """Dotted key of every number or quantity in `data`, leaving out sources, status, notes and names."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key not in _TEXT_KEYS:
                yield from number_paths(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from number_paths(value, f"{prefix}.{i}")
    elif isinstance(data, int | float):
        if not isinstance(data, bool):
            yield prefix
    elif isinstance(data, str) and _NUMBER.match(data) and prefix.rpartition(".")[2] not in REFERENCE_KEYS:
        yield prefix


def covered(path: str, table: Mapping[str, str]) -> str | None:
    """The value of the most specific entry of `table` that speaks for `path`: itself, a parent, or "*"."""
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        found = table.get(".".join(parts[:n]))
        if found is not None:
            return found
    return table.get("*")


def by_beginning(table: Mapping[str, float], name: str) -> float | None:
    """The entry of `table` with the longest key that `name` begins with, else the one called `other`."""
    found = [key for key in table if name.startswith(key)]
    return table[max(found, key=len)] if found else table.get(OTHER)


def assumed_values(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of the numbers in a catalog entry that are marked assumed, or that no source states."""
    return tuple(p for p in number_paths(data) if covered(p, data.get("status", {})) == "assumed") + tuple(
        unsourced_values(data)
    )


def unsourced_values(data: Mapping[str, Any]) -> list[str]:
    """Keys of the numbers in a catalog entry that have neither a source nor the status assumed."""
    if isinstance(data.get("source"), str):
        return []
    sources, status = data.get("sources", {}), data.get("status", {})
    return [p for p in number_paths(data) if not covered(p, sources) and covered(p, status) != "assumed"]


def _child(node: Any, part: str, where: str) -> Any:
    """The container at `part` of `node`, made where a catalog name, or nothing, stands there."""
    key: Any = item_index(node, part, where) if isinstance(node, list) else part
    if not isinstance(node, list | dict):
        raise InputError(f"{where}: the key above it is a single value")
    value = node[key] if isinstance(node, list) else node.get(key)
    if isinstance(value, str) and part in REFERENCE_KEYS:
        value = {"base": value}
    if value is None:
        value = {}
    node[key] = value
    return value


def item_index(items: list[Any], part: str, where: str) -> int:
    """Position of the list item called `part`, or numbered so. Raises InputError with the nearest."""
    names = [str(i.get("name", "")) if isinstance(i, dict) else "" for i in items]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    valid = [n for n in names if n] + [str(i) for i in range(len(items))]
    raise InputError(f"{where}: no item '{part}'{did_you_mean(part, valid)}")
