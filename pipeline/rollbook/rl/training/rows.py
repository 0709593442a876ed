"""From the tables of an iteration to rows that a model can be run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rollbook.core.errors import TrainingError
from rollbook.core.ragged import IntArray, Ragged
from rollbook.rl.training.masks import without_truncated
from rollbook.rl.training.mismatch import reported
from rollbook.rl.training.rollout_correction import Correction, correction
from rollbook.tables.columns import aligned, group_labels, per_token

if TYPE_CHECKING:
    from rollbook.settings.recipe_correction import RolloutCorrection
    from rollbook.settings.recipe_sections import UpdatePolicy

TRUNCATED, REJECTED = "cut off at the length limit", "rejected by rollout_correction"
"""Why a row has no tokens to train on, other than that the engine gave none."""


@dataclass(frozen=True)
class Rows:
    """The rollouts of an iteration, one entry per row of the rollouts table.

    Attributes:
        prompts: ids of each row's prompt.
        completions: ids of each row's completion; as long are all further lists.
        loss_mask: True = trained on.
        sampling_logprobs: as the engine reported them.
        greedy: [R] rollouts that are no samples but baselines.
    """

    prompts: Ragged
    completions: Ragged
    loss_mask: Ragged
    sampling_logprobs: Ragged
    greedy: NDArray[np.bool_]

    @property
    def lengths(self) -> IntArray:
        """[R] tokens of prompt and completion."""
        return self.prompts.lengths + self.completions.lengths

    def __len__(self) -> int:
        return len(self.completions.lengths)


@dataclass(frozen=True)
class TrainingRows(Rows):
    """Rows with all that a loss needs; `loss_mask` is what masks and rejection left of the engine's.

    Attributes:
        advantages: [R] one per row.
        token_advantages: one per token, in place of `advantages`, or None.
        old_logprobs: under the policy that the ratio is taken against, or None: the current one.
        ref_logprobs: under the reference policy, or None.
        groups: [R] label of each row's group.
        kept: [R] rows that take part at all.
        emptied_by: [R] what took all of a row's tokens out of the loss mask; empty text: nothing did.
        old_entropies: under the policy before the update, nats, or None.
        rollout_weights: weight of each token, or None: no rollout correction.
        correction_metrics: what rollout correction says about the iteration.
        old_values: what the critic said before the update, or None: there is no critic.
        returns: what it should have said, likewise; 0 in rows that do not teach.
        teaches: [R] rows with returns: those that have a reward.
        pairs: [P, 2] rows of a chosen and a rejected completion, for losses of pairs; or None.
    """

    advantages: NDArray[np.float64]
    token_advantages: Ragged | None
    old_logprobs: Ragged | None
    ref_logprobs: Ragged | None
    groups: IntArray
    kept: NDArray[np.bool_]
    emptied_by: NDArray[np.str_]
    old_entropies: Ragged | None = None
    rollout_weights: Ragged | None = None
    correction_metrics: Mapping[str, float] = field(default_factory=dict)
    old_values: Ragged | None = None
    returns: Ragged | None = None
    teaches: NDArray[np.bool_] | None = None
    pairs: IntArray | None = None

    @cached_property
    def trained_tokens(self) -> IntArray:
        """[R] tokens with loss_mask True."""
        return self.loss_mask.counts()

    @cached_property
    def group_tokens(self) -> NDArray[np.float64]:
        """[R] trained-on tokens of the kept rows of each row's group."""
        tokens = np.where(self.kept, self.trained_tokens, 0)
        return np.bincount(self.groups, tokens).astype(np.float64)[self.groups]

    @cached_property
    def value_mask(self) -> Ragged:
        """True on the tokens that a critic learns from: trained on, of rows with returns."""
        teaches = np.zeros(len(self), bool) if self.teaches is None else self.teaches
        mask = self.loss_mask
        return Ragged(mask.values & teaches[mask.row_of], mask.lengths)

    @property
    def kept_groups(self) -> int:
        """Number of groups that take part."""
        return len(np.unique(self.groups[self.kept]))

    @cached_property
    def has_signal(self) -> NDArray[np.bool_]:
        """[R] rows with an advantage other than 0."""
        if self.token_advantages is None:
            return self.advantages != 0
        tokens = Ragged(self.token_advantages.values != 0, self.token_advantages.lengths)
        return tokens.counts() > 0

    def pairs_among(self, index: IntArray) -> IntArray | None:
        """[P, 2] places within `index` of the two rows of each pair that lies in it; None without pairs."""
        if self.pairs is None:
            return None
        place = np.full(len(self), -1)
        place[index] = np.arange(len(index))
        found: IntArray = place[self.pairs]
        return found[(found >= 0).all(1)]


