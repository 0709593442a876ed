"""What the chain ran with: machine and packages, said once for all iterations that had the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.ancestry import span
from pipeline.page.run import Run
from pipeline.showing.sections import Pairs, Part

STAGE = "update_policy"
"""Whose run_info is read: it needs most."""


def environments(run: Run) -> list[tuple[str, list[Part]]]:
    """Iterations, and what they ran with."""
    stretches: list[tuple[list[str], dict[str, str]]] = []
    for key in run.begun:
        info = run.stored.info(STAGE, key)
        if not info:
            continue
        words = _words(info)
        if stretches and stretches[-1][1] == words:
            stretches[-1][0].append(key)
        else:
            stretches.append(([key], words))
    return [(span(keys), [Pairs(list(words.items()))]) for keys, words in stretches]


def _words(info: Mapping[str, Any]) -> dict[str, str]:
    environment: Mapping[str, Any] = info.get("environment", {})
    packages: Mapping[str, str] = environment.get("packages", {})
    cores = environment.get("cpu_count")
    threads = info.get("runtime", {}).get("threads_used")
    found = {
        "processor": f"{environment.get('cpu') or 'unknown'}{f', {cores} cores' if cores else ''}",
        "accelerators": ", ".join(environment.get("gpus", [])) or "none",
        "threads": "" if threads is None else str(threads),
        "system": str(environment.get("platform", "")),
        "Python": str(environment.get("python", "")),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
    }
    return {name: text for name, text in found.items() if text}
