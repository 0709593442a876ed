"""The files of a run: params.yaml, sealed/, dvc.lock, run_info, metrics, tables and policies, each read once.

`Run` builds on it; nothing else that looks at a run opens these files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.core.errors import ArtifactError, ConfigError
from rollbook.core.ids import BASE_KEY, PARAMS_FILE, SEALED_FOLDER, order_of
from rollbook.core.yaml import read_yaml
from rollbook.dvc.cache import cached_path
from rollbook.dvc.guard import current_entries
from rollbook.dvc.lock import LOCK_FILE, RESCORES_LOCK_FILE, Entry, made_by, read_entries
from rollbook.project.plan_file import RESCORE_STAGE
from rollbook.project.run.policies import PolicyLink, recorded_digest
from rollbook.project.run.stored import StoredTable
from rollbook.tables.artifacts import (
    FOLDERS,
    ROOT,
    Facts,
    keys_of,
    path_of,
    read_facts,
    read_metrics,
)
from rollbook.tables.run_info import SHOWN_DIGITS, RunInfo, read_run_info

if TYPE_CHECKING:
    from rollbook.settings.config import Params
    from rollbook.settings.sealed import SealedIteration

# `rollbook.settings` is imported where it is used: most looks at a run do without the models of params.yaml.

WORKSPACE = "workspace"
"""The name of what lies in the project's folder, committed or not."""
OPEN_TABLES = 100
"""Tables kept open, the first opened is given up first: each takes a file descriptor, and macOS gives a process 256."""