def rows_of(prompts: pa.Table, rollouts: pa.Table, policy_digest: str) -> Rows:
    """Joins rollouts with their prompts.

    Args:
        prompts: the iteration's prompts table.
        rollouts: its rollouts table.
        policy_digest: of the policy at hand; the rollouts must come from it.

    Raises:
        TrainingError: if the rollouts come from another policy, or a prompt is missing.
    """
    digests = pc.unique(rollouts["policy_digest"]).to_pylist()
    if foreign := [digest for digest in digests if digest != policy_digest]:
        raise TrainingError(
            f"stale rollouts: generated by policy {foreign[0][:12]}, the policy at hand is {policy_digest[:12]}",
            "run `dvc repro`: generate_rollouts must run again",
        )
    places = pc.index_in(rollouts["prompt_id"], value_set=prompts["prompt_id"])
    if places.null_count:
        missing = rollouts["prompt_id"].filter(pc.is_null(places))[0].as_py()
        raise TrainingError(f"prompt {missing} has rollouts but is not in the prompts table")
    return Rows(
        prompts=Ragged.from_column(prompts["prompt_token_ids"]).rows(
            places.to_numpy().astype(np.int64)
        ),
        completions=Ragged.from_column(rollouts["completion_token_ids"]),
        loss_mask=Ragged.from_column(rollouts["loss_mask"]),
        sampling_logprobs=Ragged.from_column(rollouts["sampling_logprobs"]),
        greedy=np.asarray(rollouts["greedy"].to_numpy()),
    )


def training_rows(
    tables: Mapping[str, pa.Table],
    update: UpdatePolicy,
    policy_digest: str,
    corrected_by: RolloutCorrection | None = None,
) -> TrainingRows:
    """Everything an update needs, from the tables prompts, rollouts, logprobs and advantages.

    Args:
        tables: by kind; for a loss of pairs also `pairs`.
        update: settings of the recipe.
        policy_digest: of the policy at hand; the rollouts must come from it.
        corrected_by: how rollouts are corrected for an engine that differs from the trainer; None: not at all.

    Raises:
        ArtifactError: if the tables do not name the same rollouts, or a list is not as long as its completion.
        TrainingError: if the rollouts are of another policy, or the tables hold too little for this recipe.
    """
    rollouts, logprobs = tables["rollouts"], tables["logprobs"]
    advantages = aligned(tables["advantages"], rollouts, "advantages")
    rows = rows_of(tables["prompts"], rollouts, policy_digest)
    kept = np.asarray(advantages["kept"].to_numpy())
    needs_old = update.compares_with_measured or corrected_by is not None
    needs_entropies, needs_reference = update.top_entropy < 1, update.loss.needs_reference
    learns_values = update.critic is not None
    if needs_old or needs_entropies or needs_reference or learns_values:
        logprobs = aligned(logprobs, rollouts, "logprobs")
    old = _measured(logprobs, "old_logprobs", rollouts) if needs_old else None
    mask, emptied_by = rows.loss_mask, {}
    if update.mask_truncated:
        finished = pc.not_equal(rollouts["finish_reason"], "length").to_numpy()
        mask = emptied_by[TRUNCATED] = without_truncated(mask, finished)
    found: Correction | None = None
    if corrected_by is not None and old is not None:
        found = _corrected(old, rows, mask, kept, corrected_by)
        mask = emptied_by[REJECTED] = found.kept
    weighs = corrected_by is not None and corrected_by.weights is not None
    return TrainingRows(
        prompts=rows.prompts,
        completions=rows.completions,
        loss_mask=mask,
        sampling_logprobs=rows.sampling_logprobs,
        greedy=rows.greedy,
        advantages=advantages["advantage"].to_numpy(),
        token_advantages=_token_advantages(advantages, rollouts),
        old_logprobs=rows.sampling_logprobs if update.old_logprobs == "sampling" else old,
        ref_logprobs=_measured(logprobs, "ref_logprobs", rollouts) if needs_reference else None,
        groups=group_labels(rollouts),
        kept=kept,
        emptied_by=_emptied_by(rows.loss_mask, emptied_by),
        old_entropies=_measured(logprobs, "entropies", rollouts) if needs_entropies else None,
        rollout_weights=found.weights if found is not None and weighs else None,
        correction_metrics=reported(found.metrics) if found is not None else {},
        old_values=_measured(logprobs, "values", rollouts) if learns_values else None,
        returns=_returns(advantages, rollouts) if learns_values else None,
        teaches=pc.is_valid(advantages["token_returns"]).to_numpy() if learns_values else None,
        pairs=_pairs(tables["pairs"], rollouts, kept) if update.loss.needs_pairs else None,
    )


