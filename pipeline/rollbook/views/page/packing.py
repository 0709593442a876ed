"""Data inside a page: JSON, compressed where it is large. The same content gives the same characters."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

LEVEL = 6
"""Of gzip. 9 takes three times as long for 2 %."""


def packed(content: Any) -> str:
    """JSON as gzip as base64: letters that mean nothing in HTML."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("ascii"), LEVEL, mtime=0)).decode("ascii")


def plain_json(content: Any) -> str:
    """JSON that may stand in a script element: without anything that could end it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
