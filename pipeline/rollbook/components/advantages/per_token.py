"""Sums, means and whitening over the trained-on tokens of rollouts; shared by estimators that differ between tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.components.advantages.base import AdvantageInputs, AdvantageOutputs
from rollbook.components.advantages.moments import Moments, any_of_group, whitening
from rollbook.core.ragged import Ragged, mask_of


def discounted_sums(values: Ragged, loss_mask: Ragged, factor: float) -> Ragged:
    """x_t = v_t + factor · x_{t+1}, where t + 1 is the next trained-on token: what is masked is skipped and gets 0."""
    trained = loss_mask.values
    compact = Ragged(values.values[trained], loss_mask.counts())
    by_place = np.ascontiguousarray(compact.padded(0.0).T)  # one place of all rows at a time
    for place in range(len(by_place) - 2, -1, -1):
        by_place[place] += factor * by_place[place + 1]
    sums = np.zeros(len(trained))
    sums[trained] = by_place.T[mask_of(compact.lengths)]
    return Ragged(sums, loss_mask.lengths)


def next_trained(values: Ragged, loss_mask: Ragged) -> Ragged:
    """The value of the next trained-on token of the row; 0 after the last and where masked."""
    places = np.flatnonzero(loss_mask.values)
    row = loss_mask.row_of[places]
    following = np.zeros(len(loss_mask.values))
    same_row = row[:-1] == row[1:]
    following[places[:-1][same_row]] = values.values[places[1:][same_row]]
    return Ragged(following, loss_mask.lengths)


def whitened(values: Ragged, loss_mask: Ragged, rows: NDArray[np.bool_]) -> Ragged:
    """(x − mean)/sqrt(var + 1e-8) over the trained-on tokens of the chosen rows, 0 elsewhere.

    Args:
        values: per completion token.
        loss_mask: per completion token.
        rows: [B] which rows count.
    """
    counted = loss_mask.values & rows[loss_mask.row_of]
    mean, factor = whitening(values.values[counted])
    return Ragged(np.where(counted, (values.values - mean) * factor, 0.0), loss_mask.lengths)


def token_outputs(
    inputs: AdvantageInputs,
    tokens: Ragged,
    group: Moments,
    informative: NDArray[np.bool_] | None = None,
) -> AdvantageOutputs:
    """Outputs of advantages that differ between tokens; a row's own is their mean over its trained-on tokens.

    Args:
        inputs: of the estimator.
        tokens: advantage of each completion token.
        group: moments of each row's group.
        informative: [B]; None: groups in which some token has an advantage.
    """
    if informative is None:
        moved = Ragged(tokens.values != 0, tokens.lengths).counts() > 0
        informative = any_of_group(moved, inputs.groups)
    means = tokens.sums() / np.maximum(inputs.lengths, 1)
    return AdvantageOutputs(means, group.mean, group.std, informative, tokens)
