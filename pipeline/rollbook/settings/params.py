"""Reads and rewrites params.yaml: recipes resolved (`extends`), all problems in one report."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollbook.core.atomic import replacing
from rollbook.core.component import problems_of
from rollbook.core.errors import ConfigError, Problem, damaged_text, nearest
from rollbook.core.ids import BASE_KEY, ITERATION_KEY, PARAMS_FILE
from rollbook.core.yaml import read_yaml
from rollbook.settings.config import Params
from rollbook.settings.sealed import SealedIteration, read_sealed


def read_params(path: Path = PARAMS_FILE) -> Params:
    """Reads and validates params.yaml, and the sealed iterations of its project.

    Raises:
        ConfigError: with every problem found, each with its place, value and nearest valid name.
    """
    return parse_params(read_yaml(path), str(path), read_sealed(path.parent))


def read_text(path: Path = PARAMS_FILE) -> str:
    """The text of the file, whatever its line ends, with `\\n`.

    Raises:
        ConfigError: if it is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged_text(path, str(error)) from None


def write_text(text: str, path: Path = PARAMS_FILE) -> None:
    """Puts a text in the place of the file's in one step; its line ends and mode stay, and a link stays a link.

    Raises:
        ConfigError: if the file is not writable.
    """
    target = path.resolve()
    if not os.access(target, os.W_OK):
        raise ConfigError([Problem("", "is not writable")], str(path))
    ends = "\r\n" if b"\r\n" in target.read_bytes() else "\n"
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8", newline=ends)
        temporary.chmod(target.stat().st_mode)


def parse_params(
    raw: Mapping[str, Any],
    source: str = "params.yaml",
    sealed: Mapping[str, SealedIteration] | None = None,
) -> Params:
    """Validates the content of params.yaml beside sealed iterations; see `read_params`."""
    sealed = sealed or {}
    recipes, problems = resolve_recipes(raw.get("recipes"))
    params: Params | None = None
    try:
        params = Params.model_validate({**raw, "recipes": recipes})
    except ValidationError as error:
        problems += _without_inherited(problems_of(error), raw.get("recipes"))
    named = raw["recipes"] if isinstance(raw.get("recipes"), Mapping) else {}
    problems += _graph_problems(raw.get("iterations"), named, raw.get("rescores"), sealed)
    if params is not None and not problems:
        problems += _adapter_problems(params.with_sealed(sealed))
    if problems or params is None:
        raise ConfigError(sorted(set(problems)), source)
    return params.with_sealed(sealed) if sealed else params


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge: mappings are merged key by key, everything else is replaced.

    A component given with another `name` (or `path`) replaces the inherited one, since its options belong to it.
    """
    merged = dict(base)
    for key, value in change.items():
        inherited = merged.get(key)
        if isinstance(inherited, Mapping) and isinstance(value, Mapping):
            other_component = any(
                mark in value and value[mark] != inherited.get(mark) for mark in ("name", "path")
            )
            merged[key] = dict(value) if other_component else merge(inherited, value)
        else:
            merged[key] = value
    return merged


def resolve_recipes(raw: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Applies `extends` to every recipe. Returns what could be resolved, and the problems."""
    if not isinstance(raw, Mapping):
        return {}, [] if raw is None else [
            Problem("recipes", f"must be a mapping of recipes, is {type(raw).__name__}")
        ]
    resolved: dict[str, Any] = {}
    problems: list[Problem] = []

    def resolve(name: str, path: tuple[str, ...]) -> Any:
        recipe = raw[name]
        if not isinstance(recipe, Mapping) or "extends" not in recipe:
            return recipe
        parent, where = recipe["extends"], f"recipes.{name}.extends"
        own = {key: value for key, value in recipe.items() if key != "extends"}
        if not isinstance(parent, str) or parent not in raw:
            problems.append(
                Problem(where, f"there is no recipe {parent!r}; {nearest(parent, raw)}")
            )
        elif parent in path:
            problems.append(
                Problem(
                    where, f"recipes extend each other in a circle: {' → '.join([*path, parent])}"
                )
            )
        elif isinstance(base := resolve(parent, (*path, parent)), Mapping):
            return merge(base, own)
        return None

    for name in raw:
        recipe = resolve(name, (name,))
        if recipe is not None or "extends" not in (raw[name] or {}):
            resolved[name] = recipe
    return resolved, problems


def _without_inherited(problems: list[Problem], recipes: Any) -> list[Problem]:
    """Drops a derived recipe's copy of a problem that stands in the recipe it extends."""
    kept = []
    for problem in problems:
        section, _, rest = problem.where.partition(".")
        name, _, place = rest.partition(".")
        if (
            section == "recipes"
            and isinstance(recipes, Mapping)
            and isinstance(recipes.get(name), Mapping)
        ):
            own, parent = recipes[name], recipes[name].get("extends")
            copied = any(
                p.where == f"recipes.{parent}.{place}" and p.what == problem.what for p in problems
            )
            if copied and parent != name and not _has(own, place):
                continue
        kept.append(problem)
    return kept


def _has(tree: Any, place: str) -> bool:
    for part in place.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return False
        tree = tree[part]
    return True


