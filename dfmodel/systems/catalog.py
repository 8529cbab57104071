"""Chips, memories, links, efficiency curves and systems from their catalog files.

A name is looked up in the catalogs, a name with '/' or '.yaml' is a file. Every function takes `dirs`,
folders searched before the packaged catalogs, and raises UnknownNameError (with the nearest name) or
InputError (with every problem of the file as "file: key: what is wrong").
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from dfmodel.catalog_files import MOST_ALIASES, Dirs, catalog_dirs, find, is_path, list_names, load_yaml, validated
from dfmodel.errors import InputError, did_you_mean
from dfmodel.systems.chip import Chip, Efficiency, OperationEnergy, TileArray
from dfmodel.systems.defaults import with_defaults
from dfmodel.systems.gemm import GemmCurve
from dfmodel.systems.memory import Memory
from dfmodel.systems.merge import assumed_values, item_index, merged, number_paths, set_value
from dfmodel.systems.network import SWITCHED, Achieved, Dimension, Link
from dfmodel.systems.peaks import sparse_peaks
from dfmodel.systems.schema import (
    AliasFile,
    ChipFile,
    DimensionFile,
    EfficiencyFile,
    LinkFile,
    MemoryFile,
    ProcessFile,
    SystemFile,
)
from dfmodel.systems.silicon import Process, silicon
from dfmodel.systems.silicon_files import demand_of, process_of
from dfmodel.systems.system import System

__all__ = [
    "KINDS",
    "catalog_dirs",
    "find",
    "list_names",
    "load_chip",
    "load_efficiency",
    "load_link",
    "load_memory",
    "load_system",
    "load_yaml",
]

#: Folders of a catalog.
KINDS = (
    "chips",
    "memories",
    "links",
    "systems",
    "efficiency",
    "assumptions",
    "models",
    "graphs",
    "cases",
    "costs",
    "processes",
)

Built = TypeVar("Built")


@dataclass(frozen=True)
class _Entry:
    """Content of a catalog entry: its data, the place to name in messages, the folder of paths in it; `whole` where it
    is a file as it stands, not keys given in place or changed."""

    name: str
    data: dict[str, Any]
    where: str
    folder: Path
    dirs: Dirs
    whole: bool = False

    def resolve(self, kind: str, reference: Any, key: str) -> _Entry:
        """What `reference`, found at `key` of this entry, stands for: a file, or keys given in place."""
        if isinstance(reference, str):
            return _named(kind, reference, self.dirs, self.folder, f"{self.where}: {key}")
        where = f"{self.where}: {key}"
        if not isinstance(reference, dict):
            raise InputError(f"{where}: expected a catalog name or the keys of one, got {reference!r}")
        name = str(reference.get("name") or reference.get("base") or key)
        if "base" not in reference:
            return _Entry(name, reference, where, self.folder, self.dirs)
        base = _named(kind, str(reference["base"]), self.dirs, self.folder, f"{where}.base")
        return _Entry(name, merged(base.data, reference), where, base.folder, self.dirs)


class _Problems:
    """Collects the problems of several attempts, to be raised together."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def attempt(self, build: Callable[..., Built], *args: Any) -> Built | None:
        try:
            return build(*args)
        except InputError as error:
            self.found += [p for p in error.problems if p not in self.found]
            return None

    def raise_any(self) -> None:
        if self.found:
            raise InputError(self.found)


def load_chip(name: str, dirs: Dirs = ()) -> Chip:
    """The chip `name`, with its memories and efficiency curve."""
    return _chip(_named("chips", name, dirs))


def load_memory(name: str, dirs: Dirs = ()) -> Memory:
    """The memory tier `name`."""
    return _memory(_named("memories", name, dirs))


def load_link(name: str, dirs: Dirs = ()) -> Link:
    """The link `name`; a figure per chip is divided by the file's number of links."""
    return _link(_named("links", name, dirs), None)


def load_efficiency(name: str, dirs: Dirs = ()) -> Efficiency:
    """The efficiency curve `name`."""
    return _efficiency(_named("efficiency", name, dirs))


def load_process(name: str, dirs: Dirs = ()) -> Process:
    """The semiconductor process `name`."""
    return _process(_named("processes", name, dirs))


