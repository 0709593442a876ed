"""Which rollouts are on the page: whole groups, fair to every iteration, the same every time."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rollbook.views.page.choosing import SHORTEST, longest_kept, rows_of_groups, shares, viewed_rows


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50), max_size=6), st.integers(0, 120))
def test_shares_use_all_there_is_and_no_more(counts: dict[str, int], most: int) -> None:
    found = shares(counts, most)
    assert sum(found.values()) <= most
    assert sum(found.values()) >= min(sum(counts.values()), most) - len(counts)
    assert all(found[key] <= counts[key] for key in counts)


def test_what_small_iterations_leave_goes_to_large_ones() -> None:
    assert shares({"a": 10, "b": 100, "c": 100}, 110) == {"a": 10, "b": 50, "c": 50}


def test_groups_stay_whole() -> None:
    groups = [name for name in ("d", "a", "c", "b") for _ in range(3)]
    rows = rows_of_groups(groups, 8)
    assert rows == sorted(rows)
    assert Counter(groups[row] for row in rows) == {"a": 3, "b": 3}
    assert rows_of_groups(groups, 12) == list(range(12))
    assert rows_of_groups(groups, 2) == [3, 4]  # one group is larger: a part of it


@given(st.lists(st.integers(0, 5_000), max_size=30), st.integers(SHORTEST * 30, 60_000))
def test_texts_are_cut_only_as_far_as_needed(lengths: list[int], most: int) -> None:
    longest = longest_kept(lengths, most)
    if longest is None:
        assert sum(lengths) <= most
        return
    assert sum(min(length, longest) for length in lengths) <= most
    assert sum(min(length, longest + 1) for length in lengths) > most


def test_views_are_whole_groups_within_the_budget() -> None:
    groups, tokens = ["b", "b", "a", "a", "c"], [10, 10, 30, 0, 5]
    assert viewed_rows(groups, tokens, 30) == [2]
    assert viewed_rows(groups, tokens, 50) == [0, 1, 2]
    assert viewed_rows(groups, tokens, 25) == [0, 1, 4]  # a does not fit, what comes after it does
