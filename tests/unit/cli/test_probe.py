import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rollbook.cli.main import cli
from rollbook.core.errors import ConfigError
from rollbook.core.yaml import flow
from rollbook.rl.probing import (
    Probed,
    built_in_prompts,
    cases_of,
    counts,
    fraction_of,
    judged,
    probe,
)
from rollbook.tables.artifacts import write_table
from tests.builders import prompt_rows, rollout_rows, table
from tests.processes import PYTHONPATH
from tests.unit.components.rewards.rows import reward, row
from tests.unit.settings.test_params import shipped


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["probe", *arguments])


def _findings(name: str, **options: Any) -> list[Probed]:
    cases = [case for prompt in built_in_prompts() for case in cases_of(prompt)]
    return probe(reward(name, **options), cases)


def _false(findings: list[Probed], right: bool) -> set[str]:
    return {each.case.kind for each in findings if each.is_false(0.5) and each.case.right is right}


def _store(*texts: str) -> None:
    """Iteration i0001 with one prompt, `1+2=`, and these answers."""
    prompts = prompt_rows(1)
    rollouts = rollout_rows(prompts, [list(texts)])
    write_table(table("prompts", prompts), "prompts", "i0001")
    write_table(table("rollouts", rollouts), "rollouts", "i0001")
    raw = shipped()
    Path("params.yaml").write_text(
        "\n".join(f"{name}: {flow(value)}" for name, value in raw.items())
    )


@pytest.mark.parametrize("above", ["nan", "inf"])
def test_a_bound_that_nothing_passes_is_refused(project: Path, above: str) -> None:
    done = _run("exact_match", "--above", above)
    assert done.exit_code == 2 and "is not a finite number" in done.output


def test_every_kind_of_the_list_is_tried() -> None:
    kinds = {case.kind for case in cases_of(built_in_prompts()[0])}
    assert kinds == {
        "empty",
        "white space",
        "prompt echoed",
        "A or B or C",
        "every number from 0 to 100",
        "every number, the right one last",
        "inside a wrong answer",
        "look-alike letters and digits",
        "enormous output",
        "tags without content",
        "the reference answer",
        "in a sentence",
        "in tags",
        "boxed",
        "another notation",
    }


def test_wrong_cases_are_wrong_and_right_ones_right() -> None:
    """By a reward that is strict about everything, and by the best there is."""
    assert _false(_findings("exact_match"), right=False) == set()
    assert _false(_findings("math_answer"), right=False) == set()
    assert _false(_findings("math_answer"), right=True) == set()


def test_what_fools_the_last_number() -> None:
    found = _findings("numeric_answer", mode="lenient")
    assert {"A or B or C", "every number, the right one last"} <= _false(found, right=False)
    assert _false(_findings("numeric_answer"), right=True) >= {"in a sentence", "boxed"}


def test_a_reward_that_gives_everything_and_one_that_gives_nothing(project: Path) -> None:
    Path("mine.py").write_text(
        "def always(completions, **columns): return [1.0] * len(completions)\n"
        "def never(completions, **columns): return [None] * len(completions)\n"
        "def broken(completions, **columns): return [1 / len(completions[0][0]['content'])]\n"
    )
    always = _run("mine.py:always")
    assert always.exit_code == 0, always.output
    assert "False positives: 80\n" in always.output and "False negatives: none" in always.output
    assert (
        "  empty: '' → reward 1\n    reference answer '7', probe/built-in-0/00/00" in always.output
    )
    never = _run("mine.py:never")
    assert "False positives: none" in never.output and "False negatives: none" in never.output
    broken = _run("mine.py:broken:0.5")
    assert broken.exit_code == 0
    assert "Errors: 5\n  empty: '' → broken: ZeroDivisionError" in broken.output


