"""Where catalog files lie and how they are read: one YAML document per thing, checked before it is used.

Shared by workloads and systems, which know nothing of each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import yaml

from dfmodel.errors import InputError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    # pydantic takes longer to load than `list` and `show` run: only what checks a schema loads it
    from pydantic import BaseModel, ValidationError

#: Folders searched before the packaged catalogs, separated like PATH.
CATALOG_PATH_VARIABLE = "DFMODEL_CATALOG_PATH"

#: Larger files are refused: a catalog entry is a page of text.
MAX_FILE_BYTES = 1_000_000

#: Deepest nesting of lists and mappings that is read.
MAX_DEPTH = 50

#: Longest chain of `alias_of` names that is followed.
MOST_ALIASES = 10

Dirs = Iterable[str | Path]
Schema = TypeVar("Schema", bound="BaseModel")


def packaged_catalogs() -> Path:
    """The catalogs shipped with dfmodel: inside an installed package, beside it in a source tree."""
    package = Path(__file__).resolve().parent
    inside = package / "catalogs"
    return inside if inside.is_dir() else package.parent / "catalogs"


def catalog_dirs(dirs: Dirs = ()) -> list[Path]:
    """Folders in search order: `dirs`, then $DFMODEL_CATALOG_PATH, then the packaged catalogs.

    Raises InputError naming every folder of the first two that does not exist.
    """
    asked = [(Path(d), "--catalog") for d in dirs]
    asked += [
        (Path(d), f"${CATALOG_PATH_VARIABLE}") for d in os.environ.get(CATALOG_PATH_VARIABLE, "").split(os.pathsep) if d
    ]
    problems = [f"{source}: catalog folder '{d}' does not exist" for d, source in asked if not d.is_dir()]
    if problems:
        raise InputError(problems)
    return [*(d for d, _ in asked), packaged_catalogs()]


def is_path(name: str) -> bool:
    """Whether `name` is a file's path rather than a catalog name."""
    return "/" in name or os.sep in name or name.endswith((".yaml", ".yml"))


def find(kind: str, name: str, dirs: Dirs = ()) -> Path:
    """The file of `name` in the catalog folder `kind` ("chips", "models"...); a path is taken as it is.

    Raises UnknownNameError with the nearest name, InputError for a path that is no file.
    """
    if is_path(name):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"{name}: no such file (a catalog name has neither '/' nor '.yaml')")
        return path
    found = holders(kind, name, dirs)
    if found:
        return found[0]
    raise UnknownNameError(_singular(kind), name, list_names(kind, dirs))


def holders(kind: str, name: str, dirs: Dirs = ()) -> list[Path]:
    """Every catalog file called `name` in the folders `kind`, in search order: the first wins and hides the others."""
    paths = (folder / kind / f"{name}.yaml" for folder in catalog_dirs(dirs))
    return [path for path in paths if path.is_file()]


def follow_alias(kind: str, path: Path, dirs: Dirs = ()) -> Path:
    """The file that `path` is only another name for (`alias_of` without overrides), or `path` itself.

    Raises UnknownNameError for a name that is not there, InputError for a circle.
    """
    seen = [path]
    while len(seen) <= MOST_ALIASES:
        data = load_yaml(seen[-1])
        if "alias_of" not in data or data.get("overrides"):
            return seen[-1]
        seen.append(find(kind, str(data["alias_of"]), dirs))
    raise InputError(f"{path}: alias_of: more than {MOST_ALIASES} aliases, one of another")


