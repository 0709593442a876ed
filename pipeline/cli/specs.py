"""Components as they are written on a command line."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pipeline.errors import ConfigError, Problem
from pipeline.registry import load_object

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
        ConfigError: for YAML that is malformed, and files that cannot be imported.
    """
    if text.lstrip().startswith("{"):
        return yaml_spec("REWARD", text)
    parts = text.split(":")
    weight = {}
    if len(parts) > 1 and NUMBER.fullmatch(parts[-1]):
        weight = {"weight": float(parts.pop())}
    if len(parts) == 1:
        return {"name": parts[0], **weight}
    path = ":".join(parts)
    try:
        own_class = inspect.isclass(load_object(path))
    except ValueError as error:
        raise ConfigError([Problem("REWARD", str(error))], "REWARD") from None
    return {**({} if own_class else {"name": "function"}), "path": path, **weight}