def load_system(name: str, overrides: Mapping[str, Any] | None = None, dirs: Dirs = ()) -> System:
    """The system `name`, changed by `overrides`: dotted keys of its file to values.

    {"nodes": 64} sets a parameter, {"chip": "a100_sxm_80"} names another chip, {"chip.price": "30000 USD"}
    changes one value of it, {"topology.0.size": 16} or {"topology.nvlink.size": 16} a dimension, {"link":
    "nvlink_dse"} the link of the dimensions that name none.
    """
    return _system(_with_overrides(_named("systems", name, dirs), overrides or {}))


def _named(kind: str, name: str, dirs: Dirs, folder: Path | None = None, where: str = "", chain: int = 0) -> _Entry:
    dirs = tuple(dirs)
    beside = folder / name if folder is not None and is_path(name) else None
    reference = str(beside) if beside is not None and beside.is_file() else name
    try:
        path = find(kind, reference, dirs)
    except InputError as error:
        if not where:
            raise
        raise InputError(f"{where}: {p}" for p in error.problems) from None
    data = load_yaml(path)
    stated = data.get("name", path.stem)
    if stated != path.stem:
        raise InputError(f"{path}: name: '{stated}' differs from the file's name '{path.stem}'; make them equal")
    if kind != "systems" and "alias_of" in data:
        return _alias_target(kind, data, path, dirs, chain)
    return _Entry(path.stem, data, str(path), path.parent, dirs, whole=True)


def _alias_target(kind: str, data: dict[str, Any], path: Path, dirs: Dirs, chain: int) -> _Entry:
    """What a file that only gives another name to a chip, memory, link or curve stands for."""
    alias = validated(AliasFile, data, str(path))
    if alias.overrides:
        raise InputError(f"{path}: overrides: only systems have variants; write a file of its own, from a copy")
    if chain == MOST_ALIASES:
        raise InputError(f"{path}: alias_of: more than {MOST_ALIASES} aliases, one of another")
    return _named(kind, alias.alias_of, dirs, path.parent, f"{path}: alias_of", chain + 1)


def _memory(entry: _Entry) -> Memory:
    spec = validated(MemoryFile, entry.data, entry.where)
    return Memory(
        name=entry.name,
        capacity_bytes=spec.capacity,
        bytes_per_s=spec.bandwidth,
        usd_per_byte_per_s=spec.price_per_bandwidth,
        w_per_byte_per_s=spec.power_per_bandwidth,
        usd=spec.price,
        w=spec.power,
        j_per_byte=spec.energy,
        assumed=_money_keys(entry.data),
    )


def _memories(entry: _Entry, references: Any, key: str) -> tuple[Memory, ...]:
    problems = _Problems()
    listed = references if isinstance(references, list) else [references]
    found = [
        problems.attempt(lambda r=r, k=k: _memory(entry.resolve("memories", r, k)))
        for r, k in ((r, f"{key}.{i}" if len(listed) > 1 else key) for i, r in enumerate(listed))
    ]
    problems.raise_any()
    return tuple(m for m in found if m is not None)


def _link(entry: _Entry, links_here: int | None) -> Link:
    """`links_here` is how many links a chip has where the link is used.

    A bandwidth per chip is shared by the links the file counts, or where it counts none by `links_here`.
    """
    spec = validated(LinkFile, entry.data, entry.where)
    bandwidth = spec.bandwidth
    if spec.convention == "per chip and direction":
        links = spec.links or links_here
        if links is None:
            raise InputError(f"{entry.where}: links: missing; a bandwidth per chip needs the number of links")
        bandwidth /= links
    return Link(
        name=entry.name,
        bytes_per_s=bandwidth,
        latency_s=spec.latency,
        usd_per_byte_per_s=spec.price_per_bandwidth,
        w_per_byte_per_s=spec.power_per_bandwidth,
        switch_usd_per_byte_per_s=spec.switch_price_per_bandwidth,
        switch_w_per_byte_per_s=spec.switch_power_per_bandwidth,
        j_per_byte=spec.energy,
        achieved=_achieved(entry, spec),
        assumed=_money_keys(entry.data),
    )


