"""Iterations and the policies between them, as run_info recorded them; names of recipes as params.yaml has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.artifacts import FOLDERS, keys_of, path_of, read_run_info
from pipeline.config import PARAMS_FILE
from pipeline.errors import ConfigError
from pipeline.ids import BASE_KEY, order_of
from pipeline.sealed import SealedIteration, read_sealed, recorded_md5s, sealed_md5s
from pipeline.showing.facts import PolicyLink

Info = Mapping[str, Any]
ENTRY = re.compile(r"  ([A-Za-z]+[0-9]{4}): \{([\w.:, -]*)\}\s*(?:#.*)?")
"""An iteration of params.yaml as `rollbook iterate` writes it."""
SECTION = "iterations:"


@dataclass
class Chain:
    """What a project knows of its iterations; everything is read when it is first asked for."""

    _infos: dict[tuple[str, str], Info] = field(default_factory=dict)

    def info(self, stage: str, key: str) -> Info:
        """run_info of a step; empty where it is not on disk.

        Raises:
            ArtifactError: if it is damaged.
        """
        if (stage, key) not in self._infos:
            path = path_of(f"run_info/{stage}", key)
            self._infos[stage, key] = read_run_info(path) if path.exists() else {}
        return self._infos[stage, key]

    def settings(self, stage: str, key: str) -> Mapping[str, Any]:
        """Settings that a step ran with; empty where they are not known."""
        found: Mapping[str, Any] = self.info(stage, key).get("settings", {})
        return found

    @cached_property
    def sealed(self) -> Mapping[str, SealedIteration]:
        """Sealed iterations by key."""
        return read_sealed()

    @cached_property
    def configured(self) -> Mapping[str, Any]:
        """`iterations` of params.yaml as it stands; empty without a file that can be read."""
        if not PARAMS_FILE.exists():
            return {}
        text = PARAMS_FILE.read_text(encoding="utf-8", errors="replace")
        quick = _entries_in(text)
        return _parsed(text) if quick is None else quick

    def recipe(self, key: str) -> str:
        """Name of an iteration's recipe; empty where it is not known."""
        return self._entry(key, "recipe")

    def previous(self, key: str) -> str:
        """The iteration that `key` follows by params.yaml; empty where it is not known."""
        return self._entry(key, "previous")

    def _entry(self, key: str, name: str) -> str:
        if key in self.sealed:
            return str(getattr(self.sealed[key], name))
        entry = self.configured.get(key)
        return str(entry.get(name) or "") if isinstance(entry, Mapping) else ""

    @cached_property
    def keys(self) -> list[str]:
        """Iterations that have made a policy or are known to make one."""
        made = {*keys_of("run_info/update_policy"), *keys_of("run_info/init_policy")}
        return sorted({*made, *keys_of("policies"), *self.sealed}, key=order_of)

    def digest(self, key: str) -> str:
        """Of the policy that an iteration made; empty where it is not known."""
        stage = "init_policy" if key == BASE_KEY else "update_policy"
        return str(self.info(stage, key).get("outputs", {}).get("policies", ""))

    def maker(self, digest: str, near: str = "") -> str:
        """The iteration that made a policy; empty where it is not known.

        Args:
            digest: of the policy.
            near: the iteration that it was read in: its predecessor is looked at first.
        """
        first = self.previous(near) if near else ""
        if first and self.digest(first) == digest:
            return first
        return next((key for key in self.keys if self.digest(key) == digest), "")

    @cached_property
    def md5s(self) -> Mapping[str, str]:
        """DVC's md5 of every output by path; of a folder it ends in `.dir`."""
        return recorded_md5s()

    @cached_property
    def _sealed_outputs(self) -> Mapping[str, str]:
        return sealed_md5s()

    def md5(self, path: str) -> str:
        """DVC's md5 of an output; empty where no lock file knows it."""
        return self.md5s.get(path, "")

    def link(self, digest: str, near: str = "", key: str = "") -> PolicyLink:
        """A policy by its digest, and where it is."""
        made_in = key or self.maker(digest, near)
        return PolicyLink(made_in, digest, self.place(made_in) if made_in else "not known here")

    def place(self, key: str) -> str:
        """Where the policy of an iteration is, and how to get it."""
        path = path_of("policies", key)
        if path.is_dir():
            return "on disk"
        if key in self.sealed and not self.sealed[key].kept:
            return f"pruned when it was sealed; `rollbook seal --rebuild {key}` makes it again"
        return f"not on disk; {self.fetch(path.as_posix())}"

    def fetch(self, path: str) -> str:
        """What brings an output that is not on disk."""
        if not self.md5(path):
            return "`dvc repro` makes it"
        if Path(path).parent.name not in FOLDERS:
            return "`rollbook pull` brings it"
        return (
            "`dvc pull` brings it"
            if path in self._sealed_outputs
            else f"`dvc pull {path}` brings it"
        )


def _entries_in(text: str) -> dict[str, dict[str, str]] | None:
    """`iterations` of a params.yaml that is written as Rollbook writes it; None where a line is another.

    Importing a YAML parser takes longer than all the rest of reading a rollout.
    """
    found: dict[str, dict[str, str]] = {}
    inside = False
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line.startswith(" "):
            inside = line.rstrip() == SECTION
            if line.startswith(SECTION) and not inside:
                return None
        elif inside:
            entry = ENTRY.fullmatch(line)
            if entry is None:
                return None
            pairs = (pair.partition(": ") for pair in entry[2].split(", "))
            found[entry[1]] = {name.strip(): value.strip() for name, _, value in pairs}
    return found


def _parsed(text: str) -> Mapping[str, Any]:
    """The same by a parser; empty if it is no YAML: `rollbook check` says what is wrong with it."""
    from pipeline.yaml_text import parse_yaml

    try:
        found = parse_yaml(text, str(PARAMS_FILE)).get("iterations")
    except ConfigError:
        return {}
    return found if isinstance(found, Mapping) else {}
