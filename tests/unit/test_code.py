"""Which edits re-run a stage: code does, wherever it is imported from; comments and docstrings do not."""

from pathlib import Path

import pytest

from pipeline.code import code_hashes, hash_of_file

REWARD = """'Rewards.'
from helpers.words import count
import json


def f(completions, **kwargs):
    return [count(c) for c in completions]
"""


@pytest.fixture
def reward(project: Path) -> Path:
    (project / "my_rewards.py").write_text(REWARD)
    (project / "helpers").mkdir()
    (project / "helpers" / "__init__.py").write_text("")
    (project / "helpers" / "words.py").write_text(
        "from . import tables\n\n\ndef count(text):\n    return len(text)\n"
    )
    (project / "helpers" / "tables.py").write_text("WORDS = {}\n")
    (project / "unrelated.py").write_text("x = 1\n")
    return project / "my_rewards.py"


def test_imports_are_followed_through_the_repository(reward: Path) -> None:
    assert list(code_hashes([reward])) == [
        "helpers/__init__.py",
        "helpers/tables.py",
        "helpers/words.py",
        "my_rewards.py",
    ]


@pytest.mark.parametrize("file", ["my_rewards.py", "helpers/words.py", "helpers/tables.py"])
def test_a_changed_helper_changes_the_hash(reward: Path, file: str) -> None:
    before = code_hashes([reward])
    Path(file).write_text(Path(file).read_text() + "\nZ = 2\n")
    after = code_hashes([reward])
    assert {name for name in after if after[name] != before[name]} == {file}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def count(text):", "# counts\ndef count(text):"),
        ("def count(text):\n", 'def count(text):\n    """Counts."""\n'),
        ("    return len(text)", "    return  len( text )"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(reward: Path, old: str, new: str) -> None:
    before = code_hashes([reward])
    words = Path("helpers/words.py")
    assert old in words.read_text()
    words.write_text(words.read_text().replace(old, new))
    assert code_hashes([reward]) == before


def test_a_helper_beside_a_reward_in_another_folder(project: Path) -> None:
    (project / "mine").mkdir()
    (project / "mine" / "rewards.py").write_text("import side\n")
    (project / "mine" / "side.py").write_text("x = 1\n")
    assert list(code_hashes([Path("mine/rewards.py")])) == ["mine/rewards.py", "mine/side.py"]


def test_circular_imports_end(project: Path) -> None:
    (project / "a.py").write_text("import b\n")
    (project / "b.py").write_text("import a\n")
    assert list(code_hashes([Path("a.py")])) == ["a.py", "b.py"]


def test_a_damaged_cache_is_only_slower(reward: Path) -> None:
    before = code_hashes([reward])
    [cache] = Path(".dvc/tmp/rollbook").glob("code-*.json")
    cache.write_text("{broken")
    assert code_hashes([reward]) == before


def test_data_file_hash_follows_content(project: Path) -> None:
    file = Path("words.txt")
    assert hash_of_file(file) == "missing"
    file.write_text("a")
    first = hash_of_file(file)
    assert hash_of_file(file) == first
    file.write_text("bc")
    assert hash_of_file(file) != first