def _money_keys(data: Mapping[str, Any]) -> tuple[str, ...]:
    """What of a memory's or link's price, power and energy no source states, as reports call it."""
    found = []
    for key in assumed_values(data):
        word = key.removesuffix("_per_bandwidth").replace("_", " ")
        if word.removeprefix("switch ") in ("price", "power", "energy"):
            found.append(word)
    return tuple(dict.fromkeys(found))


def _achieved(entry: _Entry, spec: LinkFile, depth: int = 0) -> tuple[Achieved, ...]:
    """What the link's own file says first, then what it takes from another link's."""
    own = tuple(Achieved(a.efficiency, a.ramp, a.start, a.kinds, a.operations, a.algorithms) for a in spec.achieved)
    if spec.achieved_like is None:
        return own
    if depth == MOST_ALIASES:
        raise InputError(f"{entry.where}: achieved_like: more than {MOST_ALIASES} links in a row; is there a circle?")
    other = entry.resolve("links", spec.achieved_like, "achieved_like")
    taken = _achieved(other, validated(LinkFile, other.data, other.where), depth + 1)
    return own + tuple(replace(a, inherited=True) for a in taken)


def _efficiency(entry: _Entry) -> Efficiency:
    spec = validated(EfficiencyFile, entry.data, entry.where)
    return Efficiency(
        name=entry.name,
        matrix_max=spec.matrix_max,
        matrix_half_flops=spec.matrix_half,
        vector_max=spec.vector_max,
        memory_max=spec.memory_max,
        memory_half_bytes=spec.memory_half,
        link_max=spec.link_max,
        links_achieve=spec.links_achieve,
        gemm=None if spec.gemm is None else GemmCurve(**spec.gemm.model_dump()),
        attention_max=spec.attention_max,
        attention_half=spec.attention_half,
        matrix_max_of={str(k): v for k, v in spec.matrix_max_of.items()},
        stacks=dict(spec.stacks),
        launch_s=spec.launch,
        step_s=spec.step,
        status=spec.status,
        source=spec.source,
    )


def _chip(entry: _Entry, memories: tuple[Memory, ...] | None = None, efficiency: Efficiency | None = None) -> Chip:
    """`memories` and `efficiency` replace those of the chip's file."""
    problems = _Problems()
    data, filled = with_defaults(entry.data)
    spec = problems.attempt(validated, ChipFile, data, entry.where)
    if entry.whole:
        # A changed peak is a question asked, not a slip.
        problems.found += [f"{entry.where}: {p}" for p in sparse_peaks(data)]
    of_memories: tuple[str, ...] = ()
    if memories is None and data.get("memory") is not None:
        memories = problems.attempt(_memories, entry, data["memory"], "memory")
        of_memories = problems.attempt(_assumed_of_memories, entry, data["memory"]) or ()
    if efficiency is None:
        reference, key = data.get("efficiency"), "efficiency"
        if reference is None:
            reference, key = str(data.get("kind", "")), "kind (the efficiency curve, unless that is given)"
        elif isinstance(reference, dict) and data.get("kind") in list_names("efficiency", entry.dirs):
            # Values given in place change the curve of the chip's kind.
            reference = {"base": data["kind"], **reference}
        if reference != "":
            efficiency = problems.attempt(lambda: _efficiency(entry.resolve("efficiency", reference, key)))
    process = None
    stated = data.get("silicon")
    if isinstance(stated, dict) and isinstance(stated.get("process"), str | dict):
        process = problems.attempt(lambda: _process(entry.resolve("processes", stated["process"], "silicon.process")))
    problems.raise_any()
    assert spec is not None and memories is not None and efficiency is not None
    matrix: dict[str, float] = dict(spec.peak.matrix)
    vector: dict[str, float] = dict(spec.peak.vector)
    tiles = None
    if spec.tiles is not None:
        tiles = TileArray(spec.tiles.count, spec.tiles.lanes, spec.tiles.stages, spec.tiles.clock)
        matrix |= dict.fromkeys(spec.tiles.dtypes, tiles.matrix_flops_per_s)
        vector |= dict.fromkeys(spec.tiles.dtypes, tiles.vector_flops_per_s)
    made = None
    if spec.silicon is not None and process is not None:
        where = f"{entry.where}: silicon"
        made = silicon(process, demand_of(spec.silicon, matrix, spec.sram, memories, where), where)
    return Chip(
        name=entry.name,
        title=spec.title or entry.name,
        kind=spec.kind,
        execution=spec.execution,
        matrix_flops_per_s=matrix,
        vector_flops_per_s=vector,
        sram_bytes=spec.sram,
        memories=memories,
        efficiency=efficiency,
        tiles=tiles,
        power_w=spec.power,
        price_usd=spec.price if made is None else made.price_usd,
        silicon=made,
        energy=OperationEnergy(dict(spec.energy.matrix), spec.energy.vector, spec.energy.sram),
        reconfiguration_s=spec.reconfiguration,
        fusions=spec.fusions,
        assumed=tuple(
            dict.fromkeys((*assumed_values(data), *filled, *of_memories, *(() if made is None else ("price",))))
        ),
    )


