import numpy as np

from rollbook.core.ragged import Ragged
from rollbook.rl.training.batches import deal_to_steps, micro_batches, sequences_of

GROUPS = np.repeat(np.arange(10), 3)
KEPT = np.ones(30, dtype=bool)


def _deal(
    steps: int, epoch: int = 0, kept: np.ndarray = KEPT, iteration: str = "i0001"
) -> list[list[int]]:
    return [part.tolist() for part in deal_to_steps(GROUPS, kept, steps, 0, iteration, epoch)]


def test_groups_stay_whole_and_every_row_is_used_once() -> None:
    parts = _deal(4)
    assert sorted(row for part in parts for row in part) == list(range(30))
    assert sorted(len(part) for part in parts) == [6, 6, 9, 9]  # 10 groups in 4 parts: 3, 3, 2, 2
    for part in parts:
        assert all(part.count(row // 3 * 3) == 1 for row in part)


def test_order_depends_on_iteration_and_epoch_and_on_nothing_else() -> None:
    assert _deal(4) == _deal(4)
    assert _deal(4) != _deal(4, epoch=1)
    assert _deal(4) != _deal(4, iteration="i0002")


def test_rows_that_are_not_kept_take_no_part() -> None:
    kept = KEPT.copy()
    kept[:26] = False
    kept[24] = True  # of group 8 rows 24 and 26 are left, and group 9 whole
    parts = _deal(4, kept=kept)
    assert sorted(parts) == [[24, 26], [27, 28, 29]]


def test_nothing_kept() -> None:
    assert _deal(4, kept=~KEPT) == []


def _ids(*lists: list[int]) -> Ragged:
    return Ragged.of(lists, np.int64)


def _of_lengths(lengths: list[int], prompt: int = 1) -> tuple[Ragged, Ragged]:
    """Rows of these lengths, each with a prompt of its own."""
    prompts = _ids(*([row] * prompt for row in range(len(lengths))))
    return prompts, _ids(*([7] * (length - prompt) for length in lengths))


def test_micro_batches_fit_the_budget_padding_included() -> None:
    rows = _of_lengths([3, 9, 4, 9, 2, 20, 5])
    parts = list(micro_batches(np.arange(7), *rows, 18))
    # longest first; 20 is over the budget and goes alone; 9+9; then 5: 3 rows of at most 5 fit in 18
    assert [part.rows.tolist() for part in parts] == [[5], [1, 3], [6, 2, 0], [4]]
    assert [part.sequence_of.tolist() for part in parts] == [[0], [0, 1], [0, 1, 2], [0]]


def test_micro_batches_of_some_rows() -> None:
    rows = _of_lengths([3, 9, 4])
    assert [part.rows.tolist() for part in micro_batches(np.array([2, 0]), *rows, 100)] == [[2, 0]]
    assert list(micro_batches(np.array([], dtype=np.int64), *rows, 100)) == []
    assert list(micro_batches(np.array([], dtype=np.int64), *rows, 100, 50.0)) == []


PROMPTS = _ids([1] * 10, [2] * 10, [1] * 10, [1] * 10)
COMPLETIONS = _ids([5], [5, 6], [5, 6, 7], [8])


def test_rows_of_one_prompt_share_a_sequence() -> None:
    (part,) = micro_batches(np.arange(4), PROMPTS, COMPLETIONS, 100, 1000.0)
    # 10 + 3 + 1 + 1 of the first prompt, the longest completion first; then 10 + 2 of the second
    assert part.rows.tolist() == [2, 0, 3, 1]
    assert part.sequence_of.tolist() == [0, 0, 0, 1]


def test_no_sequence_is_longer_than_the_budget() -> None:
    parts = list(micro_batches(np.arange(4), PROMPTS, COMPLETIONS, 13, 1000.0))
    # 10 + 3 alone; 10 + 1 + 1 and 10 + 2 are 12 each, and two of them would not fit
    assert [part.rows.tolist() for part in parts] == [[2], [0, 3], [1]]


def test_long_completions_behind_a_short_prompt_stay_alone() -> None:
    prompts, completions = _ids([1], [1]), _ids([5] * 40, [6] * 40)
    # together 81 · (1 + 81/b), apart 2 · 41 · (1 + 41/b): equal at b = 81² − 2 · 41² = 3199
    for break_even, sequences in ((3198.0, 2), (3200.0, 1)):
        found = sequences_of(np.arange(2), prompts, completions, 1000, break_even)
        assert len(found) == sequences


def test_many_completions_are_dealt_evenly() -> None:
    lengths = [9, 8, 7, 6, 5, 4]
    prompts, completions = _ids(*[[1] * 4] * 6), _ids(*([5] * length for length in lengths))
    found = sequences_of(np.arange(6), prompts, completions, 24, 1e9)
    # one sequence would have 43 tokens; in two: 9 + 6 + 5 and 8 + 7 + 4, with the prompt 24 and 23
    assert [rows.tolist() for rows in found] == [[0, 3, 4], [1, 2, 5]]


def test_rows_without_completion_are_not_lost() -> None:
    prompts, completions = _ids([1], [1], [1]), _ids([], [], [])
    found = sequences_of(np.arange(3), prompts, completions, 100, 10.0)
    assert sorted(row for rows in found for row in rows.tolist()) == [0, 1, 2]
