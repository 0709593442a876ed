"""`rollbook rescore` on stored tables: what it says, what it keeps, what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipeline.artifacts import ROOT
from pipeline.cli.main import rollbook
from pipeline.cli.rescore import keys_in, validity
from pipeline.errors import ArtifactError, ConfigError
from pipeline.params import parse_params
from pipeline.schemas.rescores import SCHEMA
from pipeline.yaml_text import flow
from tests.unit.stored_iterations import settings, store

KEYS = ["i0001", "i0002", "i0003", "long0002", "long0003"]


@pytest.fixture
def stored(project: Path) -> Path:
    """i0001 without log-probs and i0002 with; i0003 was not trained yet."""
    store("i0001")
    store("i0002", reference=-0.7)
    lines = [f"{name}: {flow(value)}" for name, value in settings().items()]
    Path("params.yaml").write_text("\n".join(lines))
    return project


def _output(*arguments: str) -> str:
    done = CliRunner().invoke(rollbook, ["rescore", *arguments], catch_exceptions=False)
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
    said = _output("my_rewards.py:sometimes", "--iterations", "i0001")
    assert "4 that no reward applies to, 4 errors" in said
    assert "error: sometimes: ValueError: no such luck (4 rollouts)" in said


def test_tables_are_kept_where_asked(stored: Path) -> None:
    _output("my_rewards.py:longest", "--out", "kept/here")
    files = sorted(path.name for path in Path("kept/here").iterdir())
    assert files == ["i0001.parquet", "i0002.parquet", "summary.json"]
    SCHEMA.validate(pq.read_table("kept/here/i0002.parquet"), "kept")
    numbers = json.loads(Path("kept/here/summary.json").read_text())
    assert numbers["i0001"]["reward"] == 2.25
    assert numbers["i0001"]["effective_share"] is None


def test_ranges_of_iterations() -> None:
    assert keys_in("i0002-i0003", KEYS) == ["i0002", "i0003"]
    assert keys_in("long0003, i0001", KEYS) == ["i0001", "long0003"]
    for text, said in [
        ("i0009", "did you mean"),
        ("i0001-i0009", "no iteration 'i0009'"),
        ("i0001-long0003", "mixes two branches"),
        ("i0003-i0001", "names none"),
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
        (["numeric_answer:inf"], "module 'numeric_answer' cannot be imported"),
        (["--recipe", "lng"], "did you mean 'long'"),
        (["--stage", "long"], "did you mean 'longer'"),
        (["numeric_answer", "--stage", "longer"], "takes its rewards from params.yaml"),
    ],
)
def test_what_is_refused(stored: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(rollbook, ["rescore", *arguments], catch_exceptions=False)
    assert said in str(caught.value)


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
        "from pipeline.cli.main import main\n"
        "main(['rescore', 'numeric_answer', '--recipe', 'long'])\n"
    )
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=paths)
    assert done.returncode == 0, done.stderr
    assert "i0002: 8 rollouts in 2 groups" in done.stdout and "not tracked" not in done.stderr
