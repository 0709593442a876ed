from pipeline.ids import group_id_of, prompt_id_of, rollout_id_of, seed_of

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
