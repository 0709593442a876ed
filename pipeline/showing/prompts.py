"""A prompt: as it was asked in one iteration, and over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from pipeline.artifacts import keys_of, path_of
from pipeline.errors import ArtifactError
from pipeline.evaluation import RIGHT_FROM
from pipeline.ids import BASE_KEY, group_id_of, parts_of_group
from pipeline.run.stored import row_of
from pipeline.showing.answers import Group, answer_of
from pipeline.showing.chain import Chain
from pipeline.showing.decoding import Decoder
from pipeline.showing.facts import Answer, Occurrence, Piece, Prompt, PromptFacts
from pipeline.showing.finding import DATA
from pipeline.showing.tables import Stored, stored

OWN = ("iteration", "group_id", "prompt_id", "messages", "prompt", "prompt_token_ids")
DATA_OWN = ("prompt_id", "messages", "reference_answer")
FEW = ("rollout_id", "group_id", "prompt_id", "set", "greedy", "reward")
"""Columns that a count of right answers needs."""
ANSWER = ("text", "finish_reason", "completion_token_ids", "error")
"""Those that an answer needs besides."""


def prompt_of(prompt_id: str, key: str, decoder: Decoder | None) -> Prompt:
    """A prompt of training as an iteration asked it.

    Args:
        prompt_id: of it.
        key: the iteration.
        decoder: of its tokens; None: they are not shown.
    """
    table = stored("prompts", key)
    row = row_of(table.where("prompt_id", prompt_id)) if table is not None else None
    if row is None:
        return in_data(prompt_id)[0]
    pieces: Sequence[Piece] = decoder.pieces(row["prompt_token_ids"]) if decoder else ()
    columns = {name: value for name, value in row.items() if name not in OWN}
    reference = columns.pop("reference_answer", None)
    return Prompt(prompt_id, row["messages"], reference, columns, row["prompt"], pieces)


def evaluation_prompt_of(prompt_id: str, rendered: str) -> Prompt:
    """A prompt of an evaluation, which stores the rendered text but no ids."""
    found = in_data(prompt_id)[0]
    return Prompt(prompt_id, found.messages, found.reference_answer, found.columns, rendered)


def in_data(prompt_id: str) -> tuple[Prompt, str]:
    """A prompt as it stands in the data, and where: `train`, `evaluation: <set>`, or nowhere."""
    for name in DATA:
        table = stored("data", name)
        row = row_of(table.where("prompt_id", prompt_id)) if table is not None else None
        if row is not None:
            columns = {each: value for each, value in row.items() if each not in DATA_OWN}
            place = name if name == "train" else f"{name}: {row['set']}"
            return Prompt(prompt_id, row["messages"], row["reference_answer"], columns), place
    return Prompt(prompt_id, [], None, {}), ""


def prompt_facts(prompt_id: str, chain: Chain, over_time: bool) -> PromptFacts:
    """A prompt and every iteration that asked it.

    Args:
        prompt_id: of it.
        chain: of the project.
        over_time: also one answer per iteration.
    """
    right = _right_column(chain)
    asked = list(_asked(prompt_id))
    found = [_in_training(prompt_id, key, right, over_time) for key in asked]
    occurrences = [item for item in found if item is not None]
    prompt, place = in_data(prompt_id)
    if asked:
        prompt = prompt_of(prompt_id, asked[0], None)
    if not place.startswith("train"):
        for key in keys_of("evaluations"):
            occurrences += _in_evaluation(prompt_id, key, right, over_time)
    if not (occurrences or asked or place):
        raise ArtifactError(f"there is no prompt {prompt_id!r} in the tables on disk")
    missing = [
        f"rollouts of {key} are not on disk; {chain.fetch(path_of('rollouts', key).as_posix())}"
        for key, item in zip(asked, found, strict=True)
        if item is None
    ]
    return PromptFacts(prompt, place, occurrences, right, over_time, missing)


def _asked(prompt_id: str) -> Iterator[str]:
    """Iterations whose prompts hold it."""
    for key in keys_of("prompts"):
        if Stored("prompts", key).where("prompt_id", prompt_id, ["prompt_id"]).num_rows:
            yield key


def _right_column(chain: Chain) -> str:
    """The reward that evaluation judges by; empty where that is not known."""
    for key in (BASE_KEY, *chain.keys):
        if settings := chain.settings("evaluate_policy", key):
            scorer: Mapping[str, Any] = settings.get("evaluate", {}).get("scorer", {})
            name = scorer.get("label") or scorer.get("name")
            return f"reward_{name}" if name else ""
    return ""


def _in_training(prompt_id: str, key: str, right: str, over_time: bool) -> Occurrence | None:
    group = Group(group_id_of(key, prompt_id), key)
    rollouts, scores = stored("rollouts", key), stored("scores", key)
    if rollouts is None:
        return None
    sampled = rollouts.where("group_id", group.id, ["rollout_id", "greedy"])
    ids = {row["rollout_id"] for row in sampled.to_pylist() if not row["greedy"]}
    rows: list[dict[str, Any]] = []
    if scores is not None:
        table = scores.where("group_id", group.id, ["rollout_id", "reward", right])
        rows = [row for row in table.to_pylist() if row["rollout_id"] in ids]
    advantages = stored("advantages", key)
    signal = row_of(advantages.where("group_id", group.id, ["informative"])) if advantages else None
    return Occurrence(
        group_id=group.id,
        iteration=key,
        evaluation_set="",
        rollouts=len(ids),
        mean_reward=_mean([row["reward"] for row in rows]),
        right=_share_right(rows, right),
        informative=signal["informative"] if signal else None,
        answer=_answer_in(group) if over_time else None,
    )


def _answer_in(group: Group) -> Answer | None:
    """The greedy one, else the first."""
    answers = group.answers
    return next((answer for answer in answers if answer.greedy), answers[0] if answers else None)


def _in_evaluation(prompt_id: str, key: str, right: str, over_time: bool) -> Iterator[Occurrence]:
    """One for every set that holds the prompt."""
    columns = [*FEW, *(ANSWER if over_time else ()), right]
    rows_found = Stored("evaluations", key).where("prompt_id", prompt_id, columns).to_pylist()
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in rows_found:
        by_group.setdefault(row["group_id"], []).append(row)
    for group_id, rows in by_group.items():
        sampled = [row for row in rows if not row["greedy"]]
        yield Occurrence(
            group_id=group_id,
            iteration=key,
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
