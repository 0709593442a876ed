"""Reward functions of TRL's signature, called as TRL calls them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.components.rewards.base import RewardResult
from rollbook.core.errors import RewardError
from rollbook.rl.scoring.scorer import score_groups
from tests.unit.components.rewards.rows import reward, row

GROUP = [
    row("7", "7", 0, columns={"difficulty": 2, "tests": ["a", "b"]}),
    row("seven", "7", 1, columns={"difficulty": 2, "tests": ["a", "b"]}),
]


def call(project: Path, source: str, name: str = "f", **options: Any) -> list[Any]:
    file = project / f"rewards_{abs(hash(source))}.py"
    file.write_text(source)
    return reward("function", path=f"{file.name}:{name}", **options).score(GROUP)


def test_called_as_trl_does(project: Path) -> None:
    source = """
seen = {}
def f(prompts, completions, **kwargs):
    seen.update(kwargs, prompts=prompts, completions=completions)
    return [float(len(completion[0]["content"])) for completion in completions]
"""
    assert call(project, source) == [1.0, 5.0]
    from rollbook.core.registry import load_object

    seen = load_object(f"rewards_{abs(hash(source))}.py:seen")
    assert seen["prompts"] == [[{"role": "user", "content": "3+4="}]] * 2
    assert seen["completions"] == [
        [{"role": "assistant", "content": "7"}],
        [{"role": "assistant", "content": "seven"}],
    ]
    assert seen["completion_ids"] == [[5, 2], [5, 6, 7, 8, 9, 2]]
    assert seen["difficulty"] == [2, 2]
    assert seen["tests"] == [["a", "b"], ["a", "b"]]
    assert seen["reference_answer"] == ["7", "7"]
    assert seen["trainer_state"].global_step == 3
    assert "answer" not in seen  # only where a function names it


def test_text_style(project: Path) -> None:
    source = "def f(prompts, completions): return [len(p) + len(c) for p, c in zip(prompts, completions)]"
    # `<user>3+4=<assistant>` has 21 characters
    assert call(project, source, style="text") == [22, 26]


def test_gets_only_what_it_names(project: Path) -> None:
    assert call(project, "def f(difficulty): return difficulty") == [2, 2]
    assert call(project, "def f(*, completions): return [1 for _ in completions]") == [1, 1]


@pytest.mark.parametrize("name", ["answer", "solution", "ground_truth", "target", "label"])
def test_usual_names_mean_the_reference_answer(project: Path, name: str) -> None:
    source = (
        "def f(completions, {0}{1}, **kwargs):\n"
        "    return [float(c[0]['content'] == a) for c, a in zip(completions, {0})]"
    )
    for default in ("", "=None"):
        assert call(project, source.format(name, default)) == [1.0, 0.0]


def test_a_column_goes_before_the_alias_and_a_default_stays(project: Path) -> None:
    file = project / "alias.py"
    file.write_text(
        "def f(completions, answer): return [float(a == 'column') for a in answer]\n"
        "def g(completions, target=0.5): return [target for _ in completions]\n"
    )
    group = [row("7", "7", columns={"answer": "column"})]
    assert reward("function", path="alias.py:f").score(group) == [1.0]
    assert reward("function", path="alias.py:g").score(group) == [0.5]


def test_none_means_does_not_apply(project: Path) -> None:
    assert call(project, "def f(completions, **kw): return [None, 1]") == [None, 1]


def test_async_functions_and_callable_objects(project: Path) -> None:
    source = """
import asyncio
async def f(completions, **kwargs):
    await asyncio.sleep(0)
    return [1.0 for _ in completions]
class Length:
    def __call__(self, completions, **kwargs):
        return tuple(len(c[0]["content"]) for c in completions)
length = Length()
"""
    assert call(project, source) == [1.0, 1.0]
    assert call(project, source, "length") == [1, 5]


def test_arrays_are_taken(project: Path) -> None:
    assert call(
        project, "import numpy\ndef f(completions): return numpy.array([1, 2], 'float32')"
    ) == [1, 2]


def test_logs_columns(project: Path) -> None:
    source = """
def f(completions, log_extra, log_metric, **kwargs):
    log_extra("length", [len(c[0]["content"]) for c in completions])
    log_metric("share", 0.5)
    return [1.0, None]
