"""Components as they are written on a command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rollbook.core.errors import ConfigError, Problem
from rollbook.core.registry import build, load_object, menu

if TYPE_CHECKING:
    from pydantic import ValidationError

    from rollbook.components.rewards.base import Reward

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def yaml_spec(option: str, text: str) -> Any:
    """A spec as params.yaml would hold it: a name, or a mapping in braces.

    Args:
        option: named in errors, such as `--loss`.
        text: YAML.

    Raises:
        ConfigError: if it is malformed or says nothing.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        spec = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise ConfigError([Problem(option, " ".join(str(error).split()))], option) from None
    if spec is None:
        raise ConfigError([Problem(option, f"needs a name or {{name: …}} (got {text!r})")], option)
    return spec


def reward_spec(text: str) -> Any:
    """A reward: `name`, `name:weight`, `file.py:f`, `package.module:f:weight`, or YAML in braces.

    Raises:
        ConfigError: for YAML that is malformed, a weight that is no number, and files that cannot be imported.
    """
    if text.lstrip().startswith("{"):
        return yaml_spec("REWARD", text)
    parts = text.split(":")
    weight = {}
    if len(parts) > 1 and NUMBER.fullmatch(parts[-1]):
        weight = {"weight": float(parts.pop())}
    if len(parts) == 1 and parts[0].endswith(".py"):
        reason = f"{parts[0]} names no function; write {parts[0]}:NAME"
        raise ConfigError([Problem("REWARD", reason)], "REWARD")
    if len(parts) == 1:
        return {"name": parts[0], **weight}
    if parts[0] in menu("rewards"):
        reason = f"weight {':'.join(parts[1:])!r} is not a number; options go into braces: '{{name: {parts[0]}, …}}'"
        raise ConfigError([Problem("REWARD", reason)], "REWARD")
    path = ":".join(parts)
    try:
        own_class = inspect.isclass(load_object(path))
    except ValueError as error:
        raise ConfigError([Problem("REWARD", str(error))], "REWARD") from None
    return {**({} if own_class else {"name": "function"}), "path": path, **weight}


def reward_of(text: str, command: str) -> Reward:
    """The reward that `reward_spec` reads, built.

    Args:
        text: as it was written.
        command: named in errors.

    Raises:
        ConfigError: if there is none of that name, or if its settings are wrong; for those it lacks, with the braces to
            write.
    """
    from pydantic import ValidationError
    from pydantic_core import PydanticCustomError

    from rollbook.components.rewards.base import Reward

    spec = reward_spec(text)
    try:
        built = build("rewards", spec)
    except ValidationError as error:
        raise ConfigError(list(_problems(spec, error)), command) from None
    except PydanticCustomError as error:
        raise ConfigError([Problem("REWARD", error.message())], command) from None
    assert isinstance(built, Reward)
    return built


def _problems(spec: Any, error: ValidationError) -> Iterable[Problem]:
    """What is wrong with the settings of a reward; what it lacks, on one line."""
    from rollbook.core.component import problems_of
    from rollbook.core.yaml import flow

    given = spec if isinstance(spec, Mapping) else {"name": spec}
    where = f"REWARD {given.get('path') or given.get('name')}"
    lines = error.errors()
    lacking = [
        str(line["loc"][0]) for line in lines if line["type"] == "missing" and len(line["loc"]) == 1
    ]
    if lacking:
        braces = f"{flow(given)[:-1]}, {', '.join(f'{name}: …' for name in lacking)}}}"
        yield Problem(where, f"needs {' and '.join(lacking)}; write '{braces}'")
    for line, problem in zip(lines, problems_of(error, where), strict=True):
        if line["type"] != "missing" or len(line["loc"]) > 1:
            yield problem
