"""One run's configuration: packaged defaults < study file < --set, merged and written beside the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from dfmodel.catalog_files import Dirs, find, load_yaml
from dfmodel.errors import InputError, did_you_mean
from dfmodel.workloads.families import FAMILIES

SECTIONS = ("workload", "system", "plan", "assumptions", "cost")
STUDY_KEYS = (*SECTIONS, "name", "title", "notes", "sources", "expect")


@dataclass
class RunConfig:
    """Names and overrides of a run. Overrides are dotted keys inside their section, values as YAML reads them."""

    workload: str = "llm"
    system: str = "dgx"
    assumptions: str | Mapping[str, Any] = "default"
    workload_overrides: dict[str, Any] = field(default_factory=dict)
    system_overrides: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    assumption_overrides: dict[str, Any] = field(default_factory=dict)
    cost: str | Mapping[str, Any] = "default"
    cost_overrides: dict[str, Any] = field(default_factory=dict)
    study: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The merged configuration as config.yaml holds it; a study file of the same form runs it again."""
        return {
            "workload": {"name": self.workload, **self.workload_overrides},
            "system": {"name": self.system, **self.system_overrides},
            "plan": dict(self.plan),
            "assumptions": _on_preset(self.assumptions, self.assumption_overrides),
            "cost": _on_preset(self.cost, self.cost_overrides),
        }


def _on_preset(preset: str | Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A preset with overrides (dotted keys) as a study file states it."""
    found: dict[str, Any] = {"extends": preset} if isinstance(preset, str) else dict(preset)
    for key, value in overrides.items():
        _nested(found, key.split("."), value)
    return found


def build_config(
    workload: str | None = None,
    system: str | None = None,
    assumptions: str | None = None,
    settings: Mapping[str, Any] | None = None,
    study: str | None = None,
    dirs: Dirs = (),
) -> RunConfig:
    """The merged configuration; a family other than the layered models may name the system of a run that has none.
    Raises InputError with every unknown key, nearest valid one named."""
    config = RunConfig(study=study)
    if workload in FAMILIES:
        config.system = FAMILIES[workload].system
    if study is not None:
        _apply_study(config, study, dirs)
    if workload is not None:
        if config.workload != workload:
            config.workload_overrides = {}
        config.workload = workload
    if system is not None:
        if config.system != system:
            config.system_overrides = {}
        config.system = system
    if assumptions is not None:
        config.assumptions, config.assumption_overrides = assumptions, {}
    apply_settings(config, settings or {})
    return config


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`section.key=value` texts to a mapping; values are read as YAML. Raises InputError with every fault."""
    found: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key.strip():
            problems.append(f"--set {pair}: expected section.key=value, for example system.nodes=64")
            continue
        try:
            found[key.strip()] = yaml.safe_load(text)
        except yaml.YAMLError:
            found[key.strip()] = text
    if problems:
        raise InputError(problems)
    return found


def _apply_study(config: RunConfig, study: str, dirs: Dirs) -> None:
    path = find("cases", study, dirs)
    data = load_yaml(path)
    problems = [f"{path}: {k}: unknown key{did_you_mean(k, STUDY_KEYS)}" for k in data if k not in STUDY_KEYS]
    for section in SECTIONS:
        value = data.get(section)
        if value is not None and not isinstance(value, str | Mapping):
            problems.append(f"{path}: {section}: must be a name or a mapping, got {value!r}")
    if problems:
        raise InputError(problems)
    apply_sections(config, data)


def apply_sections(config: RunConfig, data: Mapping[str, Any]) -> None:
    """Lay the sections of a study (names, or mappings with overrides) over `config`, in place."""
    for section in ("workload", "system"):
        value = data.get(section)
        if isinstance(value, str):
            setattr(config, section, value)
        elif value is not None:
            chosen = dict(value)
            setattr(config, section, str(chosen.pop("name", getattr(config, section))))
            getattr(config, f"{section}_overrides").update(chosen)
    config.plan.update(data.get("plan") or {})
    if "assumptions" in data:
        config.assumptions = data["assumptions"]
    config.cost = data.get("cost") or config.cost


def apply_settings(config: RunConfig, settings: Mapping[str, Any]) -> None:
    """Lay dotted `settings` over `config`, in place. Raises InputError for keys outside every section."""
    targets = {
        "workload": config.workload_overrides,
        "system": config.system_overrides,
        "plan": config.plan,
        "assumptions": config.assumption_overrides,
        "cost": config.cost_overrides,
    }
    problems = []
    for key, value in settings.items():
        if key == "cost" and isinstance(value, str | Mapping):
            config.cost = value
            continue
        section, dot, rest = key.partition(".")
        if section not in targets or not dot or not rest:
            problems.append(
                f"--set {key}: must start with a section"
                f"{did_you_mean(section, SECTIONS) if section not in targets else ''}"
            )
            continue
        if section == "plan" and "." in rest:
            _nested(config.plan, rest.split("."), value)
        else:
            targets[section][rest] = value
    if problems:
        raise InputError(problems)


def _nested(into: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        child = into.get(key)
        into[key] = dict(child) if isinstance(child, Mapping) else {}
        into = into[key]
    into[path[-1]] = value
