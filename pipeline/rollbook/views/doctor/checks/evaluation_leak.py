"""evaluation_leak: training prompts that are evaluation prompts, but for the way they are written.

`prepare_data` compares prompts up to white space and refuses equal ones (`data.on_overlap`). Here they are equal if
they are so in Unicode's compatible form, without case, white space around signs, and stops at the end.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import NonNegativeInt

from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check
from rollbook.views.doctor.finding import Change, Finding

SIGNS = re.compile(r"\s*([^\w\s])\s*")
STOPS = " .?!:;,"


class EvaluationLeak(Check):
    """Evaluation prompts that are trained on.

    Attributes:
        prompts: of an evaluation set that may be in the training data; one is one too many, for the set then says how
            well it was learned.
    """

    prompts: NonNegativeInt = 0

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        train, held_out = (run.run.find_table("data", part) for part in ("train", "evaluation"))
        if train is None or held_out is None:
            return
        known = {
            normalised(row["messages"]): row["prompt_id"]
            for row in train.all(["prompt_id", "messages"]).to_pylist()
        }
        twins: dict[str, list[tuple[str, str, str]]] = {}
        sizes: dict[str, int] = {}
        for row in held_out.all(["set", "prompt_id", "messages"]).to_pylist():
            sizes[row["set"]] = sizes.get(row["set"], 0) + 1
            if (twin := known.get(normalised(row["messages"]))) is not None:
                text = str(row["messages"][-1]["content"])
                twins.setdefault(row["set"], []).append((row["prompt_id"], twin, text))
        for name, found in twins.items():
            if len(found) <= self.prompts:
                continue
            share = len(found) / sizes[name]
            yield self.finding(
                "serious",
                run.keys,
                f"{len(found)} of {sizes[name]} prompts of {name} ({share:.0%}) are training prompts written otherwise",
                [
                    f"{name}: prompt {own} is prompt {twin} of the training data: {text[:60]!a}"
                    for own, twin, text in found[:4]
                ],
                "the same problems stand in both data sets, so the evaluation says how well they were learned by heart",
                Change(
                    f"data.evaluation.{name}",
                    _source(run, name),
                    "prompts of which none is trained on",
                ),
            )


def normalised(messages: Sequence[Mapping[str, Any]]) -> str:
    """A prompt without what makes no other problem of it; what a system message says is left out."""
    parts = []
    for message in messages:
        if message["role"] != "system":
            text = unicodedata.normalize("NFKC", message["content"]).casefold()
            parts.append(" ".join(SIGNS.sub(r"\1", text).split()).strip(STOPS))
    return "\0".join(parts)


def _source(run: ChainReading, name: str) -> str:
    source = run.params.data.evaluation.get(name)
    return source.name if source is not None else name