"""
    assert call(project, source) == [
        RewardResult(1.0, {"length": 1, "share": 0.5}),
        RewardResult(None, {"length": 5, "share": 0.5}),
    ]
    with pytest.raises(RewardError, match="logged 1 values as 'x' for 2 completions"):
        call(project, "def f(log_extra, **kw):\n log_extra('x', [1])\n return [0, 0]")


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("[1.0]", "returned 1 values for 2 completions"),
        ("[1.0, 2.0, 3.0]", "returned 3 values for 2 completions"),
        ("None", "returned NoneType, must return a list of 2 numbers"),
        ("1.0", "returned float"),
        ("'ab'", "returned str"),
        ("{0: 1, 1: 2}", "returned dict"),
        ("(x for x in (1, 2))", "returned generator"),
    ],
)
def test_the_wrong_thing_returned_is_an_error(project: Path, returned: str, reason: str) -> None:
    with pytest.raises(RewardError, match=reason):
        call(project, f"def f(completions): return {returned}")


def test_a_parameter_nobody_has_is_named_with_what_there_is(project: Path) -> None:
    with pytest.raises(
        RewardError, match=r"needs 'dificulty'.*did you mean 'difficulty'.*completions"
    ):
        call(project, "def f(completions, dificulty): return [1, 1]")
    with pytest.raises(RewardError, match="needs 'x'"):
        call(project, "def f(completions, x, **kwargs): return [1, 1]")


def test_cannot_change_the_rows(project: Path) -> None:
    call(
        project,
        "def f(prompts, completion_ids):\n prompts[0].clear(); completion_ids[0].clear()\n return [0, 0]",
    )
    assert len(GROUP[0].messages) == 1
    assert len(GROUP[0].completion_token_ids) == 2


def test_named_after_the_function_unless_labelled(project: Path) -> None:
    (project / "named.py").write_text("def brevity(completions): return [0.0 for _ in completions]")
    assert reward("function", path="named.py:brevity").column == "reward_brevity"
    assert reward("function", path="named.py:brevity", label="short").column == "reward_short"


def test_its_file_decides_results(project: Path) -> None:
    (project / "named.py").write_text("def f(completions): return [0.0 for _ in completions]")
    assert reward("function", path="named.py:f").code_files() == ["named.py"]
    module = reward("function", path="tests.unit.components.rewards.rows:row").code_files()
    assert [Path(file).name for file in module] == ["rows.py"]
    [installed] = reward("function", path="numpy.linalg:norm").code_files()
    assert installed.endswith("site-packages/numpy/linalg/__init__.py")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nothing.py:f", "no such file"),
        ("some.py:g", "has no 'g'; did you mean 'f'|has no 'g'; allowed"),
        ("some.py", "not of the form"),
        ("no_such_package:f", "cannot be imported"),
        ("some.py:VALUE", "is int, not a function"),
        ("some.py:Class", "is a class, not a function"),
        ("some.py:positional", "by position only"),
        ("broken.py:f", "cannot be imported: SyntaxError"),
    ],
)
def test_what_cannot_be_called_is_refused_when_built(project: Path, path: str, reason: str) -> None:
    (project / "some.py").write_text(
        "VALUE = 1\nclass Class: pass\ndef positional(completions, /): ...\ndef f(completions): ...\n"
    )
    (project / "broken.py").write_text("def f(:\n")
    with pytest.raises(ValidationError, match=reason) as caught:
        reward("function", path=path)
    assert caught.value.errors()[0]["loc"] == ("path",)


def test_needs_a_path() -> None:
    with pytest.raises(ValidationError) as caught:
        reward("function")
    assert [(line["loc"], line["type"]) for line in caught.value.errors()] == [
        (("path",), "missing")
    ]


def test_asynchronous_functions_may_keep_what_belongs_to_a_loop(project: Path) -> None:
    source = """
import asyncio
lock = asyncio.Lock()
async def one(text):
    async with lock:
        await asyncio.sleep(0)
    return float(len(text))
async def f(completions, **kwargs):
    return await asyncio.gather(*(one(c[0]["content"]) for c in completions))
"""
    assert call(project, source) == call(project, source) == [1.0, 5.0]


def test_further_arguments(project: Path) -> None:
    source = "def f(completions, scale): return [scale for _ in completions]"
    assert call(project, source, arguments={"scale": 0.5}) == [0.5, 0.5]


def verl(project: Path, source: str, *rows: Any, **options: Any) -> list[Any]:
    file = project / f"verl_{abs(hash(source))}.py"
    file.write_text(source)
    scorer = reward("function", path=f"{file.name}:compute_score", style="verl", **options)
    return scorer.score(rows or GROUP)


def test_verl_calls_once_per_completion(project: Path) -> None:
    source = """
