from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.components.critics.base import Critic
from rollbook.core.registry import menu
from rollbook.settings.recipe_sections import UpdatePolicy


def _critic(**options: Any) -> Critic:
    critic = UpdatePolicy.model_validate({"critic": options}).critic
    assert critic is not None
    return critic


def test_the_menu() -> None:
    assert menu("critics") == ["head", "network"]


def test_there_is_none_unless_it_is_asked_for() -> None:
    assert UpdatePolicy().critic is None
    assert UpdatePolicy.model_validate({"critic": None}).critic is None


@pytest.mark.parametrize("name", menu("critics"))
def test_measuring_does_not_notice_how_it_learns(name: str) -> None:
    changed = _critic(
        name=name,
        learning_rate=0.1,
        coef=3.0,
        value_clip=None,
        aggregation="row_mean",
        warmup_steps=7,
        max_grad_norm=None,
    )
    assert changed != _critic(name=name)
    assert changed.as_read() == _critic(name=name).as_read()
    assert _critic(name="head", detach=True).as_read() == _critic(name="head").as_read()


def test_a_learning_rate_that_nobody_chose_is_pointed_out() -> None:
    assert "learning rate of the policy" in _critic(name="head").cautions()[0]
    assert not _critic(name="head", learning_rate=1e-5).cautions()


def test_memory_settings_must_not_change_what_it_learns() -> None:
    with pytest.raises(ValidationError, match="memory settings would change what the critic"):
        _critic(name="head", aggregation="micro_batch_token_mean")


@pytest.mark.parametrize("option", ["coef", "value_clip", "max_grad_norm", "learning_rate"])
def test_what_would_learn_nothing_is_refused(option: str) -> None:
    with pytest.raises(ValidationError):
        _critic(**{"name": "network", option: 0.0})