def _pairs(pairs: pa.Table, rollouts: pa.Table, kept: NDArray[np.bool_]) -> IntArray:
    """[P, 2] rows of the chosen and the rejected rollouts."""
    if not pairs.num_rows:
        raise TrainingError(
            "the loss compares answers in pairs, and the pairs table has none",
            "run `dvc repro`: compute_advantages must run again",
        )
    sides = []
    for name in ("chosen_id", "rejected_id"):
        places = pc.index_in(pairs[name], value_set=rollouts["rollout_id"].combine_chunks())
        rows = pc.fill_null(places, 0).to_numpy().astype(np.int64)
        wrong = places.is_null().to_numpy() | ~kept[rows]
        if wrong.any():
            place = int(wrong.argmax())
            raise TrainingError(
                f"pair {pairs['pair_id'][place]}: {pairs[name][place]} is no rollout that the update trains on",
                "run `dvc repro`: pairs and rollouts are of different runs",
            )
        sides.append(rows)
    return np.column_stack(sides)


def _corrected(
    old: Ragged,
    rows: Rows,
    loss_mask: Ragged,
    kept: NDArray[np.bool_],
    settings: RolloutCorrection,
) -> Correction:
    """Rollout correction of the kept rows; all others keep weight 1 and their mask."""
    index = np.flatnonzero(kept)
    places = old.places(index)
    found = correction(
        old.rows(index), rows.sampling_logprobs.rows(index), loss_mask.rows(index), settings
    )
    weights, mask = np.ones(len(old.values)), loss_mask.values.copy()
    weights[places], mask[places] = found.weights.values, found.kept.values
    return Correction(Ragged(weights, old.lengths), Ragged(mask, old.lengths), found.metrics)


def _emptied_by(given: Ragged, masks: Mapping[str, Ragged]) -> NDArray[np.str_]:
    """[R] name of the first of `masks`, in order, that leaves nothing of a row that had something in `given`."""
    names = np.array(["", *masks])
    empty = np.stack([mask.counts() == 0 for mask in (given, *masks.values())])
    return np.where(empty.any(0), names[empty.argmax(0)], "")


def _token_advantages(advantages: pa.Table, rollouts: pa.Table) -> Ragged | None:
    column = advantages["token_advantages"]
    if 0 < column.null_count < len(column):
        raise TrainingError("the advantages table has token_advantages for some rows only")
    return None if column.null_count else per_token(advantages, "token_advantages", rollouts)


def _returns(advantages: pa.Table, rollouts: pa.Table) -> Ragged:
    """What a critic should have said of each completion token; 0 in rows without returns.

    Where no rollout has a reward there are none at all, and no group has a mean.
    """
    column = advantages["token_returns"]
    scored = advantages["group_mean"].null_count < advantages.num_rows
    if scored and column.null_count == len(column):
        raise TrainingError(
            "the recipe has a critic, and the advantages table no token_returns",
            "run `dvc repro`: compute_advantages must run again",
        )
    return per_token(advantages, "token_returns", rollouts)


def _measured(logprobs: pa.Table, name: str, rollouts: pa.Table) -> Ragged:
    if logprobs[name].null_count:
        raise TrainingError(
            f"the recipe needs {name}, and the logprobs table has none",
            "run `dvc repro`: measure_logprobs must run again",
        )
    return per_token(logprobs, name, rollouts)
