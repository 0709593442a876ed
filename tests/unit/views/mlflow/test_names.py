import pytest
from mlflow.utils.validation import _validate_metric_name, _validate_param_name

from rollbook.views.mlflow.names import flattened, shortened, valid_name


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("eval/heldout/mean_at_4", "eval/heldout/mean_at_4"),
        ("mean@4", "mean_4"),
        ("a//b", "a/b"),
        ("../secret", "secret"),
        ("rewards/größe/mean", "rewards/gr__e/mean"),
        ("x" * 300, "x" * 250),
    ],
)
def test_names_are_what_mlflow_takes(name: str, valid: str) -> None:
    assert valid_name(name) == valid
    _validate_metric_name(valid)
    _validate_param_name(valid)


def test_settings_are_flattened_down_to_single_values() -> None:
    settings = {
        "seed": 0,
        "loss": {"name": "dapo", "clip_low": 0.2, "path": None},
        "rewards": [{"name": "format"}, {"name": "exact_match"}],
        "draws": [256, 256],
        "kwargs": {},
    }
    assert flattened(settings) == {
        "seed": "0",
        "loss.name": "dapo",
        "loss.clip_low": "0.2",
        "rewards.0.name": "format",
        "rewards.1.name": "exact_match",
        "draws": "[256, 256]",
        "kwargs": "{}",
    }


def test_long_values_are_cut_to_the_limit() -> None:
    assert shortened("abcdef", 4) == "abc…"
    assert len(flattened({"template": "x" * 9000})["template"]) == 6000
