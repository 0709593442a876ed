"""The loop around rewards: what happens to numbers, to nothing, and to everything that goes wrong."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.components.rewards.outcomes import outcomes_of
from rollbook.core.errors import RewardError
from rollbook.rl.scoring.scorer import score_groups
from tests.unit.components.rewards.rows import row


class Given(Reward):
    """Returns what the test says for each text; raises it if it is an exception."""

    answers: Mapping[str, Any]

    def __call__(self, row: RewardInput) -> Any:
        answer = self.answers.get(row.text)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Whole(Reward):
    """Scores groups as a whole: the share of siblings with the same text."""

    broken: str = ""

    def score(self, group: Sequence[RewardInput]) -> list[Any]:
        texts = [row.text for row in group]
        if self.broken in texts:
            raise KeyError(self.broken)
        if "short" in texts:
            return [1.0]
        return [texts.count(text) / len(texts) for text in texts]


def given(label: Any = "given", weight: Any = 1.0, **answers: Any) -> Given:
    return Given(name="given", label=label, weight=weight, answers=answers)


def rows(*texts: str, group: str = "i0001/aa") -> list[RewardInput]:
    return [
        row(text, group_id=group, rollout_id=f"{group}/{place:02d}")
        for place, text in enumerate(texts)
    ]


def lists(columns: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: column.to_pylist() for name, column in columns.items()}


def test_weighted_sum_where_missing_counts_nothing() -> None:
    first = given("first", 1.0, a=1.0, b=None, c=None, d=0.5)
    second = given("second", -0.5, a=2.0, b=4.0, c=None, d=None)
    got = lists(score_groups([first, second], rows("a", "b", "c", "d")))
    # a: 1·1 − 0.5·2 = 0; b: −0.5·4 = −2; c: nothing applies; d: 0.5
    assert got["reward"] == [0.0, -2.0, None, 0.5]
    assert got["reward_first"] == [1.0, None, None, 0.5]
    assert got["reward_second"] == [2.0, 4.0, None, None]
    assert got["error"] == [None] * 4
    assert got["step_rewards"] == [None] * 4


def test_a_watched_reward_of_weight_0_still_applies() -> None:
    assert lists(score_groups([given(weight=0.0, a=3.0)], rows("a")))["reward"] == [0.0]


def test_an_exception_is_never_a_zero() -> None:
    good = given("good", 1.0, a=1.0, b=1.0)
    bad = given("bad", 1.0, a=0.5, b=ValueError("no such unit: m²"))
    got = lists(score_groups([good, bad], rows("a", "b"), max_error_share=0.5))
    assert got["reward"] == [1.5, None]
    assert got["reward_good"] == [1.0, 1.0]
    assert got["reward_bad"] == [0.5, None]
    assert got["error"] == [None, "bad: ValueError: no such unit: m²"]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (math.nan, "returned nan"),
        (math.inf, "returned inf"),
        (np.float32("nan"), "returned float32"),
        ("1.0", "returned '1.0'"),
        (b"1", "returned b'1'"),
        ([1.0, 2.0], "returned list"),
        ({}, "returned dict"),
        (1j, "returned complex"),
        (10**400, "OverflowError"),
        (RewardResult(math.nan), "returned nan"),
        (RewardResult(None, error="the judge did not answer"), "the judge did not answer"),
        (RewardResult(1.0, steps=[(9, 1.0)]), "ends at token 9; the last one is 1"),
        (RewardResult(1.0, steps=[(-1, 1.0)]), "ends at token -1"),
        (RewardResult(1.0, steps=[(0, math.nan)]), "returned nan"),
        (RewardResult(1.0, steps=[(0, None)]), "without a value"),  # type: ignore[list-item]
        (SystemExit(3), "SystemExit"),
    ],
)
def test_what_is_no_number_is_an_error_of_the_row(returned: Any, text: str) -> None:
    got = lists(score_groups([given(a=returned, b=1.0)], rows("a", "b"), max_error_share=0.5))
    assert got["reward"] == [None, 1.0]
    assert text in got["error"][0]
    assert got["error"][1] is None
    assert got["step_rewards"] == [None, None]


def test_numbers_of_other_libraries_are_taken() -> None:
    answers = {"a": True, "b": 3, "c": np.float32(0.5), "d": np.array(2.0)}
    got = lists(score_groups([given(**answers)], rows(*answers)))
    assert got["reward"] == [1.0, 3.0, 0.5, 2.0]


class Mute(BaseException):
    """No Exception, and it cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError


class Panics(Reward):
    """Fails as only foreign code does, for a row."""

    def __call__(self, row: RewardInput) -> float:
        raise Mute


class PanicsTogether(Panics):
    """The same for groups."""

    def score(self, group: Sequence[RewardInput]) -> list[Any]:
        raise Mute


@pytest.mark.parametrize("kind", [Panics, PanicsTogether])
def test_whatever_is_raised_is_an_error_of_the_row(kind: type[Panics]) -> None:
    (result,) = outcomes_of(kind(name="panics"), [row("7")])
    assert result.error == "panics: Mute: its text cannot be read: ValueError"


def test_an_infinite_sum_is_an_error_too() -> None:
    reward = given(weight=1e200, a=1e200, b=1.0)
    got = lists(score_groups([reward], rows("a", "b"), max_error_share=0.5))
    assert got["reward"] == [None, 1e200]
    assert got["error"][0] == "the weighted sum of rewards is inf"
    opposite = given("opposite", -1e200, a=1e200)
    got = lists(score_groups([reward, opposite], rows("a", "b"), max_error_share=0.5))
    assert got["reward"] == [None, 1e200]  # inf − inf is no "does not apply"
    assert got["error"][0] == "the weighted sum of rewards is nan"


def test_a_group_fails_together_where_it_is_scored_together() -> None:
    whole = Whole(name="whole", broken="x")
    both = [*rows("a", "x", group="i0001/aa"), *rows("b", "b", group="i0001/bb")]
    got = lists(score_groups([whole], both, max_error_share=0.5))
    assert got["reward"] == [None, None, 1.0, 1.0]
    assert got["error"][:2] == ["whole: KeyError: 'x'"] * 2


def test_the_wrong_number_of_values_is_an_error_of_the_group() -> None:
    got = lists(
        score_groups([Whole(name="whole", broken="-")], rows("a", "short"), max_error_share=1)
    )
    assert got["error"] == ["whole: RewardError: returned 1 values for 2 completions"] * 2


def test_stops_past_the_share_with_count_rows_and_hint() -> None:
    bad = given(a=1.0, b=ValueError("broken"))
    texts = ["b"] * 5 + ["a"] * 5
    score_groups([bad], rows(*texts), max_error_share=0.5)
    with pytest.raises(RewardError) as caught:
        score_groups([bad], rows(*texts), max_error_share=0.49)
    message = str(caught.value)
    assert "5 of 10 rollouts (50.0%) could not be scored, allowed are 49.0%" in message
    assert "i0001/aa/00 and 4 more: given: ValueError: broken" in message
    assert message.count("broken") == 1  # the same error is said once
    assert "max_error_share" in caught.value.hint
    assert isinstance(caught.value.__cause__, ValueError)  # --debug shows where it was raised
    with pytest.raises(RewardError, match="1 of 2 rollouts"):
        score_groups([bad], rows("a", "b"))


def test_names_the_first_of_many_different_errors() -> None:
    bad = given(**{f"t{place}": ValueError(f"no. {place}") for place in range(8)})
    with pytest.raises(RewardError) as caught:
        score_groups([bad], rows(*(f"t{place}" for place in range(8))))
    assert [place for place in range(8) if f"no. {place}" in str(caught.value)] == [0, 1, 2, 3, 4]
    assert "… and 3 other errors" in str(caught.value)


