"""What a sweep is asked: a base configuration, axes, scenarios, conditions; from a file or from the command line.

A study file has the sections of a run (workload, system, plan, assumptions; each a name or a mapping) and:

    name: chips
    axes:                     # every combination of these
      system.chip: [h100_sxm, b200_sxm]
      system.nodes: {range: "8:64:*2"}
    zip:                      # these lists walk together
      - {workload.batch: [512, 1024], plan.micro_batch: [1, 2]}
    scenarios:                # named settings, each with every combination
      short: {workload.sequence: 2048}
    where:                    # combinations to keep
      - "system.nodes * 8 <= 256"

An axis is a dotted setting, or `workload`, `system` or `assumptions` for names.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dfmodel.catalog_files import Dirs, find, load_yaml
from dfmodel.config import SECTIONS, STUDY_KEYS, RunConfig, apply_sections, apply_settings
from dfmodel.errors import InputError, did_you_mean
from dfmodel.studies.axes import MOST_POINTS, Axes, axis_values
from dfmodel.studies.constraints import Condition

#: Axes that name a catalog entry instead of setting a key.
NAME_AXES = ("workload", "system", "assumptions")

SWEEP_KEYS = (*STUDY_KEYS, "axes", "zip", "scenarios", "where")

#: The column, and the word in conditions, for the scenario of a point.
SCENARIO = "scenario"


@dataclass
class Study:
    """A base configuration and what varies over it. `zipped` lists axes that walk together."""

    name: str
    base: RunConfig
    product: Axes = field(default_factory=dict)
    zipped: list[Axes] = field(default_factory=list)
    scenarios: dict[str, dict[str, Any]] = field(default_factory=dict)
    where: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns of the inputs: the scenario, where there are any, then every axis."""
        own = (*self.product, *(k for z in self.zipped for k in z))
        return (SCENARIO, *own) if self.scenarios else own

    @property
    def digest(self) -> str:
        """Eight digits of everything asked, for the folder of a sweep that has no name."""
        whole = [self.base.to_dict(), self.product, self.zipped, self.scenarios, self.where]
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()[:8]

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Inputs of every point that the conditions keep, in the order of the axes, the last the fastest.

        Raises InputError for an empty grid.
        """
        conditions = [Condition(text, self.keys) for text in self.where]
        sides: list[list[dict[str, Any]]] = [[{SCENARIO: name} for name in self.scenarios]] if self.scenarios else []
        sides += [[{key: v} for v in values] for key, values in self.product.items()]
        sides += [[dict(zip(z, row, strict=True)) for row in zip(*z.values(), strict=True)] for z in self.zipped]
        kept = 0
        for parts in itertools.product(*sides):
            inputs = {k: v for part in parts for k, v in part.items()}
            if all(condition(inputs) for condition in conditions):
                kept += 1
                yield inputs
        if not kept:
            raise InputError(f"the grid is empty: no combination fulfils where: {'; '.join(self.where)}")

    def config_of(self, inputs: Mapping[str, Any]) -> RunConfig:
        """The configuration of one point. Raises InputError for keys outside every section."""
        config = copied(self.base)
        settings: dict[str, Any] = dict(self.scenarios.get(inputs.get(SCENARIO, ""), {}))
        settings |= {k: v for k, v in inputs.items() if k != SCENARIO}
        for name in NAME_AXES:
            if name in settings:
                setattr(config, name, settings.pop(name))
        apply_settings(config, settings)
        return config


def copied(config: RunConfig) -> RunConfig:
    """A configuration whose settings change without changing the other's."""
    return replace(
        config,
        workload_overrides=dict(config.workload_overrides),
        system_overrides=dict(config.system_overrides),
        plan=dict(config.plan),
        assumption_overrides=dict(config.assumption_overrides),
    )


