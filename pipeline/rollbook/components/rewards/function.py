"""function: any reward function of TRL's or verl's signature, unchanged.

    {name: function, path: "my_rewards.py:f"}        or path: "package.module:f"
    def f(prompts, completions, **columns) -> list[float | None]

It is called by keyword as GRPOTrainer of TRL 1.16 calls it, once per group (TRL: per batch), with lists as long as
the group:

    prompts          the prompts' messages (style: conversational) or the rendered texts (style: text)
    completions      [{"role": "assistant", "content": clean text}], or the clean texts
    completion_ids   token ids of each completion
    <column>         the source's own columns of the prompt, and `reference_answer`
    trainer_state    `.global_step` is the number of the iteration; a reward must not depend on more of a training run
    log_extra        log_extra(column, values): a column of the scores table
    log_metric       log_metric(name, value): the same with one value for the group

A function without `**kwargs` gets what it names (TRL would fail). A parameter called `answer`, `solution`,
`ground_truth`, `target` or `label`, without a default or with None, gets the reference answers if the data has no such
column. `async def` works too; all calls share one event loop, as in TRL.

    {name: function, path: "my_rewards.py:compute_score", style: verl}
    def compute_score(data_source, solution_str, ground_truth, extra_info) -> float | {"score": float, …}

It is called by keyword as verl 0.8 calls it, once per completion; an exception is an error of that row alone:

    data_source      the column of that name, or ""
    solution_str     the clean text
    ground_truth     of the column `reward_model` or `ground_truth`, or the reference answer
    extra_info       the column of that name, or all columns

What a returned dictionary holds beside `score` is logged, if it is a number, truth value or text.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.components.rewards.outcomes import error_text
from rollbook.core.errors import RewardError, nearest
from rollbook.core.event_loop import awaited
from rollbook.core.registry import load_object

LOGGED = (int, float, str, np.generic)
REFERENCE_ALIASES = ("answer", "solution", "ground_truth", "target", "label")
OF_VERL = ("data_source", "solution_str", "extra_info")
"""Parameters that functions for verl have, and no others."""


@dataclass(frozen=True)
class TrainerState:
    """What a reward may know about progress.

    Attributes:
        global_step: number of the iteration, 3 for `i0003`.
    """

    global_step: int


class Function(Reward):
    """Calls a function of the user's own.

    Attributes:
        path: `file.py:name`, relative to the project, or `package.module:name`.
        style: how it is called. `conversational` is what TRL passes for prompts made of messages, `text` for prompts
            that are texts; `verl` is verl's signature.
        arguments: further keyword arguments, such as verl's `reward_kwargs`.
        label: default: the function's name.
    """

    path: str
    style: Literal["conversational", "text", "verl"] = "conversational"
    arguments: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _label_is_the_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("label") is None and ":" in str(data.get("path")):
            return {**data, "label": str(data["path"]).rpartition(":")[2]}
        return data

    @field_validator("path")
    @classmethod
    def _is_a_function(cls, path: str) -> str:
        function = load_object(path)
        if inspect.isclass(function) or not callable(function):
            kind = "a class" if inspect.isclass(function) else type(function).__name__
            raise ValueError(
                f"{path} is {kind}, not a function; a Reward of your own goes without `name: function`"
            )
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise ValueError(
                    f"{path} takes {parameter.name!r} by position only; reward functions are called by keyword, "
                    "as in `def f(prompts, completions, **columns)`"
                )
        return path

    def code_files(self) -> list[str]:
        """The file the function is in; what it imports is found from there."""
        place = self.path.rpartition(":")[0]
        if not place.endswith(".py"):
            place = getattr(importlib.import_module(place), "__file__", None) or ""
        return [place] if place else []

    def __call__(self, row: RewardInput) -> float | RewardResult | None:
        return self.score([row])[0]

    def score(self, group: Sequence[RewardInput]) -> list[float | RewardResult | None]:
        function = load_object(self.path)
        if self.style == "verl":
            return self._one_by_one(function, group)
        logged: list[dict[str, Any]] = [{} for _ in group]
        returned = function(**_arguments(function, self._available(group, logged)))
        if inspect.isawaitable(returned):
            returned = awaited(returned)
        values = _as_list(returned, len(group))
        if not any(logged):
            return values
        return [RewardResult(value, log) for value, log in zip(values, logged, strict=True)]

    def _one_by_one(
        self, function: Callable[..., Any], group: Sequence[RewardInput]
    ) -> list[float | RewardResult | None]:
        results: list[float | RewardResult | None] = []
        for row in group:
            try:
                returned = function(**_arguments(function, self._available_in_verl(row)))
                results.append(
                    _with_log(awaited(returned) if inspect.isawaitable(returned) else returned)
                )
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                results.append(RewardResult(None, error=error_text(error)))
        return results

    def _available_in_verl(self, row: RewardInput) -> dict[str, Any]:
        """Copies, so that the function cannot change the rows."""
        columns = copy.deepcopy(dict(row.columns))
        model = columns.get("reward_model")
        truth = columns.get("ground_truth", row.reference_answer)
        if isinstance(model, Mapping) and "ground_truth" in model:
            truth = model["ground_truth"]
        return {
            "data_source": columns.get("data_source", ""),
            "solution_str": row.text,
            "ground_truth": truth,
            "extra_info": columns.get("extra_info", columns),
            **self.arguments,
        }

    def _available(
        self, group: Sequence[RewardInput], logged: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Everything the function may ask for. Copies, so that it cannot change the rows."""
        conversational = self.style == "conversational"
        names = group[0].columns.keys() if group else ()
        return {
            **{name: [row.columns[name] for row in group] for name in names},
            "reference_answer": [row.reference_answer for row in group],
            "prompts": [
                [dict(message) for message in row.messages] if conversational else row.prompt
                for row in group
            ],
            "completions": [
                [{"role": "assistant", "content": row.text}] if conversational else row.text
                for row in group
            ],
            "completion_ids": [list(row.completion_token_ids) for row in group],
            "trainer_state": TrainerState(_number_of(group[0].iteration) if group else 0),
            "log_extra": _logger(logged, per_row=True),
            "log_metric": _logger(logged, per_row=False),
            **self.arguments,
        }


