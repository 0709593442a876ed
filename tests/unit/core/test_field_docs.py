import pytest

from rollbook.components.engines.base import Sampling
from rollbook.core.component import Component, Model
from rollbook.core.field_docs import headline_of, meaning_of
from rollbook.core.registry import build, menu
from rollbook.settings.recipe_sections import PreparePrompts, UpdatePolicy


@pytest.mark.parametrize(
    ("cls", "field", "said"),
    [
        (PreparePrompts, "prompts_per_iteration", "Prompts an update is meant to train on"),
        (PreparePrompts, "system_prompt", "Put before the messages"),
        (Sampling, "top_k", "Keep only the k likeliest tokens"),
        (Sampling, "temperature", ""),
        (UpdatePolicy, "epochs", "Passes over the iteration's rollouts"),
    ],
)
def test_strings_below_fields(cls: type[Model], field: str, said: str) -> None:
    found = meaning_of(cls, field)
    assert found.startswith(said) if said else found == ""
    assert "\n" not in found


def test_attributes_of_a_component_and_of_its_parents() -> None:
    dapo = type(build("losses", "dapo"))
    assert meaning_of(dapo, "clip_low").startswith("the ratio is not followed below 1 − clip_low")
    assert meaning_of(dapo, "delta").startswith("cap on the ratio")
    assert meaning_of(dapo, "kl_coef").startswith("weight of the KL to the reference")
    overlong = {"name": "soft_overlong", "max_completion_tokens": 8, "cache_tokens": 2}
    assert "length at which the penalty" in meaning_of(
        type(build("rewards", overlong)), "max_completion_tokens"
    )


def test_several_names_share_a_text() -> None:
    class Two(Model):
        """Two fields.

        Attributes:
            a, b: what both
                are about. And more.
            c: another.
        """

        a: int = 0
        b: int = 0
        c: int = 0

    assert [meaning_of(Two, name) for name in "abc"] == [
        "what both are about",
        "what both are about",
        "another",
    ]


@pytest.mark.parametrize("kind", ["losses", "advantages"])
def test_every_file_has_a_headline(kind: str) -> None:
    for name in menu(kind):
        spec = {"name": name, **({"cap": 5.0} if name == "cispo" else {})}
        component = build(kind, spec)
        assert isinstance(component, Component)
        line = headline_of(type(component))
        assert line and not line.startswith(name)
