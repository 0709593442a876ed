import numpy as np

from pipeline.training.batches import deal_to_steps, micro_batches

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


def test_micro_batches_fit_the_budget_padding_included() -> None:
    lengths = np.array([3, 9, 4, 9, 2, 20, 5])
    index = np.array([0, 1, 2, 3, 4, 5, 6])
    parts = [part.tolist() for part in micro_batches(index, lengths, 18)]
    # longest first; 20 is over the budget and goes alone; 9+9; then 5: 3 rows of at most 5 fit in 18
    assert parts == [[5], [1, 3], [6, 2, 0], [4]]


def test_micro_batches_of_some_rows() -> None:
    lengths = np.array([3, 9, 4])
    assert [part.tolist() for part in micro_batches(np.array([2, 0]), lengths, 100)] == [[2, 0]]
    assert list(micro_batches(np.array([], dtype=np.int64), lengths, 100)) == []
