from __future__ import annotations

import numpy as np

from rollbook.core.ragged import Ragged
from rollbook.rl.training.masks import without_truncated


def test_truncated_rows_have_nothing_to_train_on() -> None:
    mask = Ragged.of([[True, False], [], [True, True, True], [False, True]], bool)
    found = without_truncated(mask, np.array([True, False, False, True]))
    assert found.values.tolist() == [True, False, False, False, False, False, True]
    assert found.lengths.tolist() == [2, 0, 3, 2]
    assert mask.counts().tolist() == [1, 0, 3, 1]  # the given mask is another
