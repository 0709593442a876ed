"""Which edits re-run a stage: code does, wherever it is imported from; comments and docstrings do not."""

import ast
from pathlib import Path

import pytest

from rollbook.project.code import code_hashes, hash_of_file

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


MANY_CONSTRUCTS = r'''
from __future__ import annotations
import os.path as p, sys
from . import (near, far as away)

type_free: dict[str, "list[int]"] = {**{}, 'a': [1, -2, 0x1F, 10**3], "b": (yes := True)}
numbers = 1.5e-300, 1e999, -0.0, 3j, 1 + 2J, b'\x00"\'', ..., None, 123456789012345678901234567890
texts = 'one' "two" u'three', r"\d", "\u00e9\ud800\U0001F600\u1c8a", """a
b"""
joined = f"{x!r:>{width}.{p}f} {{}} {f'{y:{z}}' + 'q'} \N{BULLET}" "tail" f"{x=}" f'{d["k"]}' f"plain"


@decorated(1, *more, key=lambda a, /, b=2, *c, d: (a, b), **rest)
class C(Base, metaclass=Meta):
    """Left out."""

    field: int = 3
    "Left out too."

    async def run(self, a: int = 1, /, *, b: str = "x", **k: object) -> list[int] | None:
        async with open(a) as f, g():
            return [await i async for i in f if not i if i is not None]
        async for i, *j in b:
            yield i[1:2, ..., ::-1]


def match(command):
    """Left out."""
    global seen
    match command:
        case [1, "x", *others] | (None as others) if others:
            pass
        case {"a": -1, "b": 2 + 3j, **rest}: ...
        case Point(x=0.0, y=True) | a.b.c | _: return


def flow():
    nonlocal_ = 0
    def inner():
        nonlocal nonlocal_
        nonlocal_ += 1; nonlocal_ @= 2
    for i in range(3):
        if 0 < i <= 2 != 3 not in {1, 2}: continue
        elif ~i and not (i << 1 or i // 2): break
        else: del i
    else:
        while (n := 1): raise E from None
    try:
        assert x, f"no {x}"
    except (A, B) as error: raise
    else: x = yield
    finally: x = yield from y
    try: pass
    except* OSError: pass
    with (open("a") as a, b as [c, d]): ...
    return {k: v for k, v in z.items()}, {s for s in t}, (g for g in h), a if b else c
'''
"""In the syntax of the oldest Python that is allowed."""


def test_hashes_are_the_same_in_every_version_of_python(project: Path) -> None:
    """Recorded: under another version this fails if syntax trees are written otherwise there."""
    Path("many.py").write_text(MANY_CONSTRUCTS)
    assert code_hashes([Path("many.py")]) == {"many.py": "927e1ac0251959cd72b5cce552f3ed68"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.5e-300", "1.5e-301"),
        ("1e999", "2"),
        ("None, 1234", "False, 1234"),
        ("3j", "3"),
        ("3j", "3.0"),
        ("b'\\x00", "'\\x00"),
        ("-0.0", "0.0"),
        ("0x1F", "0x1E"),
        ("{x!r:", "{x!s:"),
        (".{p}f}", ".{q}f}"),
        ("{{}}", "{{"),
        ('f"plain"', 'f"pain"'),
        ("a, /, b=2", "a, b=2"),
        ("*, b: str", "b: str"),
        ("async for i, *j", "async for i, j"),
        ("None as others", "True as others"),
        ("**rest}: ...", "**others}: ..."),
        ("{**{}", "{None: {}"),
        ("if not i if", "if i if"),
        ("x = yield\n", "x = yield x\n"),
        ("except* OSError", "except OSError"),
        ("nonlocal_ += 1; nonlocal_ @= 2", "nonlocal_ @= 2; nonlocal_ += 1"),
        ("from . import", "from .. import"),
        ("as p, sys", "as q, sys"),
        ("@decorated(1, ", "@decorated("),
    ],
)
def test_everything_that_runs_counts(project: Path, old: str, new: str) -> None:
    assert old in MANY_CONSTRUCTS
    hashes = []
    for text in (MANY_CONSTRUCTS, MANY_CONSTRUCTS.replace(old, new, 1)):
        ast.parse(text)
        Path("many.py").write_text(text)
        hashes.append(code_hashes([Path("many.py")]))
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'one' \"two\"", "'onetwo'"),
        ("u'three'", "'three'"),
        ("10**3", "10 ** 3"),
        ("1e999", "1e1000"),
        ("0x1F", "31"),
        ("'a': [1", '"a": [(1)'),
        ('"tail" f"{x=}"', 'f"tail" f"{x=}"'),
        ("f'{d[\"k\"]}'", "f\"{d['k']}\""),
        ("return {k: v", "return {k : v"),
    ],
)
def test_how_it_is_written_does_not_count(project: Path, old: str, new: str) -> None:
    assert old in MANY_CONSTRUCTS
    hashes = []
    for text in (MANY_CONSTRUCTS, MANY_CONSTRUCTS.replace(old, new, 1)):
        ast.parse(text)
        Path("many.py").write_text(text)
        hashes.append(code_hashes([Path("many.py")]))
    assert hashes[0] == hashes[1]


def test_deep_code_is_hashed(project: Path) -> None:
    Path("deep.py").write_text("x = " + " + ".join(["1"] * 2_000) + "\n")
    assert code_hashes([Path("deep.py")]).keys() == {"deep.py"}


def test_data_file_hash_follows_content(project: Path) -> None:
    file = Path("words.txt")
    assert hash_of_file(file) == "missing"
    file.write_text("a")
    first = hash_of_file(file)
    assert hash_of_file(file) == first
    file.write_text("bc")
    assert hash_of_file(file) != first
