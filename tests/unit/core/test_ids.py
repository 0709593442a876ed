import pytest

from rollbook.core.ids import (
    IdParts,
    group_id_of,
    order_of,
    parts_of,
    parts_of_group,
    prompt_id_of,
    rollout_id_of,
    seed_of,
)

MESSAGES = [{"role": "user", "content": "1+2="}]


def test_prompt_id_is_16_hex_digits_and_depends_on_answer() -> None:
    first = prompt_id_of(MESSAGES, "3")
    assert len(first) == 16 and int(first, 16) >= 0
    assert first == prompt_id_of([{"content": "1+2=", "role": "user"}], "3")
    assert first != prompt_id_of(MESSAGES, "4")
    assert first != prompt_id_of(MESSAGES, None)


def test_prompt_id_takes_lone_surrogates() -> None:
    assert len(prompt_id_of([{"role": "user", "content": "\ud800"}], None)) == 16


def test_ids_nest() -> None:
    group = group_id_of("i0001", "ab")
    assert group == "i0001/ab"
    assert rollout_id_of(group, 7) == "i0001/ab/07"
    assert rollout_id_of(group, 123) == "i0001/ab/123"
    assert group_id_of("i0001", "ab", "heldout") == "eval:heldout/i0001/ab"


def test_seeds_fit_int64_and_differ() -> None:
    seeds = {seed_of(0, "i0001", "ab", index) for index in range(1000)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("name", [None, "heldout", "math/aime", "math/aime2024/i0001"])
def test_ids_are_read_back_whatever_their_set_is_called(name: str | None) -> None:
    group = group_id_of("i0001", "ab", name)
    whole = IdParts(name or "", "i0001", "ab")
    assert parts_of_group(group) == whole
    assert parts_of(group, {"i0001"}) == whole
    assert parts_of(rollout_id_of(group, 7), {"i0001"}) == IdParts(name or "", "i0001", "ab", "07")
    assert parts_of(group.rpartition("/")[0], {"i0001"}) == IdParts(name or "", "i0001")
    assert group == f"{whole.head}i0001/ab"


def test_an_id_with_too_many_parts_is_none() -> None:
    assert parts_of("i0001/ab/07/1", {"i0001"}) is None
    assert parts_of("eval:heldout/i0001/ab/07/1/2", {"i0001"}) is None
    assert parts_of("eval:heldout/i00", {"i0001"}) == IdParts("heldout", "i00")
    assert parts_of("eval:heldout", {"i0001"}) == IdParts("heldout", "")


def test_iterations_are_ordered_by_number_then_branch() -> None:
    keys = ["own0002", "i0010", "gspo0004", "i0004", "i0003"]
    assert sorted(keys, key=order_of) == ["own0002", "i0003", "gspo0004", "i0004", "i0010"]