def read_study(path: str | None, dirs: Dirs = ()) -> Study:
    """The study in a file (or a case of the catalog), or an empty one. Raises InputError with every problem."""
    if path is None:
        return Study("", RunConfig())
    file = find("cases", path, dirs)
    data = load_yaml(file)
    problems = [f"{file}: {k}: unknown key{did_you_mean(k, SWEEP_KEYS)}" for k in data if k not in SWEEP_KEYS]
    for section in SECTIONS:
        if not isinstance(data.get(section, {}), str | Mapping):
            problems.append(f"{file}: {section}: must be a name or a mapping, got {data[section]!r}")
    for key, kind, shown in (
        ("axes", Mapping, "a mapping"),
        ("scenarios", Mapping, "a mapping"),
        ("zip", list, "a list"),
    ):
        if not isinstance(data.get(key) or kind(), kind) if kind is list else not isinstance(data.get(key) or {}, kind):
            problems.append(f"{file}: {key}: must be {shown}, got {data[key]!r}")
    if problems:
        raise InputError(problems)
    base = RunConfig()
    apply_sections(base, {k: v for k, v in data.items() if k in SECTIONS})
    study = Study(str(data.get("name", file.stem)), base)
    where = data.get("where") or ()
    study.where = (where,) if isinstance(where, str) else tuple(map(str, where))
    study.product = _axes(data.get("axes") or {}, f"{file}: axes", problems)
    for i, block in enumerate(data.get("zip") or []):
        place = f"{file}: zip.{i}"
        if not isinstance(block, Mapping):
            problems.append(f"{place}: must be a mapping of keys to lists, got {block!r}")
            continue
        study.zipped.append(_axes(block, place, problems))
    for name, settings in (data.get("scenarios") or {}).items():
        if not isinstance(settings, Mapping):
            problems.append(f"{file}: scenarios.{name}: must be a mapping of settings, got {settings!r}")
            continue
        study.scenarios[str(name)] = dict(settings)
    if problems:
        raise InputError(problems)
    return study


def _axes(given: Mapping[str, Any], where: str, problems: list[str]) -> Axes:
    found: Axes = {}
    for key, values in given.items():
        try:
            found[str(key)] = axis_values(values, f"{where}.{key}")
        except InputError as error:
            problems += error.problems
    return found


def changed(
    study: Study,
    *,
    product: Axes | None = None,
    zipped: Axes | None = None,
    settings: Mapping[str, Any] | None = None,
    scenarios: Sequence[str] = (),
    where: Sequence[str] = (),
) -> Study:
    """`study` with what the command line adds: axes replace those of the same key, `scenarios` picks some by name,
    `settings` lie under the axes. Checks the whole; raises InputError with every problem."""
    problems: list[str] = []
    for name in scenarios:
        if name not in study.scenarios:
            problems.append(
                f"--scenario {name}: unknown{did_you_mean(name, study.scenarios) or ', the study has none'}"
            )
    if scenarios:
        study.scenarios = {n: s for n, s in study.scenarios.items() if n in scenarios}
    for key, values in (product or {}).items():
        study.zipped = [{k: v for k, v in z.items() if k != key} for z in study.zipped]
        study.product[key] = values
    study.zipped = [z for z in study.zipped if z]
    if zipped:
        study.product = {k: v for k, v in study.product.items() if k not in zipped}
        study.zipped.append(dict(zipped))
    study.where = (*study.where, *where)
    names = {k: v for k, v in (settings or {}).items() if k in NAME_AXES}
    for name, value in names.items():
        setattr(study.base, name, value)
    problems += _problems(study)
    try:
        apply_settings(study.base, {k: v for k, v in (settings or {}).items() if k not in names})
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    study.name = study.name or f"sweep-{study.digest}"
    return study


def _problems(study: Study) -> Iterator[str]:
    if not study.keys:
        yield "the grid is empty: give axes with --grid, --range or --zip, or in a study file under axes:"
    for z in study.zipped:
        lengths = {k: len(v) for k, v in z.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{k} has {n}" for k, n in lengths.items())
            yield f"zip: lists that walk together must be as long as each other: {shown}"
    seen: set[str] = set()
    for key in study.keys[bool(study.scenarios) :]:
        if key in seen:
            yield f"axis {key}: given twice; keep one"
        seen.add(key)
        section, dot, _ = key.partition(".")
        if (dot and section not in SECTIONS) or (not dot and key not in NAME_AXES):
            near = did_you_mean(section, SECTIONS if dot else (*NAME_AXES, *SECTIONS))
            yield f"axis {key}: must start with a section, for example system.nodes{near}"
        for name, settings in study.scenarios.items():
            if key in settings:
                yield f"scenario {name}: {key} is an axis as well; set it in one place"
    points = max(1, len(study.scenarios))
    for values in study.product.values():
        points *= len(values)
    for z in study.zipped:
        points *= len(next(iter(z.values())))
    if points > MOST_POINTS:
        yield f"the grid has {points:,} combinations; a sweep takes at most {MOST_POINTS:,}"
