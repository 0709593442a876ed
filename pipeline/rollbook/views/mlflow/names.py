"""Names and values as MLflow accepts them."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from rollbook.core.yaml import leaves

NAME_LENGTH = 250
VALUE_LENGTH = 6000
NOT_ALLOWED = re.compile(r"[^\w\-. :/]", re.ASCII)


def valid_name(name: str) -> str:
    """The name of a metric or parameter without what MLflow refuses: `@` and other signs, empty or `..` parts."""
    return posixpath.normpath(NOT_ALLOWED.sub("_", name)).strip("/.")[:NAME_LENGTH]


def shortened(text: str, limit: int = VALUE_LENGTH) -> str:
    """Text cut to what a parameter or tag can hold."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def flattened(settings: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as parameters: `{"loss": {"name": "dapo"}}` becomes `{"loss.name": "dapo"}`.

    Settings that are null are left out.
    """
    return {
        valid_name(place): shortened(value if isinstance(value, str) else json.dumps(value))
        for place, value in leaves(settings)
        if value is not None
    }