def test_prompts_and_rollouts_of_the_project(project: Path) -> None:
    _store("3", "4", "It is 3", "", "33")
    result = _run("{name: numeric_answer, mode: lenient}")
    assert result.exit_code == 0, result.output
    assert "reward_numeric_answer on 1 prompts of i0001" in result.output
    assert "5 stored rollouts of i0001: 1 surely right" in result.output
    assert "3 surely wrong" in result.output
    Path("mine.py").write_text(
        "def longer(completions, **columns): return [float(c[0]['content'] != '3') for c in completions]"
    )
    stored = _run("mine.py:longer").output.partition("stored rollouts")[2]
    assert "False positives: 3\n  stored rollout: '4' → reward 1\n" in stored
    assert "False negatives: 1\n  stored rollout: '3' → reward 0\n" in stored
    assert "i0001/" in stored and "prompt '1+2='" in stored


def test_group_that_is_cut_is_left_out(project: Path) -> None:
    prompts = prompt_rows(2)
    rollouts = rollout_rows(prompts, [["3", "4"], ["5", "6"]])
    write_table(table("prompts", prompts), "prompts", "i0001")
    write_table(table("rollouts", rollouts), "rollouts", "i0001")
    Path("params.yaml").write_text(
        "\n".join(f"{name}: {flow(value)}" for name, value in shipped().items())
    )
    assert "on 2 stored rollouts" in _run("exact_match", "--rollouts", "3").output
    assert "on 4 stored rollouts" in _run("exact_match", "--rollouts", "4").output
    assert "stored rollouts" not in _run("exact_match", "--rollouts", "0").output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("math_anser",), "did you mean 'math_answer'"),
        (("{name: format, patern: boxed}",), "unknown key; did you mean 'pattern'"),
        (("nowhere.py:f",), "no such file"),
        (("exact_match", "--iteration", "i0009"), "'i0009' has no rollouts"),
    ],
)
def test_what_is_refused(project: Path, arguments: tuple[str, ...], reason: str) -> None:
    _store("3", "4")
    result = _run(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert reason in str(result.exception)


def test_a_prompt_that_opens_the_thought() -> None:
    (first, *_) = built_in_prompts()
    opened = row("", "7", prompt="3+4=<think>\n", messages=first.messages)
    texts = {case.row.text for case in cases_of(opened)}
    assert {"</think>7", "Let me see.</think><answer>7</answer>", ""} <= texts
    found = probe(reward("format"), cases_of(opened))
    assert counts(found, 0.5)["in tags"]["rewarded"] == 1


def test_counts_are_numbers_where_a_kind_has_one_case() -> None:
    found = probe(reward("exact_match"), cases_of(built_in_prompts()[0]))
    for count in counts(found, 0.5).values():
        assert {type(number) for number in count.values()} == {int}


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("7", "7", True),
        (" 7 ", "#### 7", True),
        ("7.0", "7", True),
        ("1/2", "0.5", True),
        ("8", "7", False),
        ("", "7", False),
        ("It is 7", "7", None),
        ("it is .5 or so, 0.5", r"\frac{1}{2}", None),
        ("no idea", "7", False),
        ("paris", "Paris", None),
        ("London", "Paris", False),
        ("7", None, None),
    ],
)
def test_judged_without_a_reward(text: str, reference: str | None, expected: bool | None) -> None:
    assert judged(row(text, reference)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", Fraction(7)),
        ("-0.5", Fraction(-1, 2)),
        (r"-\frac{2}{3}", Fraction(-2, 3)),
        ("2/3", Fraction(2, 3)),
        ("1,000", Fraction(1000)),
        ("0", Fraction(0)),
        ("1/0", None),
        ("1e99", None),
        ("x", None),
    ],
)
def test_fraction_of(text: str, expected: Fraction | None) -> None:
    assert fraction_of(text) == expected


def test_needs_no_torch(project: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from rollbook.cli.main import main; main(['probe', 'numeric_answer'])"
    )
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "False negatives" in found.stdout
