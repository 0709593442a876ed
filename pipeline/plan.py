"""What each stage depends on: its resolved settings, and a hash of all code that can change its result.

A stage says with `From` which settings it reads. `artifacts/plan.json` holds one digest per stage and iteration
over exactly those settings and that code; DVC compares the digests key by key.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from pipeline.artifacts import ROOT
from pipeline.component import Component, Model
from pipeline.config import BASE_KEY, Params

if TYPE_CHECKING:
    from pipeline.stage import Stage

PLAN_FILE = ROOT / "plan.json"
SCRATCH = Path(".dvc/tmp/rollbook")
"""Caches and locks; safe to delete."""
ONCE_STAGES = ("prepare_data", "init_policy")
ITERATION_STAGES = (
    "prepare_prompts",
    "generate_rollouts",
    "score_rollouts",
    "measure_logprobs",
    "compute_advantages",
    "update_policy",
    "evaluate_policy",
)
FRAME = frozenset({"errors", "component", "registry", "config", "plan", "artifacts", "lineage", "stage", "tracking", "progress", "process"})
"""Modules of `pipeline` that carry tables and settings without deciding what is in them: a change there re-runs nothing.
Their settings count through their values, which are part of every digest."""


@dataclass(frozen=True)
class From:
    """Marks a field of a stage's settings with its place, such as `recipe.generate_rollouts.temperature`.

    Places start in params.yaml, in `recipe` or `iteration` (those of the iteration at hand), or at `draws`
    (prompts drawn by each predecessor in the chain).
    """

    place: str


class StageSettings(Model):
    """Base of the settings a stage function receives. Every field is annotated with `From`."""

    @classmethod
    def of(cls, params: Params, key: str) -> StageSettings:
        """The settings of this stage at iteration `key`."""
        values = {}
        for name, info in cls.model_fields.items():
            place = next(mark.place for mark in info.metadata if isinstance(mark, From))
            values[name] = _look_up(params, key, place)
        return cls.model_validate(values)


def _look_up(params: Params, key: str, place: str) -> Any:
    first, _, rest = place.partition(".")
    if first == "recipe":
        value: Any = params.recipe_of(key)
    elif first == "iteration":
        value = params.iterations[key] if key != BASE_KEY else None
    elif first == "draws":
        value = tuple(params.recipe_of(each).prepare_prompts.prompts_per_iteration for each in params.chain(key)[:-1])
    else:
        value = getattr(params, first)
    for part in rest.split(".") if rest else ():
        value = getattr(value, part)
    return value


def load_stage(name: str) -> Stage[Any]:
    """The `STAGE` declared in `stages/<name>.py`."""
    stage: Stage[Any] = importlib.import_module(f"stages.{name}").STAGE
    return stage


@dataclass(frozen=True)
class Dependencies:
    """What one stage at one iteration depends on besides its input artifacts.

    Attributes:
        settings: resolved settings, defaults filled in, as JSON values.
        code: hash of every source file it runs, by path (comments and docstrings left out).
        files: hash of every data file its components declare.
    """

    settings: Mapping[str, Any]
    code: Mapping[str, str]
    files: Mapping[str, str]

    @property
    def digest(self) -> str:
        content = {"settings": self.settings, "code": self.code, "files": self.files}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def dependencies_of(stage: Stage[Any], settings: StageSettings) -> Dependencies:
    """Settings, code and files that decide what `stage` makes."""
    components = list(_components(settings))
    roots = {_file_of_module(type(component).__module__) for component in components}
    roots |= {Path(file) for component in components for file in component.code_files()}
    roots |= {_file_of_module(f"stages.{stage.name}"), *(_file_of_module(f"pipeline.schemas.{kind}") for kind in stage.table_kinds)}
    return Dependencies(
        settings=settings.model_dump(mode="json", serialize_as_any=True),
        code=code_hashes(root for root in roots if root is not None),
        files={file: _hash_of_file(Path(file)) for component in components for file in sorted(component.data_files())},
    )


def make_plan(params: Params) -> dict[str, Any]:
    """Digests of all stages: `{"prepare_data": …, "i0001": {"update_policy": …}, "rescores": …}`."""
    plan: dict[str, Any] = {name: planned(params, name, BASE_KEY).digest for name in ONCE_STAGES}
    plan[BASE_KEY] = {"evaluate_policy": planned(params, "evaluate_policy", BASE_KEY).digest}
    for key in params.iterations:
        plan[key] = {name: planned(params, name, key).digest for name in ITERATION_STAGES}
    return plan


def planned(params: Params, name: str, key: str) -> Dependencies:
    """Dependencies of stage `name` at iteration `key`."""
    stage = load_stage(name)
    return dependencies_of(stage, stage.settings.of(params, key))


def planned_digest(plan: Mapping[str, Any], name: str, key: str) -> str | None:
    """The digest that `plan.json` holds for a stage, or None."""
    entry = plan.get(name) if name in ONCE_STAGES else plan.get(key, {}).get(name)
    return entry if isinstance(entry, str) else None


def _components(value: Any) -> Iterator[Component]:
    """All components inside settings, at any depth, in order."""
    if isinstance(value, Component):
        yield value
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _components(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _components(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _components(item)


# --- code -------------------------------------------------------------------------------------------------------------


def code_hashes(roots: Iterable[Path]) -> dict[str, str]:
    """Hashes of `roots` and of everything in the repository they import, by path; comments and docstrings do not count."""
    known = _HashCache(SCRATCH / "code.json")
    hashes: dict[str, str] = {}
    waiting = sorted({root.resolve() for root in roots}, reverse=True)
    while waiting:
        file = waiting.pop()
        name = _display(file)
        if name in hashes or not file.is_file():
            continue
        source = file.read_bytes()
        content = hashlib.sha256(source).hexdigest()
        entry = known.get(content) or known.put(content, _analysed(source, file))
        hashes[name] = entry["hash"]
        for module in entry["imports"]:
            waiting += [found.resolve() for found in _files_of_import(module, file) if not _is_frame(found)]
    known.save()
    return dict(sorted(hashes.items()))


def _analysed(source: bytes, file: Path) -> dict[str, Any]:
    """Hash of the syntax tree without docstrings, and the modules it may import."""
    tree = ast.parse(source, filename=str(file))
    imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            dot = "" if prefix.endswith(".") else "."
            imports |= {prefix} | {f"{prefix}{dot}{alias.name}" for alias in node.names}
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [item for item in node.body if not _is_text(item)]
    return {"hash": hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:32], "imports": sorted(imports)}


def _is_text(node: ast.stmt) -> bool:
    """A statement that is only a string: a docstring of a module, class, function or attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _files_of_import(module: str, importer: Path) -> list[Path]:
    """Source files in the repository that `import module` in `importer` would run."""
    level = len(module) - len(module.lstrip("."))
    bases = [importer.parents[level - 1]] if level else [Path.cwd(), _package_root(), importer.parent]
    parts = [part for part in module.lstrip(".").split(".") if part]
    for base in bases:
        found = [base.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)]
        if parts:
            found.append(base.joinpath(*parts).with_suffix(".py"))
        if existing := [file for file in found if file.is_file() and "site-packages" not in file.parts]:
            return existing
    return []


