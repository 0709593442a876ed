"""`rollbook export`: a trained run in, a folder that transformers loads and a true model card out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.components.policies.loading import load_model
from rollbook.core.errors import ArtifactError, PolicyError
from rollbook.core.ids import BASE_KEY
from rollbook.project.ancestry import ancestry_of, find_policy
from rollbook.project.dependencies import Dependencies
from rollbook.project.plan import load_stage
from rollbook.project.plan_file import ITERATION_STAGES, ONCE_STAGES
from rollbook.project.run.run import Run
from rollbook.project.stage import _Clock
from rollbook.rl.context import Context
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params, read_params
from rollbook.tables.artifacts import path_of, read_facts, read_json, read_table, write_json
from rollbook.views.export import export_policy
from tests.unit.settings.test_params import shipped
from tests.unit.stages.test_lora import LORA, settings

IDS = torch.tensor([[66, 67, 68, 69]])


def project_of(folder: Path) -> Path:
    """A policy whose weights were all trained, and two iterations of an adapter, with their run_info."""
    (folder / "params.yaml").write_text(json.dumps(raw_settings()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        params = read_params()
        for name in (*ONCE_STAGES, "evaluate_policy"):
            recorded(name, BASE_KEY, params)
        for key in params.iterations:
            for name in ITERATION_STAGES:
                recorded(name, key, params)
    return folder


def recorded(name: str, key: str, params: Params) -> None:
    """Runs a stage as its program does, without a plan: hashing all code for every step takes longer than the step."""
    stage = load_stage(name)
    settings, inputs = stage.settings.of(params, key), stage.read(key, params)
    context = Context(key, params.runtime, name)
    outputs = stage.run(settings, inputs, context)
    read = {label: fact.content_hash for label, fact in inputs.facts.items()}
    facts = stage._write(key, outputs, read, "")
    write_json(outputs.metrics, stage.metrics_path(key))
    known = Dependencies(settings.model_dump(mode="json", serialize_as_any=True), {}, {})
    info = stage._run_info(key, outputs, context, known, inputs, facts, _Clock())
    write_json(info.as_json(), stage.run_info_path(key))


def raw_settings() -> dict[str, Any]:
    raw = shipped(
        data__train=[{"name": "arithmetic", "below": 6}],
        data__evaluation={"heldout": {"name": "arithmetic", "below": 6, "prompts": 8}},
        policy__base={"name": "tiny", "warm_start_steps": 20, "warm_start_batch": 32},
        recipes__grpo__prepare_prompts={"prompts_per_iteration": 4},
        recipes__grpo__generate_rollouts__group_size=4,
        recipes__grpo__score_rollouts__rewards=[
            {"name": "format", "pattern": "regex", "regex": ".*[02468]"}
        ],
        recipes__grpo__update_policy__optimizer_steps=2,
        evaluate_policy__samples=2,
    )
    raw["recipes"]["lora"] = {
        "extends": "grpo",
        "update_policy": {"lora": LORA, "learning_rate": 5e-3},
    }
    raw["iterations"] = {
        "i0001": {
            "previous": BASE_KEY,
            "recipe": "grpo",
            "reference": BASE_KEY,
            "evaluate": False,
        },
        "lora0001": {"previous": BASE_KEY, "recipe": "lora", "reference": BASE_KEY},
        "lora0002": {"previous": "lora0001", "recipe": "lora", "reference": BASE_KEY},
    }
    return raw


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project_of(tmp_path_factory.mktemp("run"))


@pytest.fixture
def params(run: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(run)
    return read_params()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


@pytest.mark.parametrize("key", ["i0001", "lora0002", BASE_KEY])
def test_the_folder_is_the_policy(params: Params, tmp_path: Path, key: str) -> None:
    export_policy(Run(), find_policy(Run(), key), tmp_path / "out", "stored")
    ours = load_model(path_of("policies", key), torch.device("cpu"))
    assert torch.equal(logits(loaded(tmp_path / "out")), logits(ours))
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "generation_config.json"} < names
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} < names
    assert not names & {"rollbook.json", "adapter_config.json", "base.json", "base_config.json"}
    base = path_of("policies", BASE_KEY)
    for file in ("tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / file).read_bytes() == (base / file).read_bytes()
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_weights_that_stay_are_copied_byte_for_byte(params: Params, tmp_path: Path) -> None:
    policy = find_policy(Run(), "i0001")
    export_policy(Run(), policy, tmp_path / "out", "float32")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "out" / file).read_bytes() == (policy / file).read_bytes()


@pytest.mark.parametrize("key", ["i0001", "lora0002"])
def test_another_type(params: Params, tmp_path: Path, key: str) -> None:
    assert export_policy(Run(), find_policy(Run(), key), tmp_path / "out", "bfloat16") == "bfloat16"
    model = loaded(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    ours = load_model(path_of("policies", key), torch.device("cpu"))
    for name, value in ours.named_parameters():
        assert torch.equal(dict(model.named_parameters())[name], value.to(torch.bfloat16))


def test_the_same_policy_gives_the_same_bytes(params: Params, tmp_path: Path) -> None:
    for place in ("a", "b"):
        export_policy(Run(), find_policy(Run(), "lora0002"), tmp_path / place / "sums", "stored")
    for file in (tmp_path / "a" / "sums").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / "sums" / file.name).read_bytes()


def test_the_card_says_where_the_policy_comes_from(params: Params, tmp_path: Path) -> None:
    export_policy(Run(), find_policy(Run(), "lora0002"), tmp_path / "sums", "stored")
    card = (tmp_path / "sums" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "\n# sums\n" in card
    digests = {
        key: read_facts(path_of("policies", key)).content_hash
        for key in (BASE_KEY, "lora0001", "lora0002", "i0001")
    }
    assert f"| base digest | `{digests[BASE_KEY]}` |" in card
    assert f"| policy digest | `{digests['lora0002']}` |" in card
    assert digests["i0001"][:12] not in card
    rows = sum(
        read_table(path_of("rollouts", f"lora000{k}"), "rollouts")[0].num_rows for k in (1, 2)
    )
    assert f"| rollouts | {rows} |" in card
    assert f"| lora0001 | lora | {rows // 2} | `{digests['lora0001'][:12]}` |" in card
    assert "lora0001 to lora0002, recipe `lora`:" in card
    assert "| update_policy.lora.rank | `4` |" in card
    assert "| update_policy.learning_rate | `0.005` |" in card
    assert "| score_rollouts.rewards.0.name | `format` |" in card
    assert "float32, an adapter merged into its base" in card


def test_the_cards_numbers_are_those_of_the_evaluations(params: Params, tmp_path: Path) -> None:
    export_policy(Run(), find_policy(Run(), "lora0002"), tmp_path / "sums", "stored")
    card = (tmp_path / "sums" / "README.md").read_text()
    shown = []
    for key in (BASE_KEY, "lora0002"):
        metrics = read_json(path_of("metrics/evaluate_policy", key))
        value, low, high = (
            metrics[f"eval/heldout/mean_at_2{end}"] for end in ("", "_low", "_high")
        )
        shown.append(f"{value:.3f} [{low:.3f}, {high:.3f}]")
    assert f"| heldout | mean@2 | {shown[0]} | {shown[1]} |" in card
    assert re.search(r"\| heldout \| greedy \| \d\.\d{3} \[", card)
    assert "2 samples per prompt at temperature 1" in card


def test_a_policy_that_was_not_evaluated(params: Params, tmp_path: Path) -> None:
    export_policy(Run(), find_policy(Run(), "i0001"), tmp_path / "sums", "stored")
    card = (tmp_path / "sums" / "README.md").read_text()
    assert "This policy was not evaluated." in card
    assert "heldout" not in card


def test_a_base_that_was_judged_otherwise_is_not_compared(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    shutil.copytree("artifacts", tmp_path / "artifacts")
    shutil.copy("params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    place = path_of("run_info/evaluate_policy", BASE_KEY)
    info = read_json(place)
    info["settings"]["evaluate"]["temperature"] = 0.5
    write_json(info, place)
    export_policy(Run(), find_policy(Run(), "lora0002"), Path("sums"), "stored")
    card = Path("sums/README.md").read_text()
    assert re.search(r"\| heldout \| mean@2 \|  \| \d\.\d{3} \[", card)
    assert "the same seeds" not in card


def test_policies_are_found_by_key_digest_and_path(params: Params) -> None:
    folder = path_of("policies", "lora0001")
    digest = read_facts(folder).content_hash
    for name in ("lora0001", digest, digest[:10], str(folder)):
        assert find_policy(Run(), name) == folder
    for name in ("i0009", "", "zzzzzz"):
        with pytest.raises(ArtifactError, match="there is no policy"):
            find_policy(Run(), name)


def test_nothing_is_written_over(params: Params, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    for target in (tmp_path, tmp_path / "mine"):
        with pytest.raises(ArtifactError, match="is not empty"):
            export_policy(Run(), find_policy(Run(), "i0001"), target, "stored")
    (tmp_path / "empty").mkdir()
    export_policy(Run(), find_policy(Run(), "i0001"), tmp_path / "empty", "stored")
    assert (tmp_path / "empty" / "README.md").is_file()
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_damaged_policy_or_base_is_not_exported(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    shutil.copytree("artifacts", tmp_path / "artifacts")
    monkeypatch.chdir(tmp_path)
    base = path_of("policies", BASE_KEY) / "model.safetensors"
    content = bytearray(base.read_bytes())
    content[-1] ^= 1
    base.write_bytes(bytes(content))
    with pytest.raises(ArtifactError, match="files changed after it was written"):
        export_policy(Run(), find_policy(Run(), "lora0001"), Path("out"), "stored")
    shutil.rmtree(path_of("policies", BASE_KEY))
    shutil.copytree(path_of("policies", "i0001"), path_of("policies", BASE_KEY))
    with pytest.raises(PolicyError, match="is an adapter on policy"):
        export_policy(Run(), find_policy(Run(), "lora0001"), Path("out"), "stored")
    assert not Path("out").exists()


def test_a_history_that_is_not_known_here(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    shutil.copytree("artifacts", tmp_path / "artifacts")
    monkeypatch.chdir(tmp_path)
    path_of("run_info/update_policy", "i0001").unlink()
    digest = read_facts(path_of("policies", "i0001")).content_hash
    with pytest.raises(ArtifactError, match="was made neither by an update"):
        ancestry_of(Run(), digest)
    assert [
        update.key for update in ancestry_of(Run(), Run().policy_digest("lora0002")).updates
    ] == ["lora0001", "lora0002"]


def test_the_command(params: Params, tmp_path: Path) -> None:
    made = CliRunner().invoke(
        cli, ["export", "lora0002", str(tmp_path / "out"), "--dtype", "bfloat16"]
    )
    assert made.exit_code == 0, made.output
    assert "artifacts/policies/lora0002 in bfloat16" in made.output
    assert (tmp_path / "out" / "README.md").is_file()


def test_settings_of_the_run_are_valid() -> None:
    assert (
        parse_params(raw_settings()).recipes["lora"].update_policy.lora
        == settings(1).recipes["lora"].update_policy.lora
    )
