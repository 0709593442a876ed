from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.components.rewards.base import Reward, RewardResult
from tests.unit.components.rewards.rows import reward, row


def group_of(texts: list[str], group_id: str = "i0001/00", reference: str = "7") -> list[Any]:
    return [
        row(text, reference, group_id=group_id, rollout_id=f"{group_id}/{place:02d}")
        for place, text in enumerate(texts)
    ]


def values(results: list[Any]) -> list[Any]:
    return [result.value for result in results]


def test_keeps_the_values_of_each_group_but_not_their_places() -> None:
    shuffled = reward("shuffled", reward={"name": "numeric_answer"})
    moved = 0
    for number in range(50):
        group = group_of(["7", "7", "7", "8", "8", "8", "8", "8"], f"i0001/{number:02d}")
        got = values(shuffled.score(group))
        assert sorted(got) == [0.0] * 5 + [1.0] * 3
        moved += got != [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    # 8·7·6 / 3! = 56 arrangements: about one group in 56 keeps all its places by chance
    assert moved >= 45


def test_every_place_is_equally_likely() -> None:
    shuffled = reward("shuffled", reward="numeric_answer")
    places: Counter[int] = Counter()
    for number in range(2000):
        group = group_of(["7", "8", "8", "8"], f"i0001/{number:04d}")
        places[values(shuffled.score(group)).index(1.0)] += 1
    # 2000 draws of 4 places: 500 each, standard deviation sqrt(2000 · ¼ · ¾) = 19.4; its own place (0) is no exception
    assert all(abs(places[place] - 500) < 5 * 19.4 for place in range(4))


def test_the_same_seed_the_same_permutation_whatever_the_order_of_rows() -> None:
    group = group_of([str(number) for number in range(8)], reference="3")
    first, again = (reward("shuffled", reward="numeric_answer") for _ in range(2))
    expected = values(first.score(group))
    assert values(again.score(group)) == expected
    assert values(again.score(group[::-1])) == expected[::-1]
    others = [
        values(reward("shuffled", reward="numeric_answer", seed=seed).score(group))
        for seed in range(1, 20)
    ]
    assert any(other != expected for other in others)


def test_logs_the_rows_own_value_and_what_the_wrapped_reward_logs() -> None:
    results = reward("shuffled", reward="numeric_answer").score(group_of(["7", "it is 7", "8"]))
    logs = [dict(result.log) for result in results if isinstance(result, RewardResult)]
    assert logs == [
        {"shuffled_original": 1.0, "shuffled_numeric_answer_lenient": 1.0},
        {"shuffled_original": 0.0, "shuffled_numeric_answer_lenient": 1.0},
        {"shuffled_original": 0.0, "shuffled_numeric_answer_lenient": 0.0},
    ]


def test_a_row_that_failed_keeps_its_error_and_the_others_are_permuted(project: Any) -> None:
    (project / "mine.py").write_text(
        "from rollbook.components.rewards.base import Reward\n"
        "class Mine(Reward):\n"
        "    def __call__(self, row):\n"
        "        return 1.0 / (int(row.text) - 8)\n"
    )
    shuffled = reward("shuffled", reward={"path": "mine.py:Mine"})
    results: list[Any] = shuffled.score(group_of(["9", "8", "10", "12"]))
    assert results[1].value is None
    assert results[1].error == "Mine: ZeroDivisionError: float division by zero"
    assert sorted(result.value for result in results if result.error is None) == [0.25, 0.5, 1.0]


def test_step_rewards_stay_behind() -> None:
    class Steps(Reward):
        def __call__(self, row: Any) -> RewardResult:
            return RewardResult(1.0, steps=[(0, 1.0)])

    results: list[Any] = reward("shuffled", reward=Steps(name="steps")).score(group_of(["7", "8"]))
    assert [(result.value, result.steps) for result in results] == [(1.0, None)] * 2


def test_a_wrong_inner_reward_is_told_at_its_place() -> None:
    with pytest.raises(ValidationError) as caught:
        reward("shuffled", reward={"name": "numeric_answer", "tolerence": 1})
    assert caught.value.errors()[0]["loc"] == ("reward", "tolerence")
    with pytest.raises(ValidationError, match="did you mean 'numeric_answer'"):
        reward("shuffled", reward={"name": "numeric_anser"})
