"""One rollout from prompt to gradient: everything that the tables and run_info of its iteration say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from rollbook.core.errors import ArtifactError
from rollbook.core.ids import parts_of_group
from rollbook.project.run.run import Run
from rollbook.views.show.answers import TRAINING, AnswerGroup, Row, rewards_of
from rollbook.views.show.arithmetic import COLUMNS, arithmetic_of
from rollbook.views.show.clipping import Objective, with_clips, with_ratios
from rollbook.views.show.decoding import TokenDecoder, decoder_for
from rollbook.views.show.facts import (
    Advantage,
    Partner,
    Provenance,
    RolloutFacts,
    RolloutUpdate,
    Token,
)
from rollbook.views.show.finding import Found
from rollbook.views.show.prompts import evaluation_prompt_of, prompt_of
from rollbook.views.show.provenance import of_evaluation, of_training


def rollout_facts(run: Run, found: Found) -> RolloutFacts:
    """Everything about a rollout.

    Raises:
        ArtifactError: if its table is not on disk, or damaged.
    """
    iteration = run.iteration(found.key)
    group = AnswerGroup(found.id.rpartition("/")[0], iteration)
    own = group.row("rollouts", found.id)
    if not own:
        raise ArtifactError(f"{group.completions.path}: has no rollout {found.id}")
    score = group.row("scores", found.id) if group.in_training else own
    advantage, update = group.row("advantages", found.id), group.row("updates", found.id)
    provenance = provenance_of(group, own["policy_digest"])
    objective = Objective.of(iteration.settings("update_policy"))
    decoder, said = decoder_for(provenance.policy_in.key, run)
    tokens, problem = decoded(
        tokens_of(own, group.row("logprobs", found.id), update, advantage), own, decoder, said
    )
    if group.in_training:
        tokens = with_ratios(tokens, objective)
        if advantage:
            share = update.get("clipped_fraction")
            tokens = with_clips(tokens, advantage["advantage"], share, objective)
    rewards, logged = rewards_of(score, _weights(group))
    return RolloutFacts(
        rollout_id=found.id,
        group_id=group.id,
        evaluation_set=parts_of_group(group.id).evaluation_set,
        sample_index=own["sample_index"],
        greedy=own["greedy"],
        seed=own["seed"],
        prompt=prompt_of(iteration, own["prompt_id"], decoder)
        if group.in_training
        else evaluation_prompt_of(run, own["prompt_id"], own["prompt"]),
        completion=own["completion"],
        text=own["text"],
        finish_reason=own["finish_reason"],
        tokens=tokens,
        decoded=problem,
        reward=score.get("reward"),
        rewards=rewards,
        logged=logged,
        step_rewards=score.get("step_rewards") or [],
        error=score.get("error"),
        siblings=[answer for answer in group.answers if answer.rollout_id != found.id],
        advantage=_advantage(found.id, advantage, group) if advantage else None,
        partners=_partners(found.id, group) if group.in_training else [],
        update=_update(update, objective) if update else None,
        provenance=provenance,
    )


def provenance_of(group: AnswerGroup, policy_digest: str) -> Provenance:
    """Where the answers of a group come from."""
    iteration = group.iteration
    if not group.in_training:
        return of_evaluation(iteration, policy_digest, [group.completions])
    prompts = iteration.find_table("prompts")
    tables = [*([prompts] if prompts else []), group.completions, *group.others.values()]
    missing = iteration.missing_tables("prompts", *TRAINING)
    return of_training(iteration, policy_digest, tables, missing)


def tokens_of(own: Row, logprobs: Row, update: Row, advantage: Row) -> list[Token]:
    """The completion token by token, not decoded yet."""
    ids = own["completion_token_ids"]
    nothing = [None] * len(ids)

    def of(row: Row, name: str) -> Sequence[float | None]:
        found: Sequence[float | None] = row.get(name) or nothing
        return found if len(found) == len(ids) else nothing

    columns = zip(
        ids,
        own["loss_mask"],
        own["sampling_logprobs"],
        of(logprobs, "old_logprobs"),
        of(logprobs, "ref_logprobs"),
        of(update, "policy_logprobs"),
        of(advantage, "token_advantages"),
        of(logprobs, "values"),
        of(advantage, "token_returns"),
        strict=True,
    )
    return [
        Token(
            place=place,
            id=each,
            text=None,
            special=None,
            trained=trained,
            sampling_logprob=sampling,
            old_logprob=old,
            ref_logprob=ref,
            policy_logprob=policy,
            advantage=own_advantage,
            value=value,
            token_return=token_return,
        )
        for place, (
            each,
            trained,
            sampling,
            old,
            ref,
            policy,
            own_advantage,
            value,
            token_return,
        ) in enumerate(columns)
    ]


def decoded(
    tokens: Sequence[Token], own: Row, decoder: TokenDecoder | None, said: str
) -> tuple[list[Token], str]:
    """The tokens with their texts, and what is to be said about these; without a tokenizer they have none."""
    if decoder is None:
        return list(tokens), said
    pieces = decoder.pieces([token.id for token in tokens])
    if "".join(piece.text for piece in pieces) != own["completion"]:
        differs = (
            f"the tokenizer of {decoder.folder} reads the tokens otherwise than they are stored"
        )
        said = f"{said}; {differs}" if said else differs
    found = [
        replace(token, text=piece.text, special=piece.special)
        for token, piece in zip(tokens, pieces, strict=True)
    ]
    return found, said


def _weights(group: AnswerGroup) -> Mapping[str, float]:
    """Weight of each reward by name."""
    if not group.in_training:
        return {}
    rewards = group.iteration.settings("compute_advantages").get("rewards", [])
    return {each["column"].removeprefix("reward_"): each["weight"] for each in rewards}


def _advantage(rollout_id: str, row: Row, group: AnswerGroup) -> Advantage:
    iteration = group.iteration
    arithmetic = None
    if "scores" in group.rows and "logprobs" in group.rows:
        arithmetic = arithmetic_of(
            rollout_id,
            iteration.settings("compute_advantages"),
            iteration.run.metrics("compute_advantages", iteration.key).get("kl_coef"),
            group.rows,
            lambda: _whole(group),
        )
    return Advantage(
        value=row["advantage"],
        group_mean=row["group_mean"],
        group_std=row["group_std"],
        informative=row["informative"],
        kept=row["kept"],
        arithmetic=arithmetic,
    )


def _partners(rollout_id: str, group: AnswerGroup) -> list[Partner]:
    """The other answers of its pairs; none where the recipe makes none, or their table is not on disk."""
    table = group.iteration.find_table("pairs")
    if table is None:
        return []
    sides = {True: "chosen", False: "rejected"}
    found = []
    for row in table.where("group_id", group.id).to_pylist():
        for chosen, own in sides.items():
            if row[f"{own}_id"] == rollout_id:
                other = sides[not chosen]
                found.append(
                    Partner(
                        pair_id=row["pair_id"],
                        chosen=chosen,
                        rollout_id=row[f"{other}_id"],
                        own_reward=row[f"{own}_reward"],
                        reward=row[f"{other}_reward"],
                    )
                )
    return found


def _whole(group: AnswerGroup) -> dict[str, pa.Table]:
    """The iteration's tables, as far as estimators read them."""
    tables = {"rollouts": group.completions, **group.others}
    return {kind: tables[kind].all(columns) for kind, columns in COLUMNS.items()}


def _update(row: Row, objective: Objective) -> RolloutUpdate:
    numbers: dict[str, Any] = {
        name: row.get(name) for name in ("kl", "rollout_weight", "loss_share")
    }
    for name in ("ratio_mean", "ratio_min", "ratio_max", "clipped_fraction"):
        numbers[name] = row.get(name) if objective.has_ratio else None
    return RolloutUpdate(
        trained=row["trained"],
        reason=row.get("reason"),
        loss=objective.name,
        words=objective.words,
        **numbers,
    )
