"""Pairs as other trainers read them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from rollbook.cli.export_pairs import preferences
from rollbook.cli.main import cli
from rollbook.components.advantages.pairs import Pairs
from rollbook.core.errors import ArtifactError, ConfigError
from rollbook.core.yaml import flow
from rollbook.project.run.run import Run
from rollbook.rl.preferences import SCHEMA
from rollbook.settings.params import parse_params
from rollbook.tables.artifacts import path_of, read_table, write_table
from tests.builders import table
from tests.stored_iterations import settings, store

COLUMNS = ["prompt", "chosen", "rejected", "chosen_reward", "rejected_reward"]


def _raw(**prompts: Any) -> dict[str, Any]:
    """Iterations whose groups have four answers, two of them to a prompt that makes pairs."""
    raw = settings(recipes__grpo__generate_rollouts__group_size=4)
    raw["recipes"]["grpo"]["prepare_prompts"] |= prompts
    return raw


@pytest.fixture
def stored(project: Path) -> Path:
    raw = _raw()
    Path("params.yaml").write_text("\n".join(f"{name}: {flow(part)}" for name, part in raw.items()))
    store("i0001", "i0002")
    return project


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["export-pairs", *arguments])


def test_pairs_of_the_stored_scores(stored: Path) -> None:
    found = preferences(Run(), ["i0001"], None)
    assert found.schema == SCHEMA and found.column_names[:5] == COLUMNS
    (row,) = found.to_pylist()
    assert row["prompt"] == [{"role": "user", "content": "1+2="}]
    assert row["chosen"] == [{"role": "assistant", "content": "3"}]
    assert row["rejected"] == [{"role": "assistant", "content": "4"}]
    assert (row["chosen_reward"], row["rejected_reward"]) == (1.0, 0.0)
    assert row["chosen_id"].endswith("/00") and row["pair_id"] == f"{row['chosen_id']}-01"
    every = preferences(Run(), ["i0001", "i0002"], Pairs(pairing="all"))
    assert every.num_rows == 8 and every["iteration"].to_pylist() == ["i0001"] * 4 + ["i0002"] * 4
    assert every["rejected"].to_pylist()[1][0]["content"] == "long answer"


def test_pairs_that_training_stored_come_first(stored: Path) -> None:
    own = preferences(Run(), ["i0001"], Pairs(pairing="all")).slice(3, 1).to_pylist()[0]
    names = ("pair_id", "prompt_id", "iteration", "chosen_id", "rejected_id")
    row = {**{name: own[name] for name in names}, "chosen_reward": 1.0, "rejected_reward": 0.0}
    row["group_id"] = own["chosen_id"].rpartition("/")[0]
    write_table(table("pairs", [row]), "pairs", "i0001")
    write_table(table("pairs", []), "pairs", "i0002")
    assert preferences(Run(), ["i0001"], None)["pair_id"].to_pylist() == [own["pair_id"]]
    assert preferences(Run(), ["i0001"], Pairs())["pair_id"].to_pylist() != [own["pair_id"]]
    assert preferences(Run(), ["i0002"], None).num_rows == 1


def test_pairs_of_another_run_are_named(stored: Path) -> None:
    made = {"iteration": "i0001", "chosen_reward": 1.0, "rejected_reward": 0.0}
    prompts = read_table(path_of("prompts", "i0001"), "prompts")[0]["prompt_id"].to_pylist()
    for prompt, missing in ((prompts[0], "chosen_id"), ("0" * 16, "prompt_id")):
        group = f"i0001/{prompt}"
        ids = {"chosen_id": f"{group}/98", "rejected_id": f"{group}/99"}
        row = {**made, **ids, "prompt_id": prompt, "group_id": group, "pair_id": f"{group}/98-99"}
        write_table(table("pairs", [row]), "pairs", "i0001")
        with pytest.raises(ArtifactError, match=f"{group}/98-99: its {missing} .* is not in"):
            preferences(Run(), ["i0001"], None)
        assert preferences(Run(), ["i0001"], Pairs()).num_rows == 1


def test_what_the_recipe_puts_around_an_answer_is_part_of_it(stored: Path) -> None:
    other = Run()
    other.params = parse_params(_raw(system_prompt="Be brief.", assistant_prefix="<think>"))
    (row,) = preferences(other, ["i0001"], None).to_pylist()
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][0]["content"] == "Be brief."
    assert row["chosen"][0]["content"] == "<think>3"


def test_the_command_writes_what_datasets_reads(stored: Path) -> None:
    result = run("pairs.jsonl", "--pairing", "all")
    assert result.exit_code == 0, result.output
    assert "pairs.jsonl: 8 pairs of i0001, i0002" in result.output
    assert run("pairs.parquet", "--pairing", "all", "--iterations", "i0001-i0002").exit_code == 0
    lines = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
    assert lines == pq.read_table("pairs.parquet").to_pylist()
    datasets = pytest.importorskip("datasets")
    for kind, file in (("json", "pairs.jsonl"), ("parquet", "pairs.parquet")):
        read = datasets.load_dataset(
            kind, data_files=str(stored / file), split="train", cache_dir=str(stored / "cache")
        )
        assert set(COLUMNS) < set(read.column_names) == set(SCHEMA.names)
        first = read[0]
        assert first["chosen"] == lines[0]["chosen"] and first["prompt"][-1]["role"] == "user"


def test_bounds_and_errors_are_said(stored: Path) -> None:
    assert isinstance(run("pairs.txt").exception, ArtifactError)
    assert "does not exist" not in str(run("pairs.txt").exception)
    none = run("pairs.jsonl", "--min-gap", "1.5").exception
    assert isinstance(none, ArtifactError) and "smaller --min-gap" in str(none)
    assert not Path("pairs.jsonl").exists()
    for bound in ("nan", "inf"):
        refused = run("pairs.jsonl", "--min-gap", bound)
        assert refused.exit_code == 2 and f"{bound} is no distance" in refused.output
    assert run("pairs.jsonl", "--min-gap", "1").exit_code == 0
    assert "nothing is written over" in str(run("pairs.jsonl").exception)
    assert isinstance(run("other.jsonl", "--iterations", "i9").exception, ConfigError)
    assert "i0003" in str(run("other.jsonl", "--iterations", "i0003").exception)
    assert "Example: rollbook export-pairs" in run("--help").output


def test_it_needs_no_torch(stored: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'datasets', 'mlflow'): sys.modules[name] = None\n"
        "from rollbook.cli.main import main\n"
        "main(['export-pairs', 'light.parquet'])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "2 pairs of i0001, i0002" in result.stdout
