"""README's example of `rollbook.open` runs, and prints what it says where this does not depend on the run."""

import doctest
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[4] / "README.md"


def test_the_example_in_the_readme_runs(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    (block,) = re.findall(r"```pycon\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    block = block.replace("i0003", "i0002")  # the last one of this run
    names: dict[str, object] = {}
    printed = {}
    for example in doctest.DocTestParser().get_examples(block):
        try:
            printed[example.source.strip()] = eval(example.source, names)
        except SyntaxError:  # a statement
            exec(example.source, names)
    assert printed["run.chain().keys"] in (["i0001", "i0002"], ["i0001", "own0002"])
    states = [value for source, value in printed.items() if "currency" in source]
    assert [repr(each) for each in states] == ["<State.DONE: 'done'>"]
    assert repr(states[0]) in block
