"""`rollbook rescore` on stored tables: what it says, what it keeps, what it refuses."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.cli.rescore import keys_in
from rollbook.cli.rescoring.shown import IN_FULL, validity
from rollbook.core.errors import ArtifactError, ConfigError, RewardError
from rollbook.core.yaml import flow
from rollbook.settings.params import parse_params
from rollbook.tables.artifacts import ROOT
from rollbook.tables.schemas.rescores import SCHEMA
from tests.processes import PYTHONPATH
from tests.stored_iterations import settings, store

KEYS = ["i0001", "i0002", "i0003", "long0002", "long0003"]
DOWN = """from rollbook.components.rewards.base import Reward


class Down(Reward):
    def __call__(self, row):
        if row.rollout_id.startswith("{key}/"):
            raise OSError("no endpoint")
        return float(len(row.text))
"""
"""A reward whose endpoint is down for one iteration, and that likes long answers."""


@pytest.fixture
def stored(project: Path) -> Path:
    """i0001 without log-probs and i0002 with; i0003 was not trained yet."""
    store("i0001")
    store("i0002", reference=-0.7)
    _write(settings())
    return project


def _one_more_than_in_full() -> list[str]:
    """Keys of so many stored iterations that each is shown on a line; beside `stored`, without log-probs."""
    raw = settings()
    keys = [f"i{number:04d}" for number in range(1, IN_FULL + 2)]
    raw["iterations"] = {
        key: {"previous": previous, "recipe": "grpo", "reference": "i0000"}
        for previous, key in itertools.pairwise(["i0000", *keys])
    }
    _write(raw)
    store(*keys[2:])
    return keys


def _write(raw: dict[str, Any]) -> None:
    lines = [f"{name}: {flow(value)}" for name, value in raw.items()]
    Path("params.yaml").write_text("\n".join(lines))


def _output(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["rescore", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_every_stored_iteration_is_asked(stored: Path) -> None:
    before = {path: path.read_bytes() for path in ROOT.rglob("*.parquet")}
    said = _output("my_rewards.py:longest")
    assert said.count("8 rollouts in 2 groups") == 2 and "i0003" not in said
    assert "0.75 → 2.25" in said
    assert "3 change sign (37.5%)" in said
    assert "1 → 1: 0 gained, 0 lost" in said
    assert "exactly on-policy" in said
    assert "worth 90.7% of their number" in said  # seven weights of 1, one of e^-2
    assert "0 → 11" in said and "long answer" in said
    assert {path: path.read_bytes() for path in ROOT.rglob("*") if path.is_file()} == before


def test_rewards_add_up_and_recipes_bring_theirs(stored: Path) -> None:
    said = _output("my_rewards.py:longest:0.5", "numeric_answer", "--iterations", "i0001")
    assert "0.75 → 1.875" in said and "i0002" not in said
    assert "0.75 → 2.25" in _output("--recipe", "long", "--iterations", "i0001")
    said = _output("numeric_answer", "--recipe", "long", "--iterations", "i0001")
    assert "0.75 → 0.75, rank correlation 1" in said


def test_errors_stop_nothing_and_are_told(stored: Path) -> None:
    said = _output("my_rewards.py:sometimes", "numeric_answer", "--iterations", "i0001")
    assert "0 that no reward applies to, 4 errors" in said
    assert "error: sometimes: ValueError: no such luck (4 rollouts)" in said
    moved = said.partition("moved most")[2]
    assert "no rollout moved" in said and not moved  # a failure is no answer


def test_an_iteration_of_errors_alone_is_an_error_after_all_is_kept(stored: Path) -> None:
    Path("broken.py").write_text("def f(completions, **_):\n    raise OSError('no endpoint')\n")
    done = CliRunner().invoke(cli, ["rescore", "broken.py:f", "--out", "kept"])
    assert isinstance(done.exception, RewardError)
    assert str(done.exception) == (
        "no rollout of i0001, i0002 could be scored: 16 errors, such as\n"
        "  - f: OSError: no endpoint (16 rollouts)\n"
        "  hint: mend what the errors name, then ask again"
    )
    assert done.stdout.count("0 that no reward applies to, 8 errors") == 2
    assert "nan" not in done.stdout and "moved" not in done.stdout
    assert pq.read_table("kept/i0002.parquet")["error"].null_count == 0
    assert json.loads(Path("kept/summary.json").read_text())["i0001"]["errors"] == 8


def test_of_several_iterations_those_that_failed_are_named(stored: Path) -> None:
    Path("down.py").write_text(DOWN.format(key="i0002"))
    done = CliRunner().invoke(cli, ["rescore", "down.py:Down"])
    assert "no rollout of i0002 could be scored: 8 errors" in str(done.exception)
    assert "0.75 → 2.25, rank correlation -0.655" in done.stdout


def test_rewards_that_apply_to_nothing_are_a_warning(stored: Path) -> None:
    Path("silent.py").write_text("def f(completions, **_):\n    return [None] * len(completions)\n")
    done = CliRunner().invoke(cli, ["rescore", "silent.py:f"])
    assert done.exit_code == 0
    assert "warning: no reward applies to any rollout of i0001, i0002; do the data" in done.stderr
    assert "8 that no reward applies to, 0 errors" in done.stdout
    for word in ("nan", "mean reward", "moved"):
        assert word not in done.stdout


def test_many_iterations_are_a_line_each_and_what_moved_most_over_all(stored: Path) -> None:
    keys = _one_more_than_in_full()
    Path("down.py").write_text(DOWN.format(key="i0003"))
    done = CliRunner().invoke(cli, ["rescore", "down.py:Down"])
    assert "no rollout of i0003 could be scored: 8 errors" in str(done.exception)
    lines = [line.split() for line in done.stdout.splitlines()]
    rows = {line[0]: " ".join(line[1:]) for line in lines if line and line[0] in keys}
    assert rows == {
        "i0001": "8 0.75 → 2.25 -0.655 3 0 0 0 0 on-policy",
        "i0002": "8 0.75 → 2.25 -0.655 3 0 0 0 0 90.7%",
        "i0003": "8 0.75 → – – – – – 0 8 unknown",
        "i0004": "8 0.75 → 2.25 -0.655 3 0 0 0 0 unknown",
    }
    moved = done.stdout.partition("Moved most:")[2]
    assert (
        moved.count("0 → 11") == 3
        and "error: Down: OSError: no endpoint (8 rollouts)" in done.stdout
    )
    assert "long answer" in moved and "i0003/" not in moved
    assert len([line for line in moved.splitlines() if line.strip().startswith("i000")]) == 10


def test_what_is_there_is_shown_when_a_later_iteration_cannot_be_read(stored: Path) -> None:
    keys = _one_more_than_in_full()
    (ROOT / "scores" / f"{keys[-1]}.parquet").write_bytes(b"cut off")
    done = CliRunner().invoke(cli, ["rescore", "numeric_answer"])
    assert isinstance(done.exception, ArtifactError)
    assert [line.split()[0] for line in done.stdout.splitlines() if "8   " in line] == keys[:-1]


def test_tables_are_kept_where_asked(stored: Path) -> None:
    _output("my_rewards.py:longest", "--out", "kept/here")
    files = sorted(path.name for path in Path("kept/here").iterdir())
    assert files == ["i0001.parquet", "i0002.parquet", "summary.json"]
    SCHEMA.validate(pq.read_table("kept/here/i0002.parquet"), "kept")
    numbers = json.loads(Path("kept/here/summary.json").read_text())
    assert numbers["i0001"]["reward"] == 2.25
    assert numbers["i0001"]["effective_share"] is None


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_scored(stored: Path) -> None:
    Path("file").write_text("")
    Path("counted.py").write_text("def f(completions, **_):\n    open('called', 'w').close()\n")
    with pytest.raises(ConfigError, match="--out: file/x cannot be made: Not a directory"):
        _output("counted.py:f", "--out", "file/x")
    assert not Path("called").exists()


def test_ranges_of_iterations() -> None:
    assert keys_in("i0002-i0003", KEYS) == ["i0002", "i0003"]
    assert keys_in("long0003, i0001", KEYS) == ["i0001", "long0003"]
    for text, said in [
        ("i0009", "did you mean"),
        ("i0001-i0009", "no iteration 'i0009'"),
        ("i0001-long0003", "mixes two branches"),
        ("i0003-i0001", "'i0003-i0001' is reversed; write i0001-i0003"),
        ("i0001,i0003-i0002", "'i0003-i0002' is reversed"),
        ("1-3", "no iteration '1'"),
        ("", "names none"),
    ]:
        with pytest.raises(ConfigError, match=said):
            keys_in(text, KEYS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to ask"),
        (["nmeric_answer"], "did you mean 'numeric_answer'"),
        (["numeric_answer", "numeric_answer"], "two rewards would write the column"),
        (["numeric_answer:inf"], "weight 'inf' is not a number"),
        (
            ["length"],
            "REWARD length: needs target_tokens; write '{name: length, target_tokens: …}'",
        ),
        (
            ["numeric_answer", "judge:0.5"],
            "write '{name: judge, weight: 0.5, base_url: …, model: …}'",
        ),
        (["nmeric_answer", "length"], "2 problems"),
        (["--recipe", "lng"], "did you mean 'long'"),
        (["--stage", "long"], "did you mean 'longer'"),
        (["numeric_answer", "--stage", "longer"], "takes its rewards from params.yaml"),
    ],
)
def test_what_is_refused(stored: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(cli, ["rescore", *arguments], catch_exceptions=False)
    assert said in str(caught.value)


def test_a_stage_where_params_yaml_has_none(stored: Path) -> None:
    _write({name: value for name, value in settings().items() if name != "rescores"})
    with pytest.raises(ConfigError, match=r"no rescores.x; write `rescores: {x: {recipe: …}}`"):
        _output("--stage", "x")


def test_iterations_that_were_not_trained(stored: Path) -> None:
    with pytest.raises(ArtifactError, match=r"prompts/i0003.parquet: does not exist"):
        _output("numeric_answer", "--iterations", "i0003")
    with pytest.raises(ArtifactError, match=r"plan.json: does not exist"):
        _output("--stage", "longer")
    for path in ROOT.rglob("advantages/*.parquet"):
        path.unlink()
    with pytest.raises(ArtifactError, match="no iteration has rollouts"):
        _output("numeric_answer")


def test_what_the_numbers_hold_for(project: Path) -> None:
    params = parse_params(settings())
    assert "exactly on-policy" in validity(params, "i0001", float("nan"))
    assert "the policy i0001, which the old rewards" in validity(params, "i0002", float("nan"))
    assert "samples of i0000 they are worth 41.0%" in validity(params, "i0002", 0.41)


def test_it_works_without_torch(stored: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'datasets'): sys.modules[name] = None\n"
        "from rollbook.cli.main import main\n"
        "main(['rescore', 'numeric_answer', '--recipe', 'long'])\n"
    )
    paths = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=paths)
    assert done.returncode == 0, done.stderr
    assert "i0002: 8 rollouts in 2 groups" in done.stdout and "not tracked" not in done.stderr
