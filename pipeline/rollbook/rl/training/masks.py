"""Which rows and tokens of an iteration are trained on, beyond what the engine marked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.core.ragged import Ragged


def without_truncated(loss_mask: Ragged, finished: NDArray[np.bool_]) -> Ragged:
    """The loss mask with nothing to train on in completions that were cut off at the length limit.

    Such a row is not dropped: its reward stays in the statistics of its group. DAPO (arXiv 2503.14476 §3.4) calls it
    overlong filtering, TRL `mask_truncated_completions`.

    Args:
        loss_mask: per completion token, True = trained on.
        finished: [B] completions that ended by themselves.
    """
    return Ragged(loss_mask.values & finished[loss_mask.row_of], loss_mask.lengths)
