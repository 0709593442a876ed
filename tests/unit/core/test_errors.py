from rollbook.core.errors import ConfigError, Problem, RollbookError, closest, nearest


def test_nearest_names_the_closest_and_all_allowed() -> None:
    assert (
        nearest("clip_hi", ["clip_low", "clip_high"])
        == "did you mean 'clip_high'? allowed: clip_high, clip_low"
    )


def test_nearest_without_a_close_name_only_lists() -> None:
    assert nearest("zebra", ["clip_low"]) == "allowed: clip_low"


def test_the_nearest_of_what_counts_is_the_nearest_number() -> None:
    keys = [f"i{number:04d}" for number in range(1, 13)]
    assert nearest("i0099", keys) == "did you mean 'i0012'? allowed: i0001 to i0012"
    assert nearest("i3", ["base", *keys[:4]]).startswith("did you mean 'i0003'? allowed: base, i00")
    assert closest("gspo0009", [*keys, "gspo0005", "gspo0007"], 3) == ["gspo0007", "gspo0005"]
    assert closest("update_policy@i0009", ["update_policy@i0006", "score_rollouts@i0009"], 1) == [
        "update_policy@i0006"
    ]
    assert closest("clip_hi", ["clip_high"], 1) == []


def test_only_neighbours_are_left_out_of_what_is_allowed() -> None:
    keys = [f"i{number:04d}" for number in (*range(1, 10), 11)]
    assert nearest("zebra", keys) == "allowed: i0001 to i0009, i0011"


def test_hint_is_part_of_the_message() -> None:
    assert str(RollbookError("broken", "mend it")) == "broken\n  hint: mend it"


def test_config_error_lists_every_problem() -> None:
    error = ConfigError([Problem("a.b", "is wrong"), Problem("c", "is missing")], "params.yaml")
    assert str(error) == "params.yaml: 2 problems\n  - a.b: is wrong\n  - c: is missing"