def _process(entry: _Entry) -> Process:
    return process_of(validated(ProcessFile, entry.data, entry.where), entry.name)


def _assumed_of_memories(entry: _Entry, references: Any) -> tuple[str, ...]:
    """Keys of what the files of named memories assume; values given in place are the chip's own."""
    listed = references if isinstance(references, list) else [references]
    found: list[str] = []
    for position, reference in enumerate(listed):
        key = f"memory.{position}" if len(listed) > 1 else "memory"
        base = reference.get("base") if isinstance(reference, dict) else reference
        if not isinstance(base, str):
            continue
        own = set(number_paths(reference)) if isinstance(reference, dict) else set()
        file = entry.resolve("memories", base, key)
        found += [f"{key}.{path}" for path in assumed_values(file.data) if path not in own]
    return tuple(found)


def _with_overrides(entry: _Entry, overrides: Mapping[str, Any]) -> _Entry:
    """A system's entry, aliases followed, with their overrides and then `overrides` applied."""
    layers = [overrides]
    title: dict[str, Any] = {}
    name = ""
    for _ in range(MOST_ALIASES):
        if "alias_of" not in entry.data:
            break
        alias = validated(AliasFile, entry.data, entry.where)
        layers.append(alias.overrides)
        if alias.overrides and not name:
            name, title = entry.name, {"title": alias.title} if alias.title else {}
        entry = _named("systems", alias.alias_of, entry.dirs, entry.folder, f"{entry.where}: alias_of")
    else:
        raise InputError(f"{entry.where}: alias_of: more than {MOST_ALIASES} aliases, one of another")
    if not any(layers):
        return entry
    data = {**copy.deepcopy(entry.data), **title}
    where = f"{entry.where} with overrides"
    problems = _Problems()
    for layer in reversed(layers):
        # Short keys first: a name comes before changes of what it names.
        for key in sorted(layer, key=lambda k: k.count(".")):
            problems.attempt(_override, data, key, layer[key], where)
    problems.raise_any()
    return _Entry(name or entry.name, data, where, entry.folder, entry.dirs)


def _override(data: dict[str, Any], key: str, value: Any, where: str) -> None:
    parameters = data.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    first = key.split(".")[0]
    fields = set(SystemFile.model_fields) - {"name", "sources", "status"}
    if first in parameters:
        set_value(data, f"parameters.{key}", value, where)
        return
    if first not in fields:
        raise InputError(f"{where}: {key}: unknown key{did_you_mean(first, fields | set(parameters))}")
    topology = data.get("topology")
    topology = [d for d in topology if isinstance(d, dict)] if isinstance(topology, list) else []
    if key == "link" and all(d.get("link") for d in topology):
        raise InputError(f"{where}: link: every dimension names its own link; set topology.0.link and so on instead")
    if first in ("memory", "efficiency") and key != first and not data.get(first):
        raise InputError(f"{where}: {key}: the system names no {first} of its own; set chip.{key} instead")
    parts = key.split(".")
    if first == "topology" and len(parts) > 3 and parts[2] == "link":
        # Changing one value of a link that the dimension takes from the system: it gets its own copy.
        dimension = topology[item_index(topology, parts[1], f"{where}: {key}")]
        dimension["link"] = copy.deepcopy(dimension.get("link") or data.get("link"))
    set_value(data, key, value, where)


