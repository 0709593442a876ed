"""Vega-Lite for the browser, with all it needs, as vl-convert bundles it. That takes seconds, so the bundle is kept."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
from pathlib import Path

from pipeline.scratch import SCRATCH

EXPOSED = "window.vegaEmbed = vegaEmbed;"
"""Vega-Embed brings the interpreter of expressions too: with it the page needs no `unsafe-eval`."""


def bundle() -> str:
    """The program; it sets `vegaEmbed`."""
    file = SCRATCH / f"vega-{importlib.metadata.version('vl-convert-python')}.js"
    kept = _whole(file)
    if kept is None:
        import vl_convert

        kept = vl_convert.javascript_bundle(EXPOSED).replace("</script", "<\\/script")
        _keep(file, kept)
    return kept


def _whole(file: Path) -> str | None:
    """What was kept, if its digest in the first line fits."""
    try:
        head, _, text = file.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    return text if head == _digest(text) else None


def _keep(file: Path, text: str) -> None:
    temporary = file.with_suffix(f".{os.getpid()}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(f"{_digest(text)}\n{text}", encoding="utf-8")
        temporary.replace(file)
    except OSError:  # it is made again next time
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
