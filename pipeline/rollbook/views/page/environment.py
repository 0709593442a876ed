"""What the chain ran with: machine and packages, said once for all iterations that had the same."""

from __future__ import annotations

from rollbook.project.ancestry import span
from rollbook.tables.run_info import RunInfo
from rollbook.views.page.shown import ShownChain
from rollbook.views.show.sections import KeyValues, Part

STAGE = "update_policy"
"""Whose run_info is read: it needs most."""


def environments(shown: ShownChain) -> list[tuple[str, list[Part]]]:
    """Iterations, and what they ran with."""
    stretches: list[tuple[list[str], dict[str, str]]] = []
    for item in shown.begun:
        info = item.info(STAGE)
        if info is None:
            continue
        words = _words(info)
        if stretches and stretches[-1][1] == words:
            stretches[-1][0].append(item.key)
        else:
            stretches.append(([item.key], words))
    return [(span(keys), [KeyValues(list(words.items()))]) for keys, words in stretches]


def _words(info: RunInfo) -> dict[str, str]:
    ran = info.environment
    found = {
        "processor": f"{ran.cpu or 'unknown'}{f', {ran.cpu_count} cores' if ran.cpu_count else ''}",
        "accelerators": ", ".join(ran.gpus) or "none",
        "threads": str(info.runtime.get("threads_used", "")),
        "system": ran.platform,
        "Python": ran.python,
        "packages": ", ".join(f"{name} {version}" for name, version in ran.packages.items()),
    }
    return {name: text for name, text in found.items() if text}
