"""Hashes of the code and data files that decide a stage's result.

DVC does not follow imports, so this does, from the syntax tree. Comments, docstrings and layout do not count. Hashes do
not depend on the machine, on where a package is installed, or on the version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rollbook.core.hashing import remembered_sha256_of
from rollbook.core.scratch import HashCache

CODE_HASH_VERSION = "2"
"""Raise it when `_analysed` changes: hashes that were kept would be stale."""
LIBRARY = ("rollbook", "rollbook.stages")
"""Rollbook's own packages, whose code is hashed wherever they lie."""
FRAME = frozenset({
    "__init__", "components.advantages.writing", "components.prompt_format", "core", "dvc.fork_client", "dvc.guard",
    "project.check", "project.code", "project.dependencies", "project.environment",
    "project.plan", "project.plan_file", "project.run", "project.stage", "rl.context",
    "settings.config", "settings.params", "settings.recipe", "settings.recipe_correction",
    "settings.recipe_sections", "tables",
})  # fmt: skip
"""Modules and packages below `rollbook` that carry tables and settings without deciding what is in them: a change there
re-runs nothing. Settings count through their values, which are part of every digest."""
COUNTED = frozenset({
    "cli", "components", "core.field_docs", "core.framework_imports", "core.ids", "core.ragged",
    "core.text", "core.yaml", "dvc", "project", "rl", "settings", "stages", "tables.columns", "tables.schemas",
    "views",
})  # fmt: skip
"""Modules and packages below `rollbook` whose code is part of digests. The longest name in either set that covers a
module decides, so one module of a frame package may count. What is in neither set counts."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders that installed packages lie in."""
NO_MEANING = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields of syntax trees that follow from others or do nothing."""


def code_hashes(roots: Iterable[Path]) -> dict[str, str]:
    """Hashes `roots` and all they import in the project, in the library and, for an installed package, inside itself.

    Returns:
        32 hex digits by name of the file: relative to the project, or from its top-level package on.
    """
    known = HashCache(f"code-{CODE_HASH_VERSION}.json")
    found: dict[str, set[str]] = {}
    seen: set[Path] = set()
    followed: set[tuple[object, ...]] = set()
    waiting = [_absolute(root) for root in roots]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        place = _place(file)
        if place is None or file.suffix != ".py" or not file.is_file():
            continue
        source = file.read_bytes()
        content = hashlib.sha256(source).hexdigest()
        entry = known.get(content) or known.put(content, _analysed(source))
        found.setdefault(place.name, set()).add(entry["hash"])
        for module in entry["imports"]:
            asked = (module, place.folders, place.package, module.startswith(".") and file.parent)
            if asked not in followed:
                followed.add(asked)
                waiting += _files_of_import(module, file, place)
    known.save()
    return {name: _one_hash(found[name]) for name in sorted(found)}


def _absolute(file: Path) -> Path:
    """Symbolic links stay: an installer may link the files of a package to its cache."""
    return Path(os.path.normpath(file.absolute()))


def _one_hash(hashes: set[str]) -> str:
    """That of a name; two files of one name, such as an installed package and a folder of the project, both count."""
    first, *others = sorted(hashes)
    return hashlib.sha256("".join([first, *others]).encode()).hexdigest()[:32] if others else first


def _analysed(source: bytes) -> dict[str, Any]:
    """Hash of the syntax tree without docstrings, and the modules it may import; of the bytes if it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {"hash": hashlib.sha256(source).hexdigest()[:32], "imports": []}
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
    return {
        "hash": hashlib.sha256(_written(tree).encode()).hexdigest()[:32],
        "imports": sorted(imports),
    }


def _is_text(node: ast.stmt) -> bool:
    """A statement that is only a string: a docstring of a module, class, function or attribute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _written(tree: ast.AST) -> str:
    """A syntax tree as text that is the same in every version of Python.

    `ast.unparse` and `ast.dump` are not: versions quote differently and show other fields. Empty fields are left out:
    a field that a later version adds changes nothing where it is not used. No recursion: generated code is deep.
    """
    text: list[str] = []
    waiting: list[Any] = [tree]  # nodes, lists, and text that is ready
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            text.append(item)
        elif isinstance(item, list):
            text.append("[")
            waiting.append("]")
            waiting += [_part(each) for each in reversed(item)]
        else:
            text.append(f"{type(item).__name__}(")
            waiting.append(")")
            for name in reversed(item._fields):
                value = getattr(item, name, None)
                if isinstance(item, ast.JoinedStr):
                    value = _joined(item.values)
                if value is not None and value != [] and name not in NO_MEANING:
                    waiting += [_part(value), f"{name}="]
    return "".join(text)


def _part(value: Any) -> Any:
    """A node or list as it is, anything else by type and value. `repr` of a string depends on the Unicode version."""
    if isinstance(value, (ast.AST, list)):
        return value
    exact = hex(value) if type(value) is int else ascii(value)
    return f"{type(value).__name__} {exact},"


def _joined(values: Sequence[ast.expr]) -> list[ast.expr]:
    """Parts of an f-string with adjacent texts as one, which not every version of Python makes of them."""
    merged: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.Constant) and merged and isinstance(merged[-1], ast.Constant):
            merged[-1] = ast.Constant(str(merged[-1].value) + str(value.value))
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            merged.append(value)
    return merged


@dataclass(frozen=True)
class _Place:
    """Where a source file belongs.

    Attributes:
        name: in digests.
        folders: its absolute imports are looked up there, after the library.
        package: the only top-level package in `folders` whose imports are followed; None for all that is there.
    """

    name: str
    folders: tuple[Path, ...] = ()
    package: str | None = None


def _place(file: Path) -> _Place | None:
    """Where a file belongs; None for Python's standard library."""
    for each in dict.fromkeys((file, file.resolve())):
        if name := _name_in_library(each):
            return _Place(name)
        if each.is_relative_to(_standard_library()) and not INSTALLED.intersection(each.parts):
            return None
        # An environment may lie inside of the project, and the project below a folder of this name.
        start = len(Path.cwd().parts) if each.is_relative_to(Path.cwd()) else 0
        inside = [at for at in range(start, len(each.parts) - 1) if each.parts[at] in INSTALLED]
        if inside:
            root, names = Path(*each.parts[: inside[-1] + 1]), each.parts[inside[-1] + 1 :]
            return _Place("/".join(names), (root,), names[0].removesuffix(".py"))
        if start:
            return _Place(each.relative_to(Path.cwd()).as_posix(), (Path.cwd(), each.parent))
    file = file.resolve()
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return _Place(file.relative_to(root).as_posix(), (Path.cwd(), file.parent, root))