def _arguments(function: Callable[..., Any], available: dict[str, Any]) -> dict[str, Any]:
    """Those of `available` that the function takes.

    Raises:
        RewardError: if it needs one that there is not.
    """
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    arguments = dict(available) if takes_all else {}
    for parameter in named:
        if parameter.name in available:
            arguments[parameter.name] = available[parameter.name]
        elif (
            parameter.name in REFERENCE_ALIASES
            and parameter.default in (parameter.empty, None)
            and "reference_answer" in available
        ):
            arguments[parameter.name] = available["reference_answer"]
        elif parameter.default is parameter.empty and parameter.name in OF_VERL:
            raise RewardError(
                f"needs {parameter.name!r}, as functions for verl do; set `style: verl`"
            )
        elif parameter.default is parameter.empty:
            raise RewardError(
                f"needs {parameter.name!r}, which the data has no column for; {nearest(parameter.name, available)}"
            )
    return arguments


def _as_list(returned: Any, expected: int) -> list[Any]:
    if isinstance(returned, (str, bytes, dict)) or not hasattr(returned, "__len__"):
        raise RewardError(
            f"returned {type(returned).__name__}, must return a list of {expected} numbers"
        )
    if len(returned) != expected:
        raise RewardError(f"returned {len(returned)} values for {expected} completions")
    return list(returned)


def _logger(logged: list[dict[str, Any]], per_row: bool) -> Callable[[str, Any], None]:
    def log(name: str, value: Any) -> None:
        values = list(value) if per_row else [value] * len(logged)
        if len(values) != len(logged):
            raise RewardError(
                f"logged {len(values)} values as {name!r} for {len(logged)} completions"
            )
        for row, item in zip(logged, values, strict=True):
            row[name] = item

    return log


def _number_of(iteration: str) -> int:
    digits = re.search(r"[0-9]+$", iteration)
    return int(digits[0]) if digits else 0


def _with_log(returned: Any) -> float | RewardResult | None:
    """A verl result: a number, or a dictionary with `score` and more."""
    if not isinstance(returned, Mapping):
        return returned  # checked where the reward is called
    if "score" not in returned:
        raise RewardError("returned a dictionary without 'score'")
    log = {str(name): value for name, value in returned.items() if name != "score"}
    return RewardResult(
        returned["score"],
        {name: value for name, value in log.items() if isinstance(value, LOGGED)},
    )
