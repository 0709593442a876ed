"""Finished iterations as chains of policies: what MLflow shows of a run.

Only results that belong together count, see `rollbook.project.run.currency.Stored`. MLflow's runs are found again by
the content hashes made here: what goes into them must stay as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

from rollbook.core.ids import BASE_KEY
from rollbook.project.plan import load_stage
from rollbook.project.plan_file import ITERATION_STAGES, ONCE_STAGES
from rollbook.project.run.currency import Stored
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.run import Run
from rollbook.tables.run_info import Environment, RunInfo

Metrics = Mapping[str, float | None]
"""Numbers by name; None where the number is not finite."""


@dataclass(frozen=True)
class FinishedIteration:
    """One finished iteration.

    Attributes:
        iteration: which.
        number: place in the chain, from 1; the step of every curve.
    """

    iteration: Iteration
    number: int

    @property
    def key(self) -> str:
        """Of the iteration."""
        return self.iteration.key

    @property
    def previous(self) -> str:
        """Key of the iteration whose policy it starts from."""
        return self.iteration.previous

    @property
    def recipe(self) -> str:
        """Name of its recipe in params.yaml."""
        return self.iteration.configured_recipe_name

    @cached_property
    def infos(self) -> Mapping[str, RunInfo]:
        """run_info by stage."""
        return _infos(self.iteration, ITERATION_STAGES)

    @cached_property
    def content(self) -> str:
        """Hash of everything that the iteration made outside run_info."""
        made = {stage: info.outputs for stage, info in self.infos.items()}
        return hash_of([self.key, made, _metrics(self.iteration, ITERATION_STAGES)])

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics of all its stages."""
        return merged(_metrics(self.iteration, ITERATION_STAGES))

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """What its stages ran with, defaults filled in, under the names of params.yaml."""
        return settings_by_place(self.infos)

    @cached_property
    def finished_ms(self) -> int:
        """When its last stage ended, milliseconds since 1970."""
        return max(info.finished_ms for info in self.infos.values())

    @cached_property
    def started_ms(self) -> int:
        """When its first stage began."""
        return min(info.started_ms for info in self.infos.values())

    @property
    def environment(self) -> Environment:
        """Packages, host and repository that the policy was made with."""
        return self.infos["update_policy"].environment

    @cached_property
    def costs(self) -> Metrics:
        """Seconds, memory and rates of its stages: they vary from run to run, so they are no part of `content`."""
        found: dict[str, float | None] = {}
        for stage, info in self.infos.items():
            found[f"seconds/{stage}"] = info.total_seconds
            found[f"peak_memory_mb/{stage}"] = info.peak_memory_mb
            found |= {
                f"{bar.rate_unit}_per_second/{stage}": bar.per_second for bar in info.progress
            }
        return found


@dataclass(frozen=True)
class FinishedChain:
    """A base policy and the iterations that follow each other from it, as far as they are finished.

    Attributes:
        origin: hash of seed, data and base policy.
        seed: of the run.
        base: metrics of the data, the base policy and its evaluation; empty until it is evaluated.
        settings: of the data and the base policy.
        tip: key of the last iteration configured, finished or not.
        steps: its finished iterations, oldest first.
    """

    origin: str
    seed: int
    base: Metrics
    settings: Mapping[str, Any]
    tip: str
    steps: tuple[FinishedIteration, ...]

    @cached_property
    def contents(self) -> dict[str, str]:
        """Content hash of every step by key, in order."""
        return {step.key: step.content for step in self.steps}


def read_chains(run: Run) -> list[FinishedChain]:
    """Chains of a run with the iterations of them that are finished and belong together, in the order of params.yaml,
    sealed ones first.

    A chain of which nothing is finished is left out.

    Raises:
        ConfigError: if params.yaml cannot be read.
        ArtifactError: if metrics of a step are damaged.
    """
    stored, first = Stored(run), run.iteration(BASE_KEY)
    if not all(stored.holds(name, BASE_KEY) for name in ONCE_STAGES):
        return []
    infos, base = _infos(first, ONCE_STAGES), {}
    made = {name: info.outputs for name, info in infos.items()}
    if stored.holds("evaluate_policy", BASE_KEY):
        base = merged(_metrics(first, (*ONCE_STAGES, "evaluate_policy")))

    def is_finished(step: FinishedIteration) -> bool:
        return all(stored.holds(name, step.key) for name in ITERATION_STAGES)

    known: dict[str, FinishedIteration] = {}
    chains = []
    for chain in run.chains:
        numbered = enumerate(chain.iterations, start=1)
        every = (known.setdefault(each.key, FinishedIteration(each, n)) for n, each in numbered)
        if steps := tuple(takewhile(is_finished, every)):
            # what it ran with; params.yaml may have been edited since
            seed = int(steps[0].settings.get("seed", run.params.seed))
            origin, settings = hash_of([seed, made]), settings_by_place(infos)
            chains.append(FinishedChain(origin, seed, base, settings, chain.tip, steps))
    return chains


def settings_by_place(infos: Mapping[str, RunInfo]) -> dict[str, Any]:
    """Settings of steps by the place in params.yaml they were read from, `recipe.` left out.

    The code may have gained settings since; the steps ran without those.
    """
    return {
        place: info.settings[name]
        for stage, info in infos.items()
        for name, place in load_stage(stage).settings.places().items()
        if name in info.settings
    }


def merged(by_stage: Mapping[str, Metrics]) -> dict[str, float | None]:
    """Metrics of several stages as one mapping; a name that two stages use gets the stage's name before it."""
    uses = Counter(name for metrics in by_stage.values() for name in metrics)
    return {
        name if uses[name] == 1 else f"{stage}/{name}": value
        for stage, metrics in by_stage.items()
        for name, value in metrics.items()
    }


def hash_of(content: Any) -> str:
    """16 hex digits that name JSON content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _infos(iteration: Iteration, stages: Iterable[str]) -> dict[str, RunInfo]:
    return {name: info for name in stages if (info := iteration.info(name))}


def _metrics(iteration: Iteration, stages: Iterable[str]) -> dict[str, Metrics]:
    return {name: iteration.run.metrics(name, iteration.key) for name in stages}