seen = []
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    seen.append((data_source, solution_str, ground_truth, extra_info))
    extra_info.clear()
    return float(solution_str == ground_truth)
"""
    columns = {"data_source": "gsm8k", "extra_info": {"index": 4}}
    plain = {"difficulty": 2}
    rows = (row("7", "7", 0, columns=columns), row("8", "7", 1, columns=plain))
    assert verl(project, source, *rows) == [1.0, 0.0]
    from rollbook.core.registry import load_object

    seen = load_object(f"verl_{abs(hash(source))}.py:seen")
    assert [entry[:3] for entry in seen] == [("gsm8k", "7", "7"), ("", "8", "7")]
    assert (columns["extra_info"], plain) == ({"index": 4}, {"difficulty": 2})


def test_verl_extra_info_and_ground_truth_of_its_own_columns(project: Path) -> None:
    source = (
        "def compute_score(ground_truth, extra_info, **kwargs):\n"
        "    return {'score': extra_info['index'], 'truth': str(ground_truth), 'kwargs': len(kwargs)}"
    )
    info = {"extra_info": {"index": 4}}
    rows = [
        row("x", "7", columns={**info, "reward_model": {"style": "rule", "ground_truth": "8"}}),
        row("x", "7", columns={**info, "ground_truth": {"target": 9}}),
        row("x", "7", columns={"index": 5}),
    ]
    assert verl(project, source, *rows, arguments={"x": 1}) == [
        RewardResult(4, {"truth": "8", "kwargs": 3}),
        RewardResult(4, {"truth": "{'target': 9}", "kwargs": 3}),
        RewardResult(5, {"truth": "7", "kwargs": 3}),
    ]


def test_verl_results_with_more_than_a_score(project: Path) -> None:
    source = """
import numpy
async def compute_score(data_source, solution_str, ground_truth, extra_info):
    return {"score": numpy.float32(0.5), "acc": True, "pred": "7", "parts": [1, 2]}
"""
    assert verl(project, source)[0] == RewardResult(0.5, {"acc": True, "pred": "7"})


def test_an_exception_in_verl_is_an_error_of_its_row(project: Path) -> None:
    source = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    if solution_str == "7": raise ValueError("at 0x7f0123456789")
    return {"accuracy": 1} if solution_str == "8" else 1
"""
    rows = [row("7", "7", 0), row("8", "7", 1), row("9", "7", 2)]
    assert verl(project, source, *rows) == [
        RewardResult(None, error="ValueError: at 0x…"),
        RewardResult(None, error="RewardError: returned a dictionary without 'score'"),
        1,
    ]


def test_verl_has_no_other_names(project: Path) -> None:
    (outcome, _) = verl(project, "def compute_score(solution_str, answer): return 1")
    assert "needs 'answer'" in outcome.error


def test_a_file_of_trl_rewards_runs_unchanged() -> None:
    texts = (
        "<think>\na\n</think>\n<answer>\n7\n</answer>\n",
        "<think>a</think><answer>7</answer>",
        "<answer>eight</answer>",
        "",
    )
    names = ("correctness", "int", "strict_format", "soft_format", "tag_count", "novelty")
    rewards = [
        reward(
            "function",
            path=f"tests.unit.components.rewards.trl_rewards:{name}_reward_func",
            label=name,
        )
        for name in names
    ]
    columns = score_groups(rewards, [row(text, "7", place) for place, text in enumerate(texts)])
    assert {name: columns[f"reward_{name}"].to_pylist() for name in names} == {
        "correctness": [2.0, 2.0, 0.0, 0.0],
        "int": [0.5, 0.5, 0.0, 0.0],
        "strict_format": [0.5, 0.0, 0.0, 0.0],
        "soft_format": [0.5, 0.5, 0.0, 0.0],
        "tag_count": [0.5, 0.5, 0.25, 0.0],
        "novelty": [0.0, 0.0, 1.0, None],
    }
    assert columns["reward"].to_pylist() == [4.0, 3.5, 1.25, 0.0]
    assert columns["distinct_answers"].to_pylist() == [3.0] * 4
    assert columns["error"].null_count == 4


def test_a_function_for_verl_without_the_style_says_so(project: Path) -> None:
    source = "def f(data_source, solution_str, ground_truth, extra_info): return 1.0"
    with pytest.raises(RewardError, match=r"needs 'data_source', .* set `style: verl`"):
        call(project, source)
