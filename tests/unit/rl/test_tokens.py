import numpy as np
import pytest
import torch

from rollbook.core.ragged import Ragged, mask_of
from rollbook.rl.tokens import off_grid, on_grid, shared_token_batch, token_batch

CPU = torch.device("cpu")


def _ragged(*lists: list[int]) -> Ragged:
    values = np.array([item for items in lists for item in items], dtype=np.int32)
    return Ragged(values, np.array([len(items) for items in lists], dtype=np.int64))


LISTS = _ragged([5, 6, 7], [], [8], [9, 10])


def test_rows_in_any_order_and_repeated() -> None:
    some = LISTS.rows(np.array([3, 1, 0, 3]))
    assert some.values.tolist() == [9, 10, 5, 6, 7, 9, 10]
    assert some.lengths.tolist() == [2, 0, 3, 2]
    assert LISTS.places(np.array([2, 0])).tolist() == [3, 0, 1, 2]


def test_no_rows() -> None:
    nothing = LISTS.rows(np.array([], dtype=np.int64))
    assert nothing.values.tolist() == []
    assert nothing.padded(0).shape == (0, 0)


def test_padding_is_on_the_right() -> None:
    assert LISTS.padded(-1).tolist() == [[5, 6, 7], [-1, -1, -1], [8, -1, -1], [9, 10, -1]]
    assert mask_of(np.array([2, 0])).tolist() == [[True, True], [False, False]]


def test_counts_of_true_items() -> None:
    flags = Ragged(np.array([True, False, True, True, False, False]), LISTS.lengths)
    assert flags.counts().tolist() == [2, 0, 1, 0]


def test_a_batch_puts_each_completion_right_behind_its_prompt() -> None:
    batch = token_batch(_ragged([1, 2, 3], [4]), _ragged([11, 12], [21, 22, 23]), CPU)
    assert batch.input_ids.tolist() == [[1, 2, 3, 11, 12], [4, 21, 22, 23, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert batch.completion_mask.tolist() == [[True, True, False], [True, True, True]]
    assert batch.completion_ids.tolist() == [11, 12, 21, 22, 23]
    # logits at t - 1 score the token at t: places 2, 3 of row 0 and 0, 1, 2 of row 1 (which begins at 5)
    assert batch.predicting.tolist() == [2, 3, 5, 6, 7]
    following = batch.input_ids.flatten()[batch.predicting + 1]
    assert following.tolist() == batch.completion_ids.tolist()


def test_a_row_without_completion_scores_nothing() -> None:
    batch = token_batch(_ragged([1, 2], [4]), _ragged([], [21]), CPU)
    assert batch.predicting.tolist() == [2]
    assert batch.completion_mask.tolist() == [[False], [True]]


def test_rows_of_one_prompt_in_one_sequence() -> None:
    prompts = _ragged([1, 2], [1, 2], [3])
    completions = _ragged([11, 12], [13], [21])
    batch = shared_token_batch(prompts, completions, np.array([0, 0, 1]), CPU)
    assert batch.input_ids.tolist() == [[1, 2, 11, 12, 13], [3, 21, 0, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 2], [0, 1, 0, 0, 0]]
    assert batch.attention_mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],  # the second completion sees the prompt and itself
    ]
    assert batch.attention_mask.any(-1).all()  # padding too: a softmax over nothing is NaN
    assert batch.completion_ids.tolist() == [11, 12, 13, 21]
    # the prompt's last position scores the first token of both completions
    assert batch.predicting.tolist() == [1, 2, 1, 5]
    assert batch.completion_mask.tolist() == [[True, True], [True, False], [True, False]]


def test_a_sequence_of_rows_without_completion() -> None:
    batch = shared_token_batch(
        _ragged([1], [1], [1]), _ragged([], [5], []), np.array([0, 0, 0]), CPU
    )
    assert batch.input_ids.tolist() == [[1, 5]]
    assert batch.predicting.tolist() == [0]
    assert batch.completion_mask.tolist() == [[False], [True], [False]]


def test_onto_the_grid_and_off_it_again() -> None:
    mask = torch.tensor([[True, False, False], [True, True, False]])
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    grid = on_grid(values, mask)
    assert grid.tolist() == [[1, 0, 0], [2, 3, 0]]
    (grid * torch.tensor([[10.0, 20, 30], [40, 50, 60]])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [10, 40, 50]
    assert off_grid(grid, mask).tolist() == pytest.approx([1, 2, 3])
