"""Vega-Lite for the browser, with all it needs, as vl-convert bundles it. That takes seconds, so the bundle is kept.

`.dvc/plots/page.html`, the frame of `dvc plots show`, loads the kept file: curves are drawn without a network.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os

from rollbook.core.scratch import SCRATCH

FILE = SCRATCH / "vega.js"
"""Where it is kept: a script whose first line tells the version and the digest of the rest."""
EXPOSED = "window.vegaEmbed = vegaEmbed;"
"""Vega-Embed brings the interpreter of expressions too: with it the page needs no `unsafe-eval`."""


def bundle() -> str:
    """The program; it sets `vegaEmbed`. Made on first use, and again for another version or a damaged file."""
    kept = _whole()
    if kept is None:
        import vl_convert

        kept = vl_convert.javascript_bundle(EXPOSED).replace("</script", "<\\/script")
        _keep(kept)
    return kept


def _whole() -> str | None:
    """What was kept, if its first line fits."""
    try:
        head, _, text = FILE.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    return text if head == _head(text) else None


def _keep(text: str) -> None:
    temporary = FILE.with_suffix(f".{os.getpid()}.new")
    try:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(f"{_head(text)}\n{text}", encoding="utf-8")
        temporary.replace(FILE)
    except OSError:  # it is made again next time
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _head(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"// vl-convert-python {importlib.metadata.version('vl-convert-python')} {digest}"
