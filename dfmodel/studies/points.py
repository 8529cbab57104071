"""Points of a sweep and their keys: a digest of everything an answer depends on.

That is the merged configuration, the content of every catalog file it can reach, the options of the solve, and the code
and solver that answer. Files are followed by name: any text of a file that names a catalog entry counts as used by it,
so that a change is never missed (at worst a point is computed once more than needed).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from dfmodel import __version__
from dfmodel.catalog_files import Dirs, catalog_dirs, is_path, load_yaml
from dfmodel.config import RunConfig
from dfmodel.errors import InputError
from dfmodel.studies.study import Study
from dfmodel.systems.catalog import KINDS
from dfmodel.workloads.registry import DEFAULT_MODEL

#: Parts of the package that no answer depends on.
_NOT_THE_MODEL = ("studies", "reporting", "validation", "catalogs", "validation_files")


@dataclass(frozen=True)
class Options:
    """How every point is solved; seconds, and a relative gap."""

    time_limit_s: float | None = None
    gap: float = 0.0


@dataclass(frozen=True)
class Point:
    """One point: its number from 1 on, its inputs by axis, and its key."""

    number: int
    inputs: Mapping[str, Any]
    config: RunConfig
    key: str


def points_of(study: Study, options: Options, dirs: Dirs = ()) -> list[Point]:
    """Every point of a study with its key. Raises InputError for an empty grid or a key outside every section."""
    files = CatalogDigests(dirs)
    found = []
    for number, inputs in enumerate(study.combinations(), 1):
        config = study.config_of(inputs)
        found.append(Point(number, inputs, config, key_of(config, options, files)))
    return found


def key_of(config: RunConfig, options: Options, files: CatalogDigests) -> str:
    """The key of one configuration: 32 hexadecimal digits."""
    whole = config.to_dict()
    names = sorted({DEFAULT_MODEL, *_texts(whole)})
    used = [d for name in names if (d := files.digest(name))]
    text = json.dumps([whole, asdict(options), used, code_version()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class CatalogDigests:
    """Digests of catalog entries by name, each over every file the entry can reach."""

    def __init__(self, dirs: Dirs = ()) -> None:
        self._paths: dict[str, list[Path]] = {}
        for kind in KINDS:
            # a name means the first folder that has it
            first = {p.stem: p for folder in reversed(catalog_dirs(dirs)) for p in (folder / kind).glob("*.yaml")}
            for name, path in first.items():
                self._paths.setdefault(name, []).append(path)
        self._files: dict[Path, tuple[str, list[str]]] = {}
        self._digests: dict[str, str] = {}

    def digest(self, name: str) -> str:
        """The digest of what `name` reaches, "" where it names nothing."""
        if name not in self._digests:
            reached: dict[Path, str] = {}
            self._follow(name, Path(), reached)
            lines = sorted(f"{p.parent.name}/{p.name} {content}" for p, content in reached.items())
            self._digests[name] = hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""
        return self._digests[name]

    def _follow(self, name: str, folder: Path, reached: dict[Path, str]) -> None:
        paths = self._paths.get(name, [])
        if is_path(name):
            paths = [p for p in (folder / name, Path(name)) if p.is_file()]
        for path in paths:
            if path in reached:
                continue
            content, texts = self._read(path)
            reached[path] = content
            for text in texts:
                self._follow(text, path.parent, reached)

    def _read(self, path: Path) -> tuple[str, list[str]]:
        """Digest of a file's bytes, and the texts in it that may name others."""
        if path not in self._files:
            try:
                texts = [t for t in _texts(load_yaml(path)) if t in self._paths or is_path(t)]
            except InputError:
                texts = []
            self._files[path] = hashlib.sha256(path.read_bytes()).hexdigest(), sorted(set(texts))
        return self._files[path]


def versions() -> dict[str, str]:
    """Versions of what an answer depends on; dfmodel's with a digest of its source."""
    return {"dfmodel": code_version(), **{p: metadata.version(p) for p in ("pyomo", "highspy", "numpy")}}


@cache
def code_version() -> str:
    """dfmodel's version with eight digits of the model's source: an edited model does not answer from a store."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        part = path.relative_to(package).parts[0]
        if part not in _NOT_THE_MODEL and not part.startswith("cli"):
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    solvers = " ".join(metadata.version(p) for p in ("pyomo", "highspy", "numpy"))
    return f"{__version__}+{hashlib.sha256(digest.digest() + solvers.encode()).hexdigest()[:8]}"


def _texts(value: Any) -> Iterator[str]:
    """Every text inside, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _texts(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _texts(child)
