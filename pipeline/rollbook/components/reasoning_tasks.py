"""Tasks of the package reasoning-gym (0.1.25) and their questions as text, shared by its source and its reward.

A question is kept whole, as JSON: a scorer may read anything of it. Tuples and keys that are no text, which JSON does
not know, are marked, since some scorers tell a tuple from a list.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from rollbook.core.errors import nearest

COLUMN = "reasoning_gym"
"""Column of the data that holds a question and its task's settings."""
TASK_COLUMN = "task"
INSTALL = "pip install 'rollbook[reasoning-gym]'"
TUPLE, ITEMS = "__tuple__", "__items__"
DATA_SETS_KEPT = 64


def data_set(task: str, settings: dict[str, Any]) -> Any:
    """The task's data set, which makes questions and scores answers.

    Args:
        task: its name in reasoning-gym, such as `chain_sum`.
        settings: of its config class.

    Raises:
        ValueError: for a missing package, an unknown task, or settings that it does not take.
    """
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise ValueError(f"needs the package reasoning-gym: {INSTALL}") from None
    if task not in DATASETS:
        raise ValueError(f"there is no task {task!r}; {nearest(task, sorted(DATASETS))}")
    try:
        return create_dataset(task, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"task {task} does not take {settings}: {error}") from None


def packed(task: str, settings: dict[str, Any], question: dict[str, Any]) -> str:
    """A question as JSON text, with what its scorer is made from.

    Raises:
        TypeError: if the question holds what JSON cannot.
    """
    content = {"task": task, "config": settings, "entry": _marked(question)}
    return json.dumps(content, ensure_ascii=False, sort_keys=False)


def unpacked(text: str) -> tuple[Any, dict[str, Any]]:
    """The data set that scores a packed question, and the question.

    Raises:
        ValueError: if the text is none, or its task cannot be had.
    """
    content = json.loads(text)
    return _scorer(content["task"], json.dumps(content["config"])), _unmarked(content["entry"])


@lru_cache(maxsize=DATA_SETS_KEPT)
def _scorer(task: str, settings: str) -> Any:
    return data_set(task, json.loads(settings))


def _marked(value: Any) -> Any:
    if isinstance(value, tuple):
        return {TUPLE: [_marked(item) for item in value]}
    if isinstance(value, list):
        return [_marked(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _marked(item) for key, item in value.items()}
        return {ITEMS: [[_marked(key), _marked(item)] for key, item in value.items()]}
    return value


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {TUPLE}:
            return tuple(_unmarked(item) for item in value[TUPLE])
        if value.keys() == {ITEMS}:
            return {_unmarked(key): _unmarked(item) for key, item in value[ITEMS]}
        return {key: _unmarked(item) for key, item in value.items()}
    return value
