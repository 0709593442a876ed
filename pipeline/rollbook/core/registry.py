"""Finds and builds components by file name: `{name: dapo}` is the class in
`pipeline/rollbook/components/losses/dapo.py`.

Nothing is registered: the listing of the folder is the menu. A component of the user's own is named by
`path: file.py:Class` (relative to the project) or `path: package.module:Class`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from rollbook.core.component import Component
from rollbook.core.errors import nearest
from rollbook.core.renamed import with_new_names

PACKAGE_FOLDER = Path(__file__).parents[1]
HOMES = {"doctor.checks": "views.doctor.checks"}
"""Kinds that lie elsewhere than in the package of their name below `rollbook.components`."""
NO_COMPONENTS = ("__init__", "base")
"""Modules of every kind's folder that hold none; `base` has what all of them are."""


def menu(kind: str) -> list[str]:
    """Names of all built-in components of a kind (`rewards`, `losses`, …), sorted."""
    names = [
        file.stem
        for file in sorted(_folder_of(kind).glob("*.py"))
        if file.stem not in NO_COMPONENTS
    ]
    return [name for name in names if _component_in(kind, name) is not None]


def build(kind: str, spec: Any) -> Component:
    """Builds the component that `spec` names.

    Args:
        kind: a package below `rollbook.components`, such as `rewards` or `doctor.checks`.
        spec: `{name: ..., **fields}`, `{path: "file.py:Class", **fields}`, a bare name, or a built component.

    Raises:
        pydantic.ValidationError: for wrong fields, with their places.
        pydantic_core.PydanticCustomError: for an unknown name, an import that fails, a malformed spec, or a name and a
            path that say different things.
    """
    if isinstance(spec, Component):
        return spec
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping):
        raise _problem(f"needs a name or {{name: ..., option: ...}}; {nearest('', menu(kind))}")
    options = dict(spec)
    name, path = options.pop("name", None), options.get("path")
    # The settings of a component of the user's own hold both: its name is then that of its class.
    if path and (not name or (str(path).endswith(f":{name}") and not _has_own_path(kind, name))):
        cls = _custom(kind, str(path))
        name = cls.__name__
    elif name:
        cls = _built_in(kind, name)
        if path and not _has_own_path(kind, name):
            raise _problem(
                f"{name!r} is in Rollbook and {path!r} is a component of your own: leave out name or path"
            )
    else:
        raise _problem(f"needs a name; {nearest('', menu(kind))}")
    return cls.model_validate({"name": str(name), **options})


def built(kind: str) -> Any:
    """Validates a field of settings as a component of a kind."""
    return BeforeValidator(lambda spec: build(kind, spec))


def built_or_none(kind: str) -> Any:
    """As `built`, for a component that may be left out."""
    return BeforeValidator(lambda spec: None if spec is None else build(kind, spec))


def default(kind: str, name: str) -> Any:
    """A field of settings whose default is a built-in component."""
    return Field(default_factory=lambda: build(kind, name))


def load_object(path: str) -> Any:
    """Imports what `file.py:name` or `package.module:name` points to.

    A file's own folder is importable while it loads, so a reward file may import the helper beside it.

    Raises:
        ValueError: with the place and the reason.
    """
    module_part, _, attribute = path.rpartition(":")
    if not module_part or not attribute:
        raise ValueError(f"{path!r} is not of the form 'file.py:name' or 'package.module:name'")
    module = (
        _module_of_file(Path(module_part))
        if module_part.endswith(".py")
        else _module_of_name(module_part)
    )
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise ValueError(f"{module_part} has no {attribute!r}; {nearest(attribute, public)}")
    return getattr(module, attribute)


def _built_in(kind: str, name: object) -> type[Component]:
    cls = _shipped(kind, name)
    if cls is None:
        raise _problem(f"there is no {name!r} in {kind}; {nearest(name, menu(kind))}")
    return cls


def _folder_of(kind: str) -> Path:
    return PACKAGE_FOLDER.joinpath(*_home_of(kind).split("."))


def _home_of(kind: str) -> str:
    """The package of a kind below `rollbook`."""
    return HOMES.get(kind, f"components.{kind}")


def _shipped(kind: str, name: object) -> type[Component] | None:
    """The built-in component of this name; None if there is none."""
    known = isinstance(name, str) and name.isidentifier() and name not in NO_COMPONENTS
    if not (known and (_folder_of(kind) / f"{name}.py").is_file()):
        return None
    return _component_in(kind, str(name))


def _has_own_path(kind: str, name: object) -> bool:
    """Whether a built-in component needs a path for a purpose of its own, as the reward `function` does."""
    cls = _shipped(kind, name)
    return cls is not None and cls.model_fields["path"].is_required()


def _component_in(kind: str, name: str) -> type[Component] | None:
    """The one public component that the file of a name defines; None for a module of shared functions."""
    module = importlib.import_module(f"rollbook.{_home_of(kind)}.{name}")
    defined = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Component)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
        and getattr(value, "kind", None) == kind
    ]
    if len(defined) > 1:
        raise _problem(
            f"{_folder_of(kind) / name}.py defines {len(defined)} components; one file holds one"
        )
    return defined[0] if defined else None


def _custom(kind: str, path: str) -> type[Component]:
    try:
        cls = load_object(path)
    except ValueError as error:
        raise _problem(str(error)) from error
    if not (
        inspect.isclass(cls) and issubclass(cls, Component) and getattr(cls, "kind", None) == kind
    ):
        raise _problem(f"{path} is not a component of kind {kind!r}")
    return cls


def _module_of_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ValueError(f"no such file: {file}")
    name = "rollbook_user_" + str(file.resolve()).replace("/", "_").removesuffix(".py")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        reason = f"{type(error).__name__}: {with_new_names(error)}"
        raise ValueError(f"{file} cannot be imported: {reason}") from error
    return module


def _module_of_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {with_new_names(error, name)}"
        raise ValueError(f"module {name!r} cannot be imported: {reason}") from error


def _problem(message: str) -> PydanticCustomError:
    return PydanticCustomError("component", "{message}", {"message": message})