def list_names(kind: str, dirs: Dirs = ()) -> list[str]:
    """Every name in the catalog folder `kind`, sorted, each once."""
    return sorted({p.stem for folder in catalog_dirs(dirs) for p in (folder / kind).glob("*.yaml")})


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping a YAML file holds, read safely.

    Raises InputError (with file and line) for a file that cannot be read, is over 1 MB, has a syntax error,
    a duplicate key, an alias or merge key, more than one document, or is not a mapping.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path}: larger than {MAX_FILE_BYTES:,} bytes, which no catalog file is")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """`load_yaml` of a text; `where` names its origin in messages."""
    try:
        problems = list(_event_problems(text, where))
        if problems:
            raise InputError(problems)
        loader = yaml.CSafeLoader(text)
        try:
            node = loader.get_single_node()
            problems = list(_node_problems(node, where)) if node is not None else []
            if problems:
                raise InputError(problems)
            data = loader.construct_document(node) if node is not None else {}
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{where}{_line(error.problem_mark)}: YAML syntax error: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: YAML error: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected a mapping of keys to values, got {type(data).__name__}")
    return data


def validated(schema: type[Schema], data: Mapping[str, Any], where: str) -> Schema:
    """`data` as a `schema`, or InputError with every problem as "file: key: what is wrong (nearest key)"."""
    from pydantic import ValidationError

    try:
        return schema.model_validate(dict(data))
    except ValidationError as error:
        raise InputError(schema_problems(error, schema, where)) from None


def settings_of(schema: type[Schema], data: Mapping[str, Any], section: str) -> Schema:
    """`data` as a `schema`, as `validated`, each problem under the key as a command line has it ("plan.block")."""
    try:
        return validated(schema, data, section)
    except InputError as error:
        raise InputError([f"{section}.{p.removeprefix(f'{section}: ')}" for p in error.problems]) from None


def schema_problems(error: ValidationError, schema: type[BaseModel], where: str) -> list[str]:
    """One line per fault pydantic found, naming file and key, and the nearest key for unknown ones."""
    return [_schema_problem(e, schema, where) for e in error.errors()]


def _schema_problem(e: Any, schema: type[BaseModel], where: str) -> str:
    location = tuple(e["loc"])
    # what a wrong key of a table says about itself ends in "[key]"
    key = ".".join(str(part) for part in location if part != "[key]")
    place = f"{where}: {key}: " if key else f"{where}: "
    if e["type"] == "extra_forbidden":
        parent = _schema_at(schema, location[:-1])
        near = did_you_mean(str(location[-1]), parent.model_fields) if parent else ""
        return f"{place}unknown key{near}"
    if e["type"] == "missing":
        return f"{place}missing; give it a value"
    message = e["msg"].removeprefix("Value error, ")
    got = e.get("input")
    shown = f", got {got!r}" if isinstance(got, str | int | float | bool) or got is None else ""
    return f"{place}{message[:1].lower()}{message[1:]}{shown}"


def _schema_at(schema: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """The model that sits at `location` inside `schema`, through lists, mappings and unions."""
    found: type[BaseModel] | None = schema
    for part in location:
        if found is None:
            return None
        field = found.model_fields.get(str(part))
        if field is not None:
            found = next(_models_in(field.annotation), None)
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _event_problems(text: str, where: str) -> Iterator[str]:
    """Aliases and over-deep nesting, found in the event stream: before anything recursive is built."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            line = _line(event.start_mark)
            yield f"{where}{line}: alias '*{event.anchor}' is not allowed; write the value out"
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                yield f"{where}{_line(event.start_mark)}: nested more than {MAX_DEPTH} levels deep"
                return
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _node_problems(node: yaml.Node, where: str) -> Iterator[str]:
    """Duplicate keys, which YAML loaders would let the last one win."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _node_problems(item, where)
    if isinstance(node, yaml.MappingNode):
        seen: set[tuple[str, str]] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    yield f"{where}{_line(key.start_mark)}: key '{key.value}' is given twice"
                seen.add((key.tag, key.value))
            else:
                yield f"{where}{_line(key.start_mark)}: a key must be a single word or number"
            yield from _node_problems(value, where)


def _line(mark: Any) -> str:
    return f", line {mark.line + 1}" if mark is not None else ""


def _singular(kind: str) -> str:
    if kind.endswith("sses"):
        return kind.removesuffix("es")
    return f"{kind.removesuffix('ies')}y" if kind.endswith("ies") else kind.removesuffix("s")
