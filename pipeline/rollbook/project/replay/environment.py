"""What a step ran on: the runtime to give it again, what is otherwise now, whether exact numbers can be promised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollbook.core.errors import RollbookError
from rollbook.core.hashing import short
from rollbook.core.own_code import PACKAGE, is_own
from rollbook.core.process import installed_versions
from rollbook.core.text import listed
from rollbook.project.code import code_hashes, file_of_name
from rollbook.project.environment import library_digest
from rollbook.project.replay.verdict import EnvironmentChange, Tolerance
from rollbook.tables.run_info import RunInfo

INEXACT_NUMBERS = 1e-4
"""Of tables and metrics where another processor or a GPU adds up in another order. At most 3e-6 was measured between
processors (reports/determinism.md); GPUs were not measured."""
INEXACT_WEIGHTS = 1e-3
"""Of policies and optimizer states there. At most 6e-5 was measured, after 16 steps of Adam, which turns a rounding of
a gradient near 0 into a step as long as any other."""
SHOWN_FILES = 3
ALWAYS_NAMED = ("python", "platform", "cpu", "cpu_count")
"""Facts of `environment` in run_info that are compared one by one."""


def recorded_runtime(info: RunInfo) -> dict[str, Any]:
    """`runtime` of params.yaml that gives a step what it ran with: the threads and the device that `auto` meant then.

    Args:
        info: run_info of the step.
    """
    runtime = dict(info.runtime)
    threads = runtime.pop("threads_used", None)
    if threads is not None:  # torch was used
        runtime["threads"] = threads
        if runtime.get("device", "auto") == "auto":
            runtime["device"] = "cuda" if info.environment.gpus else "cpu"
    return runtime


def ran_on(info: RunInfo) -> str:
    """Torch, processor and threads of a step, in words."""
    around = info.environment
    where = f"{around.cpu}, {info.runtime.get('threads_used')} threads"
    return f"torch {around.packages.get('torch')} on {where}"


def environment_changes(then: RunInfo, now: RunInfo) -> Iterator[EnvironmentChange]:
    """What is not as it was when the step ran, from both run_info: packages, interpreter, processor, threads, devices.

    Host names do not count. Threads are None where torch was not imported, and a step that computes nothing with it
    imports it or not, as it is forked or not.
    """
    before, after = then.environment, now.environment
    old, new = before.packages, after.packages
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield EnvironmentChange(
                f"package {name}", old.get(name, "not there"), new.get(name, "not there")
            )
    for name in ALWAYS_NAMED:
        was, is_now = getattr(before, name), getattr(after, name)
        if was != is_now:
            yield EnvironmentChange(name, _shown(was), _shown(is_now))
    for name, was, is_now in (
        ("gpus", list(before.gpus), list(after.gpus)),
        ("threads", then.runtime.get("threads_used"), now.runtime.get("threads_used")),
    ):
        if None not in (was, is_now) and was != is_now:
            yield EnvironmentChange(name, _shown(was), _shown(is_now))


def refuse_other_package(label: str, info: RunInfo) -> None:
    """Refuses a step that ran with Rollbook as another package: no commit of the project has that code.

    Args:
        label: of the step.
        info: its run_info.

    Raises:
        RollbookError: naming both packages, what differs and the way on.
    """
    then = {name: sha for name, sha in info.code.items() if is_own(name)}
    now = code_hashes(file_of_name(name) for name in then)
    others = [name for name, sha in then.items() if now.get(name) != sha]
    if others:
        was = _package(info.environment.packages, info.environment.library)
        here = _package(installed_versions([PACKAGE]), library_digest())
        raise RollbookError(
            f"{label} ran with {was}, and {here} is installed here, where {listed(others, SHOWN_FILES)} "
            "differ" + ("s" if len(others) == 1 else ""),
            "install the one that it ran with and replay again, or run what is installed: --with-code worktree",
        )


def _package(versions: Mapping[str, str], digest: str) -> str:
    """Rollbook as a package, in words."""
    known = f" (files {short(digest)})" if digest else ""
    return f"{PACKAGE} {versions.get(PACKAGE, 'of an unknown version')}{known}"


def tolerance_of(then: RunInfo, now: RunInfo, asked: float | None) -> Tolerance:
    """What numbers are judged by: what was asked for, else exactly, but where that cannot be promised.

    Args:
        then, now: run_info of the step and of its replay.
        asked: by the user.
    """
    if asked is not None:
        return Tolerance(asked, asked, "asked for" if asked else "")
    before, after = then.environment, now.environment
    if before.gpus or after.gpus:
        return Tolerance(INEXACT_NUMBERS, INEXACT_WEIGHTS, "computed on a GPU")
    if before.cpu != after.cpu:
        return Tolerance(INEXACT_NUMBERS, INEXACT_WEIGHTS, "computed on another processor")
    return Tolerance()


def _shown(value: Any) -> str:
    """A value of an environment; of what was not recorded, `None`."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value or None)
