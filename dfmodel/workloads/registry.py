"""Workloads by name: `llm` with a model of the catalog or a file, graph files, and those of other families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

import yaml
from pydantic import BaseModel, ConfigDict

from dfmodel.catalog_files import Dirs, find, is_path, list_names, load_yaml, validated
from dfmodel.errors import InputError, UnknownNameError, did_you_mean
from dfmodel.workloads.families import FAMILIES
from dfmodel.workloads.graph import Workload
from dfmodel.workloads.io import graph_workload
from dfmodel.workloads.llm import LlmModel, PositiveInt, llm_workload, load_model

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
    mode: str = "training"
    attention: str = "separate"


#: Model fields that describe the file rather than the model.
_NOT_OVERRIDABLE = ("name", "title", "parameters", "sources")

MODES = ("training", "forward")
ATTENTIONS = ("separate", "fused")


def workload_names(dirs: Dirs = ()) -> list[str]:
    """Names `build_workload` knows: `llm`, other families, catalog graphs, and models (llm with that model)."""
    return ["llm", *FAMILIES, *list_names("graphs", dirs), *list_names("models", dirs)]


def build_workload(name: str, overrides: Mapping[str, object] | None = None, dirs: Dirs = ()) -> Workload:
    """The workload `name` with `overrides` (keys without "workload."; texts are read as YAML scalars).

    `name` is `llm` (GPT-3 175B training by default), a model's name (llm with that model), another family's, a catalog
    graph's name, or the path of a graph or model file. Raises UnknownNameError for an unknown name and InputError
    with every unknown key (nearest valid one) or unusable value.
    """
    settings = {key: _scalar(value) for key, value in (overrides or {}).items()}
    if name == "llm":
        return _llm(settings, dirs)
    if name in FAMILIES:
        build: Callable[[Mapping[str, object]], Workload] = import_module(FAMILIES[name].builder).build
        return build(settings)
    if is_path(name):
        path = find("graphs", name, dirs)
        data = load_yaml(path)
        if "layers" in data and "kernels" not in data and "blocks" not in data:
            return _llm({"model": name, **settings}, dirs)
        return graph_workload(data, str(path), settings)
    if name in list_names("graphs", dirs):
        path = find("graphs", name, dirs)
        return graph_workload(load_yaml(path), str(path), settings)
    if name in list_names("models", dirs):
        return _llm({"model": name, **settings}, dirs)
    raise UnknownNameError("workload", name, workload_names(dirs))


def is_llm(name: str, dirs: Dirs = ()) -> bool:
    """Whether `name` is `llm` or a model of the catalog, whose attention may be fused."""
    return name == "llm" or (not is_path(name) and name in list_names("models", dirs))


def _llm(settings: Mapping[str, object], dirs: Dirs) -> Workload:
    own = LlmSettings.model_fields
    model_fields = [f for f in LlmModel.model_fields if f not in _NOT_OVERRIDABLE]
    valid = (*own, *model_fields)
    problems = [f"workload.{k}: unknown key{did_you_mean(k, valid)}" for k in settings if k not in valid]
    mode = settings.get("mode", "training")
    if mode not in MODES:
        problems.append(f"workload.mode: must be one of {', '.join(MODES)}, got {mode!r}")
    attention = settings.get("attention", "separate")
    if attention not in ATTENTIONS:
        problems.append(f"workload.attention: must be one of {', '.join(ATTENTIONS)}, got {attention!r}")
    if problems:
        raise InputError(problems)
    run = validated(LlmSettings, {k: v for k, v in settings.items() if k in own}, "workload")
    changed = {k: v for k, v in settings.items() if k not in own}
    model = load_model(run.model, dirs, changed)
    if changed:
        shown = ", ".join(f"{k}={v}" for k, v in changed.items())
        model = model.model_copy(update={"title": f"{model.title or model.name} with {shown}", "parameters": None})
    return llm_workload(
        model,
        sequence=run.sequence or model.default_sequence,
        batch=run.batch,
        training=run.mode == "training",
        dtype=run.dtype,
        fused_attention=run.attention == "fused",
    )


def _scalar(value: object) -> object:
    """A text as YAML reads it ("512" is a number), so that command lines and files mean the same."""
    if not isinstance(value, str) or is_path(value):
        return value
    try:
        read = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):
        return value
    return read if isinstance(read, int | float | bool) else value
