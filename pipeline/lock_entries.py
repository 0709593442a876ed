"""Finished steps as dvc.lock says them: what each read, what it made, and the digest of the plan it ran with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.dvc_lock import LOCK_FILE, MD5
from pipeline.errors import damaged_text
from pipeline.ids import BASE_KEY
from pipeline.yaml_text import read_yaml

PLAN_SECTION = "artifacts/plan.json"
ALIASES = {"evaluate_base": "evaluate_policy"}
"""Steps of dvc.yaml that run a program of another name, at the base policy."""


@dataclass(frozen=True)
class Entry:
    """One finished step.

    Attributes:
        address: as DVC calls it, such as `update_policy@i0001`.
        stage: name of its program.
        key: of the iteration; that of the base policy for steps that run once.
        rescore: name of the re-score it is part of, or empty.
        digest: of plan.json it ran with; None for steps that are not planned.
        inputs: md5 of everything it read, by path.
        outputs: md5 of everything it made, by path.
        sizes: bytes of everything it made, by path.
    """

    address: str
    stage: str
    key: str
    rescore: str
    digest: str | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    sizes: Mapping[str, int]

    def is_current(self, planned: str | None, made: Mapping[str, str]) -> bool:
        """Whether it ran with what is planned now, and nothing that it read was made again since.

        Args:
            planned: digest of the plan; None for steps that are not planned.
            made: md5 of outputs by path.
        """
        again = any(made.get(path, md5) != md5 for path, md5 in self.inputs.items())
        return self.digest == planned and not again


def read_entries(lock_file: Path = LOCK_FILE) -> list[Entry]:
    """All finished steps of a lock file; none if there is no such file, or it is empty.

    Raises:
        ConfigError: if it cannot be read.
    """
    return list(entries_of(read_stages(lock_file)))


def read_stages(lock_file: Path = LOCK_FILE) -> Mapping[str, Any]:
    """The section `stages` of a lock file; empty if there is no such file, or it is empty.

    Raises:
        ConfigError: if it cannot be read, or an entry is not as DVC writes it.
    """
    if not lock_file.exists() or not lock_file.stat().st_size:
        return {}
    stages = read_yaml(lock_file).get("stages") or {}
    if not isinstance(stages, Mapping):
        raise damaged_text(lock_file, "`stages` should hold steps by name")
    for address, said in stages.items():
        if problem := _problem(said):
            raise damaged_text(lock_file, f"the entry of {address}: {problem}")
    return stages


def _problem(said: Any) -> str:
    """What is wrong with an entry; empty if nothing is."""
    if not isinstance(said, Mapping):
        return "holds nothing"
    for section in ("deps", "outs"):
        for item in said.get(section) or []:
            if not isinstance(item, Mapping) or "path" not in item:
                return f"an item of `{section}` names no path"
            if "md5" in item and not MD5.fullmatch(str(item["md5"])):
                return f"{item['md5']!r} of {item['path']} is no md5"
    return ""


def entries_of(stages: Mapping[str, Any]) -> Iterator[Entry]:
    """The finished steps in the section `stages` of a lock file."""
    for address, said in stages.items():
        if not isinstance(said, Mapping):
            continue
        stage, _, key = str(address).partition("@")
        rescore, _, key = key.rpartition("-")  # no iteration's key has a dash
        yield Entry(
            address=str(address),
            stage=ALIASES.get(stage, stage),
            key=key or BASE_KEY,
            rescore=rescore,
            digest=_digest(said),
            inputs=_values(said.get("deps"), "md5"),
            outputs=_values(said.get("outs"), "md5"),
            sizes=_values(said.get("outs"), "size"),
        )


def _values(listed: Any, name: str) -> dict[str, Any]:
    return {item["path"]: item[name] for item in listed or [] if name in item}


def _digest(said: Mapping[str, Any]) -> str | None:
    sections = said.get("params")
    digests = sections.get(PLAN_SECTION) if isinstance(sections, Mapping) else None
    return next(iter(digests.values())) if isinstance(digests, Mapping) and digests else None
