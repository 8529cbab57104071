"""Workloads by name: `llm`, `mamba` and `hyena` with a model of the catalog or a file, graph files, and those of other
families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict

from dfmodel.catalog_files import Dirs, find, is_path, list_names, load_yaml, validated
from dfmodel.errors import InputError, UnknownNameError, did_you_mean
from dfmodel.workloads.families import FAMILIES
from dfmodel.workloads.graph import Workload
from dfmodel.workloads.hyena import HyenaModel, HyenaSettings, hyena_workload
from dfmodel.workloads.io import graph_workload
from dfmodel.workloads.llm import LlmModel, llm_workload
from dfmodel.workloads.mamba import MambaModel, MambaSettings, mamba_workload
from dfmodel.workloads.model_file import PositiveInt

DEFAULT_MODEL = "gpt3_175b"
DEFAULT_BATCH = 1536


class LlmSettings(BaseModel):
    """What a run may set of workload `llm`, beside any field of its model.

    `attention` is fused into one kernel or separate; left out, a run takes what its chip can do. `sequence` defaults to
    the length the model was trained with; `mode` forward is one pass to the logits.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = DEFAULT_MODEL
    sequence: PositiveInt | None = None
    batch: PositiveInt = DEFAULT_BATCH
    dtype: str = "bf16"
    mode: Literal["training", "forward"] = "training"
    attention: Literal["separate", "fused"] = "separate"


def _llm(model: LlmModel, run: LlmSettings) -> Workload:
    return llm_workload(
        model,
        sequence=run.sequence or model.default_sequence,
        batch=run.batch,
        training=run.mode == "training",
        dtype=run.dtype,
        fused_attention=run.attention == "fused",
    )


@dataclass(frozen=True)
class ModelKind:
    """A kind of model: the schema of its files, what a run may set, and what builds its workload."""

    schema: type[Any]
    settings: type[Any]
    build: Callable[[Any, Any], Workload]


#: Kinds of models by the name of their workload; files that state no `kind` are of the first.
KINDS: dict[str, ModelKind] = {
    "llm": ModelKind(LlmModel, LlmSettings, _llm),
    "mamba": ModelKind(MambaModel, MambaSettings, mamba_workload),
    "hyena": ModelKind(HyenaModel, HyenaSettings, hyena_workload),
}

#: Model fields that describe the file rather than the model.
_NOT_OVERRIDABLE = ("name", "title", "kind", "parameters", "sources")


def workload_names(dirs: Dirs = ()) -> list[str]:
    """Names `build_workload` knows: kinds of models, other families, graphs, and models (their kind with that one)."""
    return [*KINDS, *FAMILIES, *list_names("graphs", dirs), *list_names("models", dirs)]


def build_workload(name: str, overrides: Mapping[str, object] | None = None, dirs: Dirs = ()) -> Workload:
    """The workload `name` with `overrides` (keys without "workload."; texts are read as YAML scalars).

    `name` is a kind of model (`llm`: GPT-3 175B training by default), a model's name (its kind with that model),
    another family's, a catalog graph's name, or the path of a graph or model file. Raises UnknownNameError for an
    unknown name and InputError with every unknown key (nearest valid one) or unusable value.
    """
    settings = {key: _scalar(value) for key, value in (overrides or {}).items()}
    if name in KINDS:
        return _of_model(name, settings, dirs)
    if name in FAMILIES:
        build: Callable[[Mapping[str, object]], Workload] = import_module(FAMILIES[name].builder).build
        return build(settings)
    if is_path(name):
        path = find("graphs", name, dirs)
        data = load_yaml(path)
        if _is_model(data):
            return _of_model(_kind_of(data, str(path)), {"model": name, **settings}, dirs)
        return graph_workload(data, str(path), settings)
    if name in list_names("graphs", dirs):
        path = find("graphs", name, dirs)
        return graph_workload(load_yaml(path), str(path), settings)
    if name in list_names("models", dirs):
        kind = model_kind(name, dirs)
        assert kind is not None
        return _of_model(kind, {"model": name, **settings}, dirs)
    raise UnknownNameError("workload", name, workload_names(dirs))


def model_kind(name: str, dirs: Dirs = ()) -> str | None:
    """The kind of model the workload `name` has; None for graphs and unknown names. Raises InputError for a file that
    states an unknown kind."""
    if name in KINDS:
        return name
    if is_path(name):
        data = load_yaml(find("graphs", name, dirs))
        return _kind_of(data, name) if _is_model(data) else None
    if name in list_names("graphs", dirs) or name not in list_names("models", dirs):
        return None
    path = find("models", name, dirs)
    return _kind_of(load_yaml(path), str(path))


def _is_model(data: Mapping[str, Any]) -> bool:
    return "layers" in data and "kernels" not in data and "blocks" not in data


def _kind_of(data: Mapping[str, Any], where: str) -> str:
    kind = data.get("kind", next(iter(KINDS)))
    if kind not in KINDS:
        raise InputError(f"{where}: kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    return str(kind)


def _of_model(kind: str, settings: Mapping[str, object], dirs: Dirs) -> Workload:
    """The workload of a kind of model; every unknown key and unusable value at once."""
    of = KINDS[kind]
    own = of.settings.model_fields
    valid = (*own, *(f for f in of.schema.model_fields if f not in _NOT_OVERRIDABLE))
    problems = [f"workload.{k}: unknown key{did_you_mean(k, valid)}" for k in settings if k not in valid]
    problems += [
        f"workload.{key}: must be one of {', '.join(choices)}, got {settings[key]!r}"
        for key, choices in _choices(own).items()
        if key in settings and settings[key] not in choices
    ]
    if problems:
        raise InputError(problems)
    run = validated(of.settings, {k: v for k, v in settings.items() if k in own}, "workload")
    changed = {k: v for k, v in settings.items() if k not in own}
    path = find("models", run.model, dirs)
    data = load_yaml(path)
    if _kind_of(data, str(path)) != kind:
        raise InputError(
            f"workload.model: '{run.model}' is a model of workload {_kind_of(data, str(path))}, not {kind}"
        )
    model = validated(of.schema, {**data, **changed}, str(path))
    if changed:
        shown = ", ".join(f"{k}={v}" for k, v in changed.items())
        model = model.model_copy(update={"title": f"{model.title or model.name} with {shown}", "parameters": None})
    return of.build(model, run)


def _choices(fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Settings that are one of a few words, with those words."""
    return {key: get_args(f.annotation) for key, f in fields.items() if get_origin(f.annotation) is Literal}


def _scalar(value: object) -> object:
    """A text as YAML reads it ("512" is a number), so that command lines and files mean the same."""
    if not isinstance(value, str) or is_path(value):
        return value
    try:
        read = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):
        return value
    return read if isinstance(read, int | float | bool) else value