def _files_of_import(module: str, importer: Path, place: _Place) -> list[Path]:
    """Source files that `import module` in `importer` would run and whose code counts."""
    level = len(module) - len(module.lstrip("."))
    parts = [part for part in module.lstrip(".").split(".") if part]
    if level and not place.folders:  # folders of the library may lie apart
        parts = [*place.name.split("/")[:-level], *parts]
    elif level:
        folder = importer.parents[level - 1]
        return [
            each for each in (folder / "__init__.py", *_files_in(folder, parts)) if each.is_file()
        ]
    if found := _files_in_library(parts):
        return [each for each in found if not is_frame(_name_in_library(each) or "")]
    if place.package not in (None, parts[0]):
        return []
    for folder in place.folders:
        if existing := [each for each in _files_in(folder, parts) if each.is_file()]:
            return existing
    return []


def _files_in(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Files that importing a module below a folder runs, if they are there."""
    found = [folder.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)]
    return [*found, folder.joinpath(*parts).with_suffix(".py")] if parts else found


def is_frame(name: str) -> bool:
    """Whether a file of the library, by its name in digests, only carries tables and settings."""
    return _decided_by(name) in FRAME


def _decided_by(name: str) -> str | None:
    """The longest name in `FRAME` or `COUNTED` that covers a file of the library."""
    parts = name.removeprefix(f"{LIBRARY[0]}/").removesuffix(".py").split("/")
    covering = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((each for each in covering if each in FRAME or each in COUNTED), None)


@cache
def library_folders() -> dict[str, Path]:
    """Folder of each package of the library, wherever Python finds it, by its name with slashes; inner ones first."""
    folders = {}
    for package in sorted(LIBRARY, reverse=True):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folder = Path(next(iter(spec.submodule_search_locations)))
            folders[package.replace(".", "/")] = _absolute(folder)
    return folders


def _name_in_library(file: Path) -> str | None:
    for package, folder in library_folders().items():
        if file.is_relative_to(folder):
            return f"{package}/{file.relative_to(folder).as_posix()}"
    return None


def _file_in_library(name: str) -> Path | None:
    for package, folder in library_folders().items():
        if name.startswith(f"{package}/"):
            file = folder / name.removeprefix(f"{package}/")
            return file if file.is_file() else None
    return None


def _files_in_library(parts: Sequence[str]) -> list[Path]:
    """Files of the library that importing a module runs; none for a module of someone else's."""
    for package, folder in library_folders().items():
        own = package.split("/")
        if list(parts[: len(own)]) == own:
            found = [folder / "__init__.py", *_files_in(folder, parts[len(own) :])]
            return [file for file in found if file.is_file()]
    return []


@cache
def _standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


@cache
def file_of_module(module: str) -> Path | None:
    """Source file of a module; one of the library is found without importing it. None if there is none."""
    found = _file_in_library(f"{module.replace('.', '/')}.py")
    if found is not None and module not in sys.modules:
        return found
    file = getattr(importlib.import_module(module), "__file__", None)
    return None if file is None else Path(file)


def file_of_name(name: str) -> Path:
    """The file that a digest calls so: of the library, the project, or an installed package. It may be gone."""
    if (found := _file_in_library(name)) is not None:
        return found
    return next(
        (file for folder in ("", *sys.path) if (file := Path(folder, name)).is_file()), Path(name)
    )


def name_of_file(file: Path) -> str:
    """What digests call a file; its path as it is for one of Python's own."""
    place = _place(_absolute(file))
    return file.as_posix() if place is None else place.name


def hash_of_file(file: Path) -> str:
    """SHA-256 of a data file, or `missing`."""
    return remembered_sha256_of(file) if file.is_file() else "missing"
