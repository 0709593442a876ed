"""Where completions end."""

from __future__ import annotations

import numpy as np

from rollbook.components.engines.decoding import completion_lengths

IDS = np.array([[7, 2, 0, 0], [2, 2, 2, 2], [7, 0, 9, 3], [7, 0, 9, 8]])


def test_the_first_stop_token_is_the_last_that_counts() -> None:
    lengths, stopped = completion_lengths(IDS, [2, 3])
    assert lengths.tolist() == [2, 1, 4, 4]  # one that stops at the limit has stopped
    assert stopped.tolist() == [True, True, True, False]


def test_padding_inside_an_answer_is_kept_unless_it_is_a_stop_token() -> None:
    assert completion_lengths(IDS, [3])[0].tolist() == [4, 4, 4, 4]
    assert completion_lengths(IDS, [0])[0].tolist() == [3, 4, 2, 2]


def test_without_stop_tokens_every_row_is_full() -> None:
    lengths, stopped = completion_lengths(IDS, ())
    assert lengths.tolist() == [4, 4, 4, 4]
    assert not stopped.any()