def test_error_texts_do_not_change_from_run_to_run() -> None:
    error = ValueError(f"bad {object()}\n  and {'x' * 1000}")
    (text,) = lists(score_groups([given(a=error)], rows("a"), max_error_share=1))["error"]
    assert text.startswith("given: ValueError: bad <object object at 0x…> and xxx")
    assert len(text) == 300


def test_a_failed_generation_is_not_shown_to_rewards() -> None:
    failed = row("", group_id="i0001/aa", rollout_id="i0001/aa/02", finish_reason="error")
    got = lists(score_groups([Whole(name="whole", broken="-")], [*rows("a", "a"), failed]))
    # two of two siblings say the same; the failed one is not counted
    assert got["reward"] == [1.0, 1.0, None]
    assert got["error"] == [None] * 3


def test_the_order_of_rows_changes_nothing() -> None:
    seen: list[str] = []

    class Watching(Reward):
        def score(self, group: Sequence[RewardInput]) -> list[Any]:
            seen.extend(each.rollout_id for each in group)
            return [float(place) for place, _ in enumerate(group)]

    table = [*rows("a", "b", "c", group="i0001/bb"), *rows("d", "e", group="i0001/aa")]
    order = [3, 1, 4, 0, 2]
    straight = lists(score_groups([Watching(name="w")], table))["reward"]
    mixed = lists(score_groups([Watching(name="w")], [table[place] for place in order]))["reward"]
    assert mixed == [straight[place] for place in order]
    assert seen[:5] == seen[5:] == sorted(seen[:5])


def test_groups_of_more_than_a_hundred_keep_the_order_of_samples() -> None:
    seen: list[str] = []

    class Watching(Reward):
        def score(self, group: Sequence[RewardInput]) -> list[Any]:
            seen.extend(each.text for each in group)
            return [0.0] * len(group)

    score_groups([Watching(name="w")], rows(*(str(number) for number in range(120))))
    assert seen == [str(number) for number in range(120)]


def test_progress_counts_every_row_that_is_scored() -> None:
    counts: list[int] = []
    table = [*rows("a", "b", "c", group="i0001/bb"), *rows("d", group="i0001/aa")]
    score_groups([given(), given("other")], table, on_rows=counts.append)
    assert counts == [1, 3]


def test_nothing_to_score() -> None:
    got = score_groups([given()], [])
    assert {name: len(column) for name, column in got.items()} == dict.fromkeys(
        ("reward", "error", "step_rewards", "reward_given"), 0
    )


def test_outcomes_never_raise_and_keep_what_was_logged() -> None:
    answers = {"a": RewardResult(1, log={"x": 1}), "b": ZeroDivisionError("no")}
    first, second = outcomes_of(given(**answers), rows("a", "b"))
    assert first == RewardResult(1.0, log={"x": 1})
    assert (second.value, second.error) == (None, "given: ZeroDivisionError: no")


def test_interrupting_is_not_an_error_of_the_reward() -> None:
    class Interrupted(Reward):
        def score(self, group: Sequence[RewardInput]) -> list[Any]:
            raise KeyboardInterrupt

    for reward in (given(a=KeyboardInterrupt()), Interrupted(name="interrupted")):
        with pytest.raises(KeyboardInterrupt):
            outcomes_of(reward, rows("a"))


def test_a_greedy_row_is_no_sibling() -> None:
    sampled = rows("a", "a", "b")
    greedy = row("a", group_id="i0001/aa", rollout_id="i0001/aa/03", greedy=True)
    whole = Whole(name="whole")
    alone = lists(score_groups([whole], sampled))["reward"]
    assert alone == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    for place in range(4):  # wherever it stands
        mixed = [*sampled[:place], greedy, *sampled[place:]]
        got = lists(score_groups([whole], mixed))["reward"]
        assert got.pop(place) == 1.0
        assert got == alone
