"""Hashes of the code and data files that decide a stage's result.

DVC does not follow imports, so this does: from the syntax tree, without comments and docstrings.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.hashing import remembered_sha256_of
from pipeline.scratch import HashCache

CODE_HASH_VERSION = f"1-{sys.version_info.major}.{sys.version_info.minor}"
"""Raise the first number when `_analysed` changes: hashes that were kept would be stale."""
FRAME = frozenset(
    {
        "errors",
        "component",
        "registry",
        "runtime",
        "prompt_format",
        "config",
        "recipe",
        "recipe_sections",
        "recipe_correction",
        "params",
        "plan",
        "plan_file",
        "dependencies",
        "context",
        "code",
        "hashing",
        "atomic",
        "dataset",
        "checking",
        "lock_guard",
        "scratch",
        "fork_client",
        "lean_imports",
        "artifacts",
        "lineage",
        "stage",
        "progress",
        "process",
    }
)
"""Modules of `pipeline` that carry tables and settings without deciding what is in them: a change there re-runs
nothing. Settings count through their values, which are part of every digest."""


def code_hashes(roots: Iterable[Path]) -> dict[str, str]:
    """Hashes, by path, of `roots` and all they import in the repository; comments and docstrings do not count."""
    known = HashCache(f"code-{CODE_HASH_VERSION}.json")
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
            waiting += [
                found.resolve() for found in _files_of_import(module, file) if not _is_frame(found)
            ]
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
    return {
        "hash": hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:32],
        "imports": sorted(imports),
    }


def _is_text(node: ast.stmt) -> bool:
    """A statement that is only a string: a docstring of a module, class, function or attribute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _files_of_import(module: str, importer: Path) -> list[Path]:
    """Source files in the repository that `import module` in `importer` would run."""
    level = len(module) - len(module.lstrip("."))
    bases = (
        [importer.parents[level - 1]] if level else [Path.cwd(), _package_root(), importer.parent]
    )
    parts = [part for part in module.lstrip(".").split(".") if part]
    for base in bases:
        found = [base.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)]
        if parts:
            found.append(base.joinpath(*parts).with_suffix(".py"))
        if existing := [
            file for file in found if file.is_file() and "site-packages" not in file.parts
        ]:
            return existing
    return []


def _is_frame(file: Path) -> bool:
    package = _package_root() / "pipeline"
    return (
        file.is_relative_to(package)
        and (file.stem in FRAME or file.stem == "__init__")
        and file.parent == package
    )


@cache
def _package_root() -> Path:
    return Path(__file__).resolve().parent.parent


@cache
def file_of_module(module: str) -> Path | None:
    """The module's source if it belongs to the repository or the user, else None."""
    file = getattr(importlib.import_module(module), "__file__", None)
    return None if file is None or "site-packages" in Path(file).parts else Path(file)


def _display(file: Path) -> str:
    """Path relative to the project or the package, so that a clone elsewhere gives the same digest."""
    for base in (Path.cwd().resolve(), _package_root()):
        if file.is_relative_to(base):
            return file.relative_to(base).as_posix()
    return file.name


def hash_of_file(file: Path) -> str:
    """SHA-256 of a data file, or `missing`."""
    return remembered_sha256_of(file) if file.is_file() else "missing"
