from pipeline.errors import ConfigError, Problem, RollbookError, nearest


def test_nearest_names_the_closest_and_all_allowed() -> None:
    assert (
        nearest("clip_hi", ["clip_low", "clip_high"])
        == "did you mean 'clip_high'? allowed: clip_high, clip_low"
    )


def test_nearest_without_a_close_name_only_lists() -> None:
    assert nearest("zebra", ["clip_low"]) == "allowed: clip_low"


def test_hint_is_part_of_the_message() -> None:
    assert str(RollbookError("broken", "mend it")) == "broken\n  hint: mend it"


def test_config_error_lists_every_problem() -> None:
    error = ConfigError([Problem("a.b", "is wrong"), Problem("c", "is missing")], "params.yaml")
    assert str(error) == "params.yaml: 2 problems\n  - a.b: is wrong\n  - c: is missing"