def _system(entry: _Entry) -> System:
    data = entry.data
    problems = _Problems()
    spec = problems.attempt(validated, SystemFile, data, entry.where)
    memories = None
    if data.get("memory") is not None:
        memories = problems.attempt(_memories, entry, data["memory"], "memory")
    efficiency = None
    if data.get("efficiency") is not None:
        efficiency = problems.attempt(
            lambda: _efficiency(entry.resolve("efficiency", data["efficiency"], "efficiency"))
        )
    chip = None
    if isinstance(data.get("chip"), str | dict):
        chip = problems.attempt(lambda: _chip(entry.resolve("chips", data["chip"], "chip"), memories, efficiency))
    if spec is None:
        for key, reference in _stated_links(data):
            problems.attempt(lambda r, k: _link(entry.resolve("links", r, k), 1), reference, key)
        problems.raise_any()
    assert spec is not None
    dimensions = [problems.attempt(_dimension, entry, spec, position) for position in range(len(spec.topology))]
    problems.raise_any()
    assert chip is not None
    if not chip.efficiency.links_achieve:
        dimensions = [d and replace(d, link=replace(d.link, achieved=())) for d in dimensions]
    system = System(
        name=entry.name,
        title=spec.title or entry.name,
        chip=chip,
        dimensions=tuple(d for d in dimensions if d is not None),
        high_bandwidth_domain=spec.high_bandwidth_domain,
        copies=spec.copies,
        wiring=spec.wiring,
        facts={**spec.parameters, **spec.facts},
    )
    if spec.chips is not None and spec.chips != system.chips:
        sizes = " x ".join(f"{d.size} ({d.name})" for d in system.dimensions)
        raise InputError(
            f"{entry.where}: chips: {spec.chips} asked, but the topology is {sizes} = {system.chips}; "
            "change a size or parameter so that they multiply to it"
        )
    if system.chips % system.copies:
        raise InputError(f"{entry.where}: copies: {system.copies} does not divide {system.chips} chips")
    return system


def _stated_links(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Key and value of every link a system's file gives, whatever else is wrong with the file."""
    topology = data.get("topology")
    for position, dimension in enumerate(topology if isinstance(topology, list) else []):
        if isinstance(dimension, dict) and dimension.get("link") is not None:
            yield f"topology.{position}.link", dimension["link"]
    if data.get("link") is not None:
        yield "link", data["link"]


def _dimension(entry: _Entry, spec: SystemFile, position: int) -> Dimension:
    dimension = spec.topology[position]
    key = f"topology.{position}"
    size = _size(entry, spec, dimension, key)
    reference = dimension.link if dimension.link is not None else spec.link
    if reference is None:
        raise InputError(f"{entry.where}: {key}.link: missing; name a link here, or one for the whole system")
    link_key = f"{key}.link" if dimension.link is not None else "link"
    link = entry.resolve("links", reference, link_key)
    whole = _link(link, 1)
    links = dimension.links_per_chip
    if links is None and dimension.kind in SWITCHED:
        links = validated(LinkFile, link.data, link.where).links
    try:
        built = Dimension(
            name=dimension.name,
            kind=dimension.kind,
            size=size,
            link=whole,
            links_per_chip=links,
            oversubscription=dimension.oversubscription,
            in_network_reduction=dimension.in_network_reduction,
            pod_size=dimension.pod_size,
        )
    except InputError as error:
        raise InputError(f"{entry.where}: {key}: {p}" for p in error.problems) from None
    return replace(built, link=_link(link, max(1, built.links)))


def _size(entry: _Entry, spec: SystemFile, dimension: DimensionFile, key: str) -> int:
    if isinstance(dimension.size, int):
        return dimension.size
    if dimension.size not in spec.parameters:
        near = did_you_mean(dimension.size, spec.parameters)
        raise InputError(f"{entry.where}: {key}.size: no parameter '{dimension.size}'{near}")
    return spec.parameters[dimension.size]
