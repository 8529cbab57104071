"""Presets of modelling choices and of cost inputs: catalog files laid over one another, checked by their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.catalog_files import Dirs, find, load_yaml, validated
from dfmodel.errors import InputError
from dfmodel.systems.merge import merged, overlaid, set_value
from dfmodel.systems.schema import CostFile

#: Keys of a preset's file that are not part of what it sets.
_TEXTS = ("name", "title", "notes")

#: Longest chain of `extends` that is followed.
_LONGEST_CHAIN = 10


def load_assumptions(
    preset: str | Mapping[str, Any] = "default",
    overrides: Mapping[str, Any] | None = None,
    dirs: Dirs = (),
) -> Assumptions:
    """The modelling choices of `preset`, changed by `overrides` (dotted keys: {"partitions.count": 6}).

    `preset` is a catalog name, a file, or a mapping of the same form: sections and keys of Assumptions, plus
    `extends`, the preset it starts from. What no layer states keeps the schema's default. Raises
    UnknownNameError for a preset, InputError with every unknown key (and the nearest one) or wrong value.
    """
    name, layers = _layers("assumptions", preset, dirs)
    layers = [(where, {k: v for k, v in layer.items() if k not in _TEXTS}) for where, layer in layers]
    changes: dict[str, Any] = {}
    for key, value in (overrides or {}).items():
        set_value(changes, key, value, "assumptions")
    if changes:
        layers.append(("assumptions", changes))
    problems: list[str] = []
    data: dict[str, Any] = {}
    for where, layer in layers:
        try:
            validated(Assumptions, layer, where)
        except InputError as error:
            problems += error.problems
        data = overlaid(data, layer)
    if problems:
        raise InputError(problems)
    return validated(Assumptions, {"name": name, **data}, "assumptions")


def load_costs(
    preset: str | Mapping[str, Any] = "default", overrides: Mapping[str, Any] | None = None, dirs: Dirs = ()
) -> CostFile:
    """What is assumed of prices, powers, energies and running costs: a name or file of catalogs/costs, or a mapping of
    that form, changed by `overrides` (dotted keys: {"price.chip": "30000 USD"}). A changed value counts as assumed
    unless the change states its source. Raises as load_assumptions does."""
    name, layers = _layers("costs", preset, dirs)
    changes: dict[str, Any] = {}
    for key, value in (overrides or {}).items():
        set_value(changes, key, value, "cost")
    if changes:
        layers.append(("cost", changes))
    problems: list[str] = []
    data: dict[str, Any] = {}
    for where, layer in layers:
        try:
            validated(CostFile, layer, where)
        except InputError as error:
            problems += error.problems
        data = merged(data, layer) if data else dict(layer)
    if problems:
        raise InputError(problems)
    return validated(CostFile, {**data, "name": name}, "cost")


def _layers(kind: str, preset: str | Mapping[str, Any], dirs: Dirs) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """Name of the preset, and its layers from the bottom up, each with the place to name in messages."""
    called = "cost" if kind == "costs" else kind
    layers: list[tuple[str, dict[str, Any]]] = []
    name = ""
    current: str | Mapping[str, Any] | None = preset
    while current is not None:
        if len(layers) == _LONGEST_CHAIN:
            raise InputError(f"{layers[-1][0]}: extends: more than {_LONGEST_CHAIN} presets, one on another")
        if isinstance(current, str):
            path = find(kind, current, dirs)
            where, data = str(path), load_yaml(path)
            name = name or path.stem
        else:
            where, data = called, dict(current)
            name = name or str(data.get("name", ""))
        current = data.pop("extends", None)
        if current is not None and not isinstance(current, str):
            raise InputError(f"{where}: extends: expected the name of a preset, got {current!r}")
        layers.append((where, data))
    return name or "default", layers[::-1]
