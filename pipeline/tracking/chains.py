"""Finished iterations as chains of policies: what MLflow is to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.config import Params
from pipeline.ids import BASE_KEY
from pipeline.plan_file import ONCE_STAGES
from pipeline.tracking.finished import Disk, Metrics, Step, hash_of, merged


@dataclass(frozen=True)
class Chain:
    """A base policy and the iterations that follow each other from it, as far as they are finished.

    Attributes:
        origin: hash of seed, data and base policy.
        seed: of the run.
        base: metrics of the data, the base policy and its evaluation; empty until it is evaluated.
        settings: of the data and the base policy.
        tip: key of the last iteration configured, finished or not.
    """

    origin: str
    seed: int
    base: Metrics
    settings: Mapping[str, Any]
    tip: str
    steps: tuple[Step, ...]

    @cached_property
    def contents(self) -> dict[str, str]:
        """Content hash of every step by key, in order."""
        return {step.key: step.content for step in self.steps}


def read_chains(params: Params) -> list[Chain]:
    """Chains of `params` with the iterations of them that are finished and current, in the order of params.yaml,
    sealed ones first.

    A chain of which nothing is finished is left out.
    """
    disk = Disk(params)
    if not all(disk.holds(name, BASE_KEY) for name in ONCE_STAGES):
        return []
    made = {name: disk.info(name, BASE_KEY)["outputs"] for name in ONCE_STAGES}
    settings = disk.settings(ONCE_STAGES, BASE_KEY)
    base: Metrics = {}
    if disk.holds("evaluate_policy", BASE_KEY):
        names = (*ONCE_STAGES, "evaluate_policy")
        base = merged({name: disk.metrics(name, BASE_KEY) for name in names})
    known: dict[str, Step | None] = {}
    every = params.every_iteration
    followed = {item.previous for item in every.values()}
    chains = []
    for tip in (key for key in every if key not in followed):
        if steps := _finished(tip, params, disk, known):
            # what it ran with; params.yaml may have been edited since
            seed = int(steps[0].settings.get("seed", params.seed))
            chains.append(Chain(hash_of([seed, made]), seed, base, settings, tip, tuple(steps)))
    return chains


def _finished(tip: str, params: Params, disk: Disk, known: dict[str, Step | None]) -> list[Step]:
    """Steps of the chain that ends at `tip`, up to the first that is not finished."""
    found: list[Step] = []
    for number, key in enumerate(params.chain(tip), start=1):
        if key not in known:
            known[key] = disk.step(key, number)
        step = known[key]
        if step is None:
            break
        found.append(step)
    return found
