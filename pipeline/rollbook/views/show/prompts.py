"""A prompt: as it was asked in one iteration, and over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from rollbook.core.errors import ArtifactError
from rollbook.core.ids import BASE_KEY, group_id_of, parts_of_group
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.run import Run
from rollbook.project.run.store import Store
from rollbook.project.run.stored import row_of
from rollbook.rl.evaluation import RIGHT_FROM
from rollbook.views.show.answers import AnswerGroup, answer_of
from rollbook.views.show.decoding import TokenDecoder
from rollbook.views.show.facts import Answer, Occurrence, Piece, Prompt, PromptFacts
from rollbook.views.show.finding import DATA

OWN = ("iteration", "group_id", "prompt_id", "messages", "prompt", "prompt_token_ids")
DATA_OWN = ("prompt_id", "messages", "reference_answer")
FEW = ("rollout_id", "group_id", "prompt_id", "set", "greedy", "reward")
"""Columns that a count of right answers needs."""
ANSWER = ("text", "finish_reason", "completion_token_ids", "error")
"""Those that an answer needs besides."""


def prompt_of(iteration: Iteration, prompt_id: str, decoder: TokenDecoder | None) -> Prompt:
    """A prompt of training as an iteration asked it.

    Args:
        iteration: that asked it.
        prompt_id: of it.
        decoder: of its tokens; None: they are not shown.
    """
    table = iteration.find_table("prompts")
    row = row_of(table.where("prompt_id", prompt_id)) if table is not None else None
    if row is None:
        return in_data(iteration.run, prompt_id)[0]
    pieces: Sequence[Piece] = decoder.pieces(row["prompt_token_ids"]) if decoder else ()
    columns = {name: value for name, value in row.items() if name not in OWN}
    reference = columns.pop("reference_answer", None)
    return Prompt(prompt_id, row["messages"], reference, columns, row["prompt"], pieces)


def evaluation_prompt_of(run: Store, prompt_id: str, rendered: str) -> Prompt:
    """A prompt of an evaluation, which stores the rendered text but no ids."""
    found = in_data(run, prompt_id)[0]
    return Prompt(prompt_id, found.messages, found.reference_answer, found.columns, rendered)


def in_data(run: Store, prompt_id: str) -> tuple[Prompt, str]:
    """A prompt as it stands in the data, and where: `train`, `evaluation: <set>`, or nowhere."""
    for name in DATA:
        table = run.find_table("data", name)
        row = row_of(table.where("prompt_id", prompt_id)) if table is not None else None
        if row is not None:
            columns = {each: value for each, value in row.items() if each not in DATA_OWN}
            place = name if name == "train" else f"{name}: {row['set']}"
            return Prompt(prompt_id, row["messages"], row["reference_answer"], columns), place
    return Prompt(prompt_id, [], None, {}), ""


def prompt_facts(run: Run, prompt_id: str, over_time: bool) -> PromptFacts:
    """A prompt and every iteration that asked it.

    Args:
        run: that it is looked up in.
        prompt_id: of it.
        over_time: also one answer per iteration.
    """
    right = _right_column(run)
    asked = list(_asked(run, prompt_id))
    found = [_in_training(item, prompt_id, right, over_time) for item in asked]
    occurrences = [item for item in found if item is not None]
    prompt, place = in_data(run, prompt_id)
    if asked:
        prompt = prompt_of(asked[0], prompt_id, None)
    if not place.startswith("train"):
        for key in run.keys_with("evaluations"):
            occurrences += _in_evaluation(run.iteration(key), prompt_id, right, over_time)
    if not (occurrences or asked or place):
        raise ArtifactError(f"there is no prompt {prompt_id!r} in the tables on disk")
    missing = [
        f"rollouts of {item.key} are not on disk; {run.fetch_hint('rollouts', item.key)}"
        for item, occurrence in zip(asked, found, strict=True)
        if occurrence is None
    ]
    return PromptFacts(prompt, place, occurrences, right, over_time, missing)


def _asked(run: Run, prompt_id: str) -> Iterator[Iteration]:
    """Iterations whose prompts hold it."""
    for key in run.keys_with("prompts"):
        if run.table("prompts", key).places("prompt_id", prompt_id).masks:
            yield run.iteration(key)


def _right_column(run: Run) -> str:
    """The reward that evaluation judges by; empty where that is not known."""
    for key in (BASE_KEY, *run.made_keys):
        if settings := run.iteration(key).settings("evaluate_policy"):
            scorer: Mapping[str, Any] = settings.get("evaluate", {}).get("scorer", {})
            name = scorer.get("label") or scorer.get("name")
            return f"reward_{name}" if name else ""
    return ""


def _in_training(
    iteration: Iteration, prompt_id: str, right: str, over_time: bool
) -> Occurrence | None:
    group = AnswerGroup(group_id_of(iteration.key, prompt_id), iteration)
    rollouts, scores = iteration.find_table("rollouts"), iteration.find_table("scores")
    if rollouts is None:
        return None
    sampled = rollouts.where("group_id", group.id, ["rollout_id", "greedy"])
    ids = {row["rollout_id"] for row in sampled.to_pylist() if not row["greedy"]}
    rows: list[dict[str, Any]] = []
    if scores is not None:
        table = scores.where("group_id", group.id, ["rollout_id", "reward", right])
        rows = [row for row in table.to_pylist() if row["rollout_id"] in ids]
    advantages = iteration.find_table("advantages")
    signal = row_of(advantages.where("group_id", group.id, ["informative"])) if advantages else None
    return Occurrence(
        group_id=group.id,
        iteration=iteration.key,
        evaluation_set="",
        rollouts=len(ids),
        mean_reward=_mean([row["reward"] for row in rows]),
        right=_share_right(rows, right),
        informative=signal["informative"] if signal else None,
        answer=_answer_in(group) if over_time else None,
    )


def _answer_in(group: AnswerGroup) -> Answer | None:
    """The greedy one, else the first."""
    answers = group.answers
    return next((answer for answer in answers if answer.greedy), answers[0] if answers else None)


def _in_evaluation(
    iteration: Iteration, prompt_id: str, right: str, over_time: bool
) -> Iterator[Occurrence]:
    """One for every set that holds the prompt."""
    columns = [*FEW, *(ANSWER if over_time else ()), right]
    evaluations = iteration.table("evaluations")
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in evaluations.where("prompt_id", prompt_id, columns).to_pylist():
        by_group.setdefault(row["group_id"], []).append(row)
    for group_id, rows in by_group.items():
        sampled = [row for row in rows if not row["greedy"]]
        yield Occurrence(
            group_id=group_id,
            iteration=iteration.key,
            evaluation_set=parts_of_group(group_id).evaluation_set,
            rollouts=len(sampled),
            mean_reward=_mean([row["reward"] for row in sampled]),
            right=_share_right(sampled, right),
            informative=None,
            answer=answer_of(chosen, len(chosen["completion_token_ids"]), chosen)
            if over_time and (chosen := _one_of(rows))
            else None,
        )


def _one_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The greedy one, else the first."""
    return next((row for row in rows if row["greedy"]), rows[0] if rows else None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _share_right(rows: Sequence[Mapping[str, Any]], column: str) -> float | None:
    known = [float(row[column] >= RIGHT_FROM) for row in rows if row.get(column) is not None]
    return fmean(known) if known else None
