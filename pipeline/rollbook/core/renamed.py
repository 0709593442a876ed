"""Names that modules had before the library was called `rollbook`: `pipeline.…`, and `stages.…` for stage programs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path

LIBRARY = Path(__file__).parents[1]
OLD_PACKAGES = ("pipeline", "stages")
LAYERS = ("core", "tables", "dvc", "components", "settings", "rl", "project", "views", "")
"""Packages below `rollbook` in which an old module is looked for; the last one is `rollbook` itself."""
RENAMED = {
    "checking": "project.check",
    "comparing": "views.compare",
    "dataset": "project.run.run",
    "dvc_cache": "dvc.cache",
    "dvc_lock": "dvc.lock",
    "exporting": "views.export",
    "lineage": "project.environment",
    "lock_entries": "dvc.lock",
    "lock_guard": "dvc.guard",
    "lock_text": "dvc.lock",
    "recipe_diff": "rl.recipe_numbers",
    "recipe_text": "settings.preset_recipe",
    "run_status": "project.status",
    "showing": "views.show",
    "stored_revisions": "project.run.revisions",
    "tracing": "views.lineage",
    "tracking": "views.mlflow",
    "verifying": "project.verify",
    "visible": "core.text",
    "yaml_text": "core.yaml",
}
"""What lay directly below `pipeline/` and has another name now, not only another package."""


def new_name(module: str) -> str | None:
    """Today's name of a module of the old layout, such as `pipeline.rewards.base`; None if there is none."""
    package, *parts = module.split(".")
    if package == "stages":
        return ".".join(["rollbook.stages", *parts])
    if package != "pipeline":
        return None
    if not parts:
        return "rollbook"
    first, *rest = parts
    homes = [RENAMED[first]] if first in RENAMED else [f"{layer}.{first}" for layer in LAYERS]
    names = (".".join([home.lstrip("."), *rest]) for home in homes)
    return next((f"rollbook.{name}" for name in names if _exists(name)), None)


def with_new_names(error: BaseException, asked: str = "") -> str:
    """Text of an exception; where an old name could not be imported, with the new name of each that the file imports.

    Args:
        error: what an import, or code of the user's, has raised.
        asked: name of the module that was to be imported, if it was not a file.
    """
    failed = _module_of(error)
    if failed.split(".")[0] not in OLD_PACKAGES or _is_a_package_of_the_users(failed):
        return str(error)
    old = [asked] if asked.split(".")[0] in OLD_PACKAGES else _old_imports(error) or [failed]
    new = [f"`{module}` is `{name}` now" for module in old if (name := new_name(module))]
    return "; ".join([str(error), *new])


def _exists(name: str) -> bool:
    place = LIBRARY.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def _module_of(error: BaseException) -> str:
    """The module that could not be imported, or that lacks an attribute."""
    if isinstance(error, ImportError):
        return error.name or ""
    owner = error.obj if isinstance(error, AttributeError) else None
    return owner.__name__ if inspect.ismodule(owner) else ""


def _is_a_package_of_the_users(module: str) -> bool:
    """Whether its top-level package has code; a folder without, as `pipeline/` in a checkout, can be imported too."""
    package = module.split(".")[0]
    found = sys.modules.get(package)
    spec = importlib.util.find_spec(package) if found is None else found.__spec__
    return spec is not None and spec.origin is not None


def _old_imports(error: BaseException) -> list[str]:
    """Old modules that are imported in the file in which an exception was raised."""
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    file = next((file for file in reversed(files) if file.is_file()), None)
    modules: list[str] = []
    for node in ast.walk(ast.parse(file.read_bytes())) if file else ():
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.append(node.module)
    return sorted({module for module in modules if module.split(".")[0] in OLD_PACKAGES})