def _graph_problems(
    iterations: Any,
    recipes: Mapping[str, Any],
    rescores: Any,
    sealed: Mapping[str, SealedIteration],
) -> list[Problem]:
    """Everything about how iterations, recipes and re-scores refer to each other."""
    problems = [*_rescore_problems(rescores, recipes)]
    if isinstance(iterations, Mapping):
        links = {**{key: {"previous": item.previous} for key, item in sealed.items()}, **iterations}
        for key, item in iterations.items():
            problems += _key_problems(key, sealed)
            if isinstance(item, Mapping):
                problems += _pruned_problems(key, item, sealed)
                problems += _reference_problems(key, item, links, recipes)
    return problems


def _rescore_problems(rescores: Any, recipes: Mapping[str, Any]) -> Iterator[Problem]:
    """Re-scores of recipes that are not there."""
    for name, rescore in rescores.items() if isinstance(rescores, Mapping) else ():
        recipe = rescore.get("recipe") if isinstance(rescore, Mapping) else None
        if recipe is not None and not _names(recipe, recipes):
            what = f"there is no recipe {recipe!r}; {nearest(recipe, recipes)}"
            yield Problem(f"rescores.{name}.recipe", what)


def _key_problems(key: Any, sealed: Mapping[str, SealedIteration]) -> Iterator[Problem]:
    """Keys that are none, that of the base policy, and those of sealed iterations."""
    where = f"iterations.{key}"
    if not isinstance(key, str) or not ITERATION_KEY.fullmatch(key):
        what = f"an iteration's key is letters and four digits, such as i0001 (got {key!r})"
        yield Problem(where, what)
    elif key == BASE_KEY:
        yield Problem(where, f"{BASE_KEY} is the base policy; iterations start at i0001")
    if key in sealed:
        part = sealed[key].part
        what = f"is sealed (sealed/{part}.json); if sealing was cut off, `rollbook seal {part}` goes on with it"
        yield Problem(where, f"{what}; if not, take it out of iterations")


def _pruned_problems(
    key: Any, item: Mapping[str, Any], sealed: Mapping[str, SealedIteration]
) -> Iterator[Problem]:
    """Policies that an iteration needs and that sealing has pruned."""
    for name in ("previous", "reference"):
        policy = item.get(name)
        if isinstance(policy, str) and policy in sealed and not sealed[policy].kept:
            what = f"the policy of {policy} was pruned when {policy} was sealed"
            mend = f"`rollbook seal --rebuild {policy}` makes it again"
            yield Problem(f"iterations.{key}.{name}", f"{what}; {mend}")


def _reference_problems(
    key: Any, item: Mapping[str, Any], links: Mapping[str, Any], recipes: Mapping[str, Any]
) -> Iterator[Problem]:
    """A predecessor, a reference policy or a recipe that is not there, and iterations in a circle."""
    where, known, ancestors = f"iterations.{key}", [BASE_KEY, *links], _ancestors(key, links)
    previous, recipe, reference = (item.get(name) for name in ("previous", "recipe", "reference"))
    if previous is not None and not _names(previous, known):
        what = f"there is no iteration {previous!r}; {nearest(previous, known)}"
        yield Problem(f"{where}.previous", what)
    elif key in ancestors:
        circle = " → ".join([key, *ancestors[: ancestors.index(key) + 1]])
        yield Problem(f"{where}.previous", f"iterations follow each other in a circle: {circle}")
    elif reference is not None and not _names(reference, (*ancestors, BASE_KEY)):
        near = nearest(reference, {*ancestors, BASE_KEY})
        what = f"{reference!r} is not an iteration before {key}; {near}"
        yield Problem(f"{where}.reference", what)
    if recipe is not None and not _names(recipe, recipes):
        yield Problem(
            f"{where}.recipe", f"there is no recipe {recipe!r}; {nearest(recipe, recipes)}"
        )


def _adapter_problems(params: Params) -> list[Problem]:
    """Adapters stand on the base policy: a chain trains one from its first iteration to its last, or none at all."""
    problems = []
    for key, item in params.iterations.items():
        if item.previous == BASE_KEY:
            continue
        own, before = (params.recipe_of(each).update_policy.lora for each in (key, item.previous))
        if own == before:
            continue
        if before is None:
            what = f"trains an adapter, which begins on {BASE_KEY}, and {item.previous} has trained all weights"
        elif own is None:
            what = f"trains all weights, and {item.previous} is an adapter on {BASE_KEY}"
        else:
            what = f"has another `lora` than {item.previous}, and an adapter keeps its shape"
        problems.append(
            Problem(
                f"iterations.{key}.recipe",
                f"{item.recipe!r} {what}; follow {BASE_KEY} instead, or go on in a new project from the merged policy: "
                f"`rollbook export {item.previous} DIR`, then policy.base: {{name: pretrained, model: DIR}}",
            )
        )
    return problems


def _names(value: Any, known: Container[str]) -> bool:
    return isinstance(value, str) and value in known


def _ancestors(key: str, iterations: Mapping[str, Any]) -> list[str]:
    """Predecessors of `key`, nearest first, stopping at the base, at a hole, or when they repeat."""
    found: list[str] = []
    while isinstance(item := iterations.get(key), Mapping):
        key = str(item.get("previous"))
        if key in found or key == "None":
            return found
        found.append(key)
    return found