class Store:
    """The files of a run: those of a project's folder, or of the project at another revision.

    Attributes:
        root: folder of params.yaml, dvc.lock and sealed/. Of another revision it is a temporary folder.
        name: as it was asked for; `workspace` for the project's folder.
        commit: full hash; empty for the workspace.
    """

    def __init__(
        self, root: Path = Path(), name: str = WORKSPACE, commit: str = "", holder: object = None
    ) -> None:
        self.root, self.name, self.commit = root, name, commit
        self._holder = holder  # removes the temporary folder when it goes
        self._infos: dict[tuple[str, str], RunInfo | None] = {}
        self._metrics: dict[tuple[str, str], Mapping[str, float | None]] = {}
        self._tables: dict[tuple[str, str], StoredTable] = {}

    @property
    def is_workspace(self) -> bool:
        """Whether it is what lies in the project's folder, and no other revision."""
        return not self.commit

    @property
    def shown(self) -> str:
        """The name, and of a commit the first digits of its hash."""
        short = self.commit[:SHOWN_DIGITS]
        return self.name if not short or self.name.startswith(short) else f"{self.name} ({short})"

    # --- what was asked for: params.yaml and sealed/ ----------------------------------------------

    @cached_property
    def params(self) -> Params:
        """params.yaml with the sealed iterations.

        Raises:
            ConfigError: if today's Rollbook cannot read it.
        """
        from rollbook.settings.params import read_params

        try:
            return read_params(self.root / PARAMS_FILE)
        except ConfigError as error:
            if self.is_workspace:
                raise
            raise ConfigError(error.problems, f"{PARAMS_FILE} of {self.name}") from None

    @cached_property
    def sealed(self) -> Mapping[str, SealedIteration]:
        """Sealed iterations by key.

        Raises:
            ConfigError: if a file in sealed/ is damaged.
        """
        if not self._has_sealed:
            return {}
        from rollbook.settings.sealed import read_sealed

        return read_sealed(self.root)

    @property
    def _has_sealed(self) -> bool:
        return any((self.root / SEALED_FOLDER).glob("*.dvc"))

    @cached_property
    def configured(self) -> Mapping[str, Mapping[str, Any]]:
        """Entries of `iterations` as params.yaml has them, not validated; none where it cannot be read."""
        try:
            found = read_yaml(self.root / PARAMS_FILE).get("iterations")
        except ConfigError:  # `rollbook check` names the problem
            return {}
        entries = found.items() if isinstance(found, Mapping) else ()
        return {str(key): item for key, item in entries if isinstance(item, Mapping)}

    @cached_property
    def keys(self) -> list[str]:
        """Keys of sealed iterations and of those of params.yaml, in its order; without the base policy's."""
        return list(dict.fromkeys([*self.sealed, *self.configured]))

    @cached_property
    def made_keys(self) -> list[str]:
        """Keys of iterations, the base policy's among them, that have made a policy or are sealed."""
        made = {
            *self.keys_with("run_info/update_policy"),
            *self.keys_with("run_info/init_policy"),
            *self.keys_with("policies"),
        }
        return sorted({*made, *self.sealed}, key=order_of)

    def configured_as(self, key: str, name: str) -> str:
        """`previous`, `recipe` or `reference` of an iteration; empty where it is not known."""
        if key in self.sealed:
            return str(getattr(self.sealed[key], name))
        return str(self.configured.get(key, {}).get(name) or "")

    # --- steps ------------------------------------------------------------------------------------

    def info(self, stage: str, key: str, rescore: str = "") -> RunInfo | None:
        """What a step recorded of its run; None where it is not on disk.

        Args:
            stage: name of its program.
            key: of the iteration.
            rescore: name of the re-score that it is part of.

        Raises:
            ArtifactError: if it is damaged.
        """
        name = f"{stage}/{rescore}" if rescore else stage
        if (name, key) not in self._infos:
            path = self.place(f"run_info/{name}", key)
            found = read_run_info(path) if path.exists() else None
            # Older ones name no re-score.
            self._infos[name, key] = replace(found, rescore=rescore) if found and rescore else found
        return self._infos[name, key]

    def needed_info(self, stage: str, key: str, rescore: str = "") -> RunInfo:
        """The same of a step that must be on disk.

        Raises:
            ArtifactError: if it is not there, or damaged.
        """
        name = f"{stage}/{rescore}" if rescore else stage
        return self.info(stage, key, rescore) or read_run_info(self.place(f"run_info/{name}", key))

    def infos(self, stage: str, rescore: str = "") -> list[RunInfo]:
        """run_info of all steps of a stage that are on disk, in the order of iterations."""
        name = f"{stage}/{rescore}" if rescore else stage
        found = (self.info(stage, key, rescore) for key in self.keys_with(f"run_info/{name}"))
        return [info for info in found if info is not None]

    def all_infos(self) -> Iterator[RunInfo]:
        """run_info of every step on disk: training by stage, then re-scores by name."""
        stages = sorted(folder.name for folder in (self.root / ROOT / "run_info").glob("*/"))
        for stage in stages:
            if stage != RESCORE_STAGE:
                yield from self.infos(stage)
        for name in self.rescore_names:
            yield from self.infos(RESCORE_STAGE, name)

    @cached_property
    def rescore_names(self) -> list[str]:
        """Names of the re-scores that have left run_info on disk."""
        folder = self.root / ROOT / "run_info" / RESCORE_STAGE
        return sorted(each.name for each in folder.glob("*/"))

    def metrics(self, stage: str, key: str, rescore: str = "") -> Mapping[str, float | None]:
        """Numbers of a step by name, None where one is not finite; empty where they are not on disk. See `info`.

        Raises:
            ArtifactError: if the file is damaged, or holds something else than numbers.
        """
        kind = f"rescores/{rescore}" if rescore else f"metrics/{stage}"
        if (kind, key) not in self._metrics:
            path = self.place(kind, key).with_suffix(".json")
            self._metrics[kind, key] = read_metrics(path) if path.exists() else {}
        return self._metrics[kind, key]

    def has_metrics(self, stage: str, key: str) -> bool:
        """Whether the numbers of a step are on disk."""
        return self.place(f"metrics/{stage}", key).exists()

    def needed_metrics(self, stage: str, key: str) -> Mapping[str, float | None]:
        """Numbers of a step that must be on disk; else as `metrics`.

        Raises:
            ArtifactError: if they are not there, or damaged.
        """
        return self.metrics(stage, key) or read_metrics(self.place(f"metrics/{stage}", key))

    # --- what DVC recorded ------------------------------------------------------------------------

    @cached_property
    def entries(self) -> list[Entry]:
        """Finished steps of dvc.lock; while DVC is writing it, as they stood before.

        Raises:
            ConfigError: if it cannot be read.
        """
        return current_entries() if self.is_here else read_entries(self.root / LOCK_FILE)

    @cached_property
    def rescore_entries(self) -> list[Entry]:
        """Finished steps of rescores/dvc.lock."""
        return read_entries(self.root / RESCORES_LOCK_FILE)

    @cached_property
    def sealed_parts(self) -> dict[str, list[Entry]]:
        """Finished steps of every sealed part, as they were when it was sealed."""
        if not self._has_sealed:
            return {}
        from rollbook.settings.sealed import files_of, parts

        return {part: read_entries(files_of(part, self.root)[1]) for part in parts(self.root)}

    @cached_property
    def sealed_outputs(self) -> Mapping[str, str]:
        """Md5 of every output of sealed iterations by path, the pruned ones too."""
        return made_by(entry for entries in self.sealed_parts.values() for entry in entries)

    @cached_property
    def md5s(self) -> Mapping[str, str]:
        """DVC's md5 of every output by path, of sealed iterations and re-scores too; of a folder it ends in `.dir`."""
        return {
            **self.sealed_outputs,
            **made_by(self.entries),
            **made_by(self.rescore_entries),
        }

    def md5(self, kind: str, key: str) -> str:
        """DVC's md5 of an artifact; empty where no lock file has it."""
        return self.md5s.get(path_of(kind, key).as_posix(), "")

    @property
    def is_here(self) -> bool:
        """Whether it is the workspace of the current folder."""
        return self.is_workspace and self.root.resolve() == Path.cwd()

    # --- artifacts --------------------------------------------------------------------------------

    def path(self, kind: str, key: str) -> Path:
        """A file or folder with this artifact: as it lies in the workspace, else the object in DVC's cache.

        Of a folder that is not in the workspace it is the listing, see `rollbook.dvc.cache`.

        Raises:
            ArtifactError: if it was not made there or is not on this machine.
        """
        path = path_of(kind, key)
        if self.is_workspace and (self.root / path).exists():
            return self.root / path
        md5 = self.md5s.get(path.as_posix())
        if md5 is None and self.is_workspace:
            read_facts(self.root / path)  # raises, with the command that makes it
        if md5 is None:
            raise ArtifactError(
                f"{path}: {self.shown} has no such output",
                "`git log dvc.lock` shows which commits have",
            )
        found = cached_path(md5)
        if not found.exists():
            raise ArtifactError(
                f"{path}: the version of {self.shown} (md5 {md5}) is not in DVC's cache",
                self._fetch_command(path),
            )
        return found

    def has(self, kind: str, key: str) -> bool:
        """Whether an artifact lies in the workspace."""
        return self.is_workspace and self.place(kind, key).exists()

    def keys_with(self, kind: str) -> list[str]:
        """Keys of all artifacts of a kind in the workspace, in the order of iterations."""
        return keys_of(kind, self.root) if self.is_workspace else []

    def table(self, kind: str, key: str) -> StoredTable:
        """A stored table, opened for a look; see `rollbook.project.run.stored`.

        Args:
            kind: of the table, such as `rollouts` or `rescores/<name>`.
            key: of the iteration, or `train` and `evaluation` for data.

        Raises:
            ArtifactError: if it is missing, damaged, or says that it is another one.
        """
        if (kind, key) not in self._tables:
            file = self.path(kind, key)
            if len(self._tables) == OPEN_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[kind, key] = StoredTable(kind, key, self.place(kind, key), file)
        return self._tables[kind, key]

    def find_table(self, kind: str, key: str) -> StoredTable | None:
        """The same; None where it does not lie in the workspace."""
        return self.table(kind, key) if self.has(kind, key) else None

    def facts(self, kind: str, key: str) -> Facts | None:
        """What an artifact in the workspace says about itself, be it of another iteration; None where there is none.

        Raises:
            ArtifactError: if it is damaged, or Rollbook did not write it.
        """
        return read_facts(self.place(kind, key)) if self.has(kind, key) else None

    # --- policies ---------------------------------------------------------------------------------

    def policy_digest(self, key: str) -> str:
        """Digest of the policy that an iteration made, by run_info; empty where it is not known."""
        info = self.info("init_policy" if key == BASE_KEY else "update_policy", key)
        return info.outputs.get("policies", "") if info else ""

    def maker(self, digest: str, near: str = "") -> str:
        """The iteration that made a policy; empty where it is not known.

        Args:
            digest: of the policy.
            near: the iteration that it was read in: its predecessor is looked at first.
        """
        first = self.configured_as(near, "previous") if near else ""
        if first and self.policy_digest(first) == digest:
            return first
        return next((key for key in self.made_keys if self.policy_digest(key) == digest), "")

    def policy_link(self, digest: str, near: str = "", key: str = "") -> PolicyLink:
        """A policy by its digest, and where it is."""
        made_in = key or self.maker(digest, near)
        return PolicyLink(
            made_in, digest, self.policy_place(made_in) if made_in else "not known here"
        )

    def policy_place(self, key: str) -> str:
        """Where the policy of an iteration is, and how to get it."""
        if self.has("policies", key):
            return "on disk"
        if key in self.sealed and not self.sealed[key].kept:
            return f"pruned when it was sealed; `rollbook seal --rebuild {key}` makes it again"
        return f"not on disk; {self.fetch_hint('policies', key)}"

    def fetch_hint(self, kind: str, key: str) -> str:
        """What brings an artifact that is not on disk."""
        path = path_of(kind, key).as_posix()
        if not self.md5s.get(path):
            return "`dvc repro` makes it"
        if kind not in FOLDERS:
            return "`rollbook pull` brings it"
        return (
            "`dvc pull` brings it"
            if path in self.sealed_outputs
            else f"`dvc pull {path}` brings it"
        )

    def policies_on_disk(self) -> dict[str, str]:
        """Digest of every policy folder in the workspace by key."""
        return {
            key: recorded_digest(self.place("policies", key)) for key in self.keys_with("policies")
        }

    # ----------------------------------------------------------------------------------------------

    def place(self, kind: str, key: str) -> Path:
        """Where an artifact lies in the workspace."""
        return (self.root if self.is_workspace else Path()) / path_of(kind, key)

    def _fetch_command(self, path: Path) -> str:
        """What brings it onto this machine."""
        if self.is_workspace and path.parts[1] in FOLDERS:
            return f"`dvc pull {path}`"
        if self.is_workspace:
            return "`rollbook pull` gets what was made before, but policies"
        return f"`rollbook pull {self.name}` fetches what it has but policies"
