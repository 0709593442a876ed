"""Iterations that `rollbook seal` took out of params.yaml: what they were, and which of their policies are left.

Three files with one name, `sealed/<first>-<last>`, all in git:

.json   what the iterations were: entries of params.yaml, recipes with defaults filled in, digests of the plan, and
        which policies were pruned
.yaml   their entries of dvc.lock and rescores/dvc.lock as they were: commands, md5s of everything read and made
.dvc    what DVC goes on keeping: their outputs, less the pruned policies; without it the other two count for nothing
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollbook.core.component import problems_of
from rollbook.core.errors import ConfigError, Problem
from rollbook.core.ids import SEALED_FOLDER as FOLDER
from rollbook.core.ids import order_of
from rollbook.settings.recipe import IterationSettings, Recipe
from rollbook.settings.recipe_sections import PreparePrompts
from rollbook.tables.schemas.versions import newest, refusal, upgrade_json

VERSION = newest("sealed")


@dataclass(frozen=True)
class SealedRecipe:
    """A recipe as it stood, read only when something asks for it: its components may be gone by now.

    Attributes:
        name: in params.yaml.
        settings: `extends` resolved and defaults filled in, as JSON values.
        source: the file it was read from, for errors.
    """

    name: str
    settings: Mapping[str, Any]
    source: str

    @cached_property
    def resolved(self) -> Recipe:
        """The recipe.

        Raises:
            ConfigError: if this Rollbook cannot read it any more.
        """
        try:
            return Recipe.model_validate(self.settings)
        except ValidationError as error:
            raise ConfigError(problems_of(error, f"recipes.{self.name}"), self.source) from None

    @cached_property
    def prompts_drawn(self) -> int:
        """Prompts that an iteration under this recipe took from the data."""
        return PreparePrompts.model_validate(self.settings["prepare_prompts"]).prompts_drawn


class SealedIteration(IterationSettings):
    """A finished iteration that left `iterations` of params.yaml.

    Attributes:
        part: name of its files in `sealed/`.
        then: its recipe as it stood.
        digests: of the plan, by stage.
        run: seed, data and base policy of the run it is part of.
        kept: whether its policy, optimizer state and critic are still there.
    """

    part: str
    then: SealedRecipe
    digests: Mapping[str, str]
    run: Mapping[str, Any]
    kept: bool


def files_of(part: str, root: Path = Path()) -> tuple[Path, Path, Path]:
    """Definitions (.json), lock entries (.yaml) and outputs (.dvc) of a sealed part."""
    folder = root / FOLDER
    return folder / f"{part}.json", folder / f"{part}.yaml", folder / f"{part}.dvc"


def parts(root: Path = Path()) -> list[str]:
    """Names of all sealed parts of a project."""
    return sorted(file.stem for file in (root / FOLDER).glob("*.dvc"))


def read_part(part: str, root: Path = Path()) -> dict[str, Any]:
    """The definitions of a sealed part, older versions upgraded.

    Raises:
        ConfigError: if the file is missing, damaged, or of a version that this Rollbook does not read.
    """
    file = files_of(part, root)[0]
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version = content["version"]
    except (OSError, ValueError, LookupError, TypeError):
        what = f"is missing or damaged, and says what sealed iterations were; `git checkout {file}` brings it back"
        raise ConfigError([Problem("", what)], str(file)) from None
    if refused := refusal("sealed", version):
        raise ConfigError([Problem("", f"is {'; '.join(refused)}")], str(file))
    return upgrade_json(dict(content), "sealed", version)


def read_sealed(root: Path = Path()) -> dict[str, SealedIteration]:
    """All sealed iterations of a project, by number, so that each stands behind those it follows.

    Raises:
        ConfigError: if a file in `sealed/` is missing or damaged.
    """
    found: dict[str, SealedIteration] = {}
    for part in parts(root):
        content, source = read_part(part, root), str(files_of(part, root)[0])
        recipes = {
            name: SealedRecipe(name, settings, source)
            for name, settings in content["recipes"].items()
        }
        for key, item in content["iterations"].items():
            found[key] = SealedIteration(
                **item,
                part=part,
                then=recipes[item["recipe"]],
                digests=content["plan"][key],
                run=content["run"],
                kept=key not in content["pruned"],
            )
    return {key: found[key] for key in sorted(found, key=order_of)}
