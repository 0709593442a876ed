"""How a component or function of the user's own is found, and what is said when it cannot be."""

from pathlib import Path

import pytest
from pydantic_core import PydanticCustomError

from rollbook.components.rewards.function import Function
from rollbook.core.registry import build, load_object, menu


def test_the_listing_of_a_folder_is_its_menu() -> None:
    assert {"dapo", "grpo", "dr_grpo"} <= set(menu("losses"))
    assert not {"base", "ratio", "kl", "aggregate", "clip"} & set(menu("losses"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("import no_such_module\n", "No module named 'no_such_module'"),
        ("def short():\n    pass\n", "has no 'shrt'; did you mean 'short'"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_error(
    project: Path, source: str, message: str
) -> None:
    """A script that ends in sys.exit() must not end the program that imports it."""
    (project / "mine.py").write_text(source)
    with pytest.raises(ValueError, match=message):
        load_object("mine.py:shrt")


def test_a_helper_beside_the_file_is_importable(project: Path) -> None:
    (project / "mine").mkdir()
    (project / "mine" / "rewards.py").write_text("from beside_rewards import f\n")
    (project / "mine" / "beside_rewards.py").write_text("def f():\n    return 7\n")
    assert load_object("mine/rewards.py:f")() == 7


OWN = """
from rollbook.components.losses.base import Loss
from rollbook.components.losses.dapo import Dapo

class Mine(Dapo): pass
class dapo(Dapo): pass
"""


def test_a_name_and_a_path_must_agree(project: Path) -> None:
    (project / "mine.py").write_text(OWN)
    with pytest.raises(PydanticCustomError, match="leave out name or path"):
        build("losses", {"name": "dapo", "path": "mine.py:Mine"})
    with pytest.raises(PydanticCustomError, match="there is no 'base' in losses"):
        build("losses", "base")


@pytest.mark.parametrize("name", ["Mine", "dapo"])
def test_settings_build_what_they_were_taken_from(project: Path, name: str) -> None:
    (project / "mine.py").write_text(OWN)
    mine = build("losses", {"path": f"mine.py:{name}"})
    assert mine.name == name
    assert type(build("losses", mine.settings())) is type(mine)


def test_a_reward_with_a_path_of_its_own_keeps_it(project: Path) -> None:
    (project / "mine.py").write_text("def function(completions, **columns): return [1.0]\n")
    named = build("rewards", {"name": "function", "path": "mine.py:function"})
    assert type(named) is type(build("rewards", named.settings())) is Function


@pytest.mark.parametrize("path", ["mine.py", "mine:", ":f", "nothing.py:f", "no.such.module:f"])
def test_malformed_paths(project: Path, path: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form|no such file|cannot be imported"):
        load_object(path)
