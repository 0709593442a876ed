"""What every settings object and every pluggable part of Rollbook is: a frozen pydantic model.

A component's fields are its hyper-parameters and its methods are its behaviour, so there is no
second configuration class to keep in step. Components are built by `rollbook.core.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from rollbook.core.errors import Problem, nearest

Share = Annotated[float, Field(ge=0, le=1)]


class Model(BaseModel):
    """A frozen settings object that refuses unknown keys and names the nearest valid one."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, validate_default=True, allow_inf_nan=False
    )

    def data_files(self) -> list[str]:
        """Files whose content decides results (templates, word lists); a change re-runs the stage."""
        return []

    def cautions(self) -> list[str]:
        """Sentences about settings that are allowed and rarely meant; `check` prints them."""
        return []

    @model_validator(mode="wrap")
    @classmethod
    def _name_unknown_keys(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Reports unknown keys together with all other errors, each with the nearest valid name."""
        if not isinstance(data, Mapping):
            return handler(data)
        unknown = [key for key in data if key not in cls.model_fields]
        errors = [
            InitErrorDetails(
                type=PydanticCustomError(
                    "unknown_key", "unknown key; {hint}", {"hint": nearest(key, cls.model_fields)}
                ),
                loc=(str(key),),
                input=data[key],
            )
            for key in unknown
        ]
        try:
            model = handler({key: value for key, value in data.items() if key in cls.model_fields})
        except ValidationError as error:
            errors += [_again(line) for line in error.errors()]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return model


class Component(Model):
    """A pluggable part named in params.yaml: a reward, estimator, loss, engine, source or base policy.

    Attributes:
        name: the file it lives in (`pipeline/<kind>/<name>.py`), or the class name of a custom one.
        path: where a component of the user's own comes from, as `file.py:Class`.
    """

    kind: ClassVar[str]
    name: str = ""
    path: str | None = None

    def code_files(self) -> list[str]:
        """Python files that this component runs, beside that of its own class."""
        return []

    def settings(self) -> dict[str, Any]:
        """All fields with defaults filled in, as plain JSON values."""
        return self.model_dump(mode="json", serialize_as_any=True)


def problems_of(error: ValidationError, where: str = "") -> list[Problem]:
    """Turns pydantic's errors into lines that say place, value and what is allowed."""
    return [
        Problem(
            where=".".join(part for part in [where, *map(str, line["loc"])] if part),
            what=f"{_sentence(line['msg'])}{_got(line['input'])}"
            if line["type"] != "missing"
            else "is required",
        )
        for line in error.errors()
    ]


def _again(line: Any) -> InitErrorDetails:
    """The same error once more; pydantic can raise only what it can build from a template."""
    kind = "missing" if line["type"] == "missing" else "problem"
    error = PydanticCustomError(kind, "{message}", {"message": _sentence(line["msg"])})
    return InitErrorDetails(type=error, loc=line["loc"], input=line["input"])


def _sentence(message: str) -> str:
    for prefix in ("Value error, ", "Assertion failed, "):
        message = message.removeprefix(prefix)
    return message[:1].lower() + message[1:] if message.startswith("Input ") else message


def _got(value: object) -> str:
    """The value in brackets, cut if it is long; the beginning of a whole recipe says nothing."""
    text = repr(value)
    if len(text) <= 80:
        return f" (got {text})"
    return "" if isinstance(value, Mapping) else f" (got {text[:77]}...)"