def _is_frame(file: Path) -> bool:
    package = _package_root() / "pipeline"
    return file.is_relative_to(package) and (file.stem in FRAME or file.stem == "__init__") and file.parent == package


@cache
def _package_root() -> Path:
    return Path(__file__).resolve().parent.parent


@cache
def _file_of_module(module: str) -> Path | None:
    """The module's source if it belongs to the repository or the user, else None."""
    file = getattr(importlib.import_module(module), "__file__", None)
    return None if file is None or "site-packages" in Path(file).parts else Path(file)


def _display(file: Path) -> str:
    """Path relative to the project or the package, so that a clone elsewhere gives the same digest."""
    for base in (Path.cwd().resolve(), _package_root()):
        if file.is_relative_to(base):
            return file.relative_to(base).as_posix()
    return file.name


def _hash_of_file(file: Path) -> str:
    """SHA-256 of a data file, remembered by size and time of change."""
    if not file.is_file():
        return "missing"
    stat = file.stat()
    mark = f"{file.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"
    known = _HashCache(SCRATCH / "files.json")
    if entry := known.get(mark):
        return str(entry["hash"])
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    known.put(mark, {"hash": digest})
    known.save()
    return digest


class _HashCache:
    """A small JSON file of hashes that were computed before. A lost or damaged one is only slower."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.changed = False
        try:
            self.entries: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.entries = {}

    def get(self, mark: str) -> dict[str, Any] | None:
        return self.entries.get(mark)

    def put(self, mark: str, entry: dict[str, Any]) -> dict[str, Any]:
        self.entries[mark] = entry
        self.changed = True
        return entry

    def save(self) -> None:
        if not self.changed:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.file.with_suffix(".new")
            temporary.write_text(json.dumps(self.entries), encoding="utf-8")
            temporary.replace(self.file)
        except OSError:
            pass
