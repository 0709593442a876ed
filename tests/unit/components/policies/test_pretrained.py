import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from rollbook.components.engines.base import Sampling
from rollbook.components.engines.transformers import Transformers
from rollbook.components.policies.byte_tokenizer import EOS_ID, save_byte_tokenizer
from rollbook.components.policies.loading import check_policy_folder, load_model, stored_dtype
from rollbook.components.policies.pretrained import Pretrained
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.errors import PolicyError
from rollbook.core.runtime import Runtime
from tests.policy_folders import byte_level, saved
from tests.unit.components.engines.models import CONTEXT_LENGTH, SIZES, nothing, requests_for

RUNTIME = Runtime(device="cpu", threads=1)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _save(folder: Path, name: str = "Llama", dtype: str = "float32", **config: Any) -> Path:
    """A random model of an architecture with the byte tokenizer."""
    import transformers

    sizes: dict[str, Any] = dict(SIZES)
    if name == "GPT2":
        sizes = {key: SIZES[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")}
        sizes |= {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": CONTEXT_LENGTH}
    torch.manual_seed(0)
    head = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    made = getattr(transformers, f"{name}Config")(**{**sizes, **config})
    getattr(transformers, head)(made).to(getattr(torch, dtype)).save_pretrained(folder)
    save_byte_tokenizer(folder, CONTEXT_LENGTH)
    return folder


def _created(source: Path, target: Path, **options: Any) -> dict[str, float]:
    policy = Pretrained(name="pretrained", model=str(source), **options)
    created = policy.create([], 0, RUNTIME)
    target.mkdir()
    created.write(target)
    check_policy_folder(target)
    return dict(created.facts)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(tmp_path_factory.mktemp("llama"))


def _problem(**options: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Pretrained(name="pretrained", **options)
    return str(caught.value)


def test_a_folder_becomes_a_policy_with_the_same_weights(llama: Path, tmp_path: Path) -> None:
    facts = _created(llama, tmp_path / "policy")
    before, after = (
        load_file(llama / "model.safetensors"),
        load_file(tmp_path / "policy" / "model.safetensors"),
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert facts["parameters"] == sum(value.numel() for value in before.values())
    assert Pretrained(name="pretrained", model=str(llama)).parameter_count() == facts["parameters"]
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ):
        assert (llama / name).read_bytes() == (tmp_path / "policy" / name).read_bytes()


def test_the_same_model_gives_the_same_bytes(llama: Path, tmp_path: Path) -> None:
    for name in "ab":
        _created(llama, tmp_path / name)
    files = [{f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in "ab"]
    assert files[0] == files[1]


@pytest.mark.parametrize(("dtype", "stored"), [("stored", "bfloat16"), ("float32", "float32")])
def test_weights_keep_their_type_unless_another_is_wanted(
    tmp_path: Path, dtype: str, stored: str
) -> None:
    source = _save(tmp_path / "source", dtype="bfloat16")
    _created(source, tmp_path / "policy", dtype=dtype)
    assert stored_dtype(tmp_path / "policy") == stored
    assert load_model(tmp_path / "policy", torch.device("cpu"), "stored").dtype == getattr(
        torch, stored
    )


def test_the_type_is_that_of_the_weights_whatever_the_config_says(tmp_path: Path) -> None:
    source = _save(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    _created(source, tmp_path / "policy")
    assert stored_dtype(tmp_path / "policy") == "float32"


def test_several_stop_tokens_survive(tmp_path: Path) -> None:
    source = _save(tmp_path / "source", "Qwen2", tie_word_embeddings=True, initializer_range=0.3)
    generation = json.loads((source / "generation_config.json").read_text())
    # As Qwen ships it: two stop tokens, and sampling defaults without do_sample, which cannot be saved anew.
    generation |= {
        "eos_token_id": [EOS_ID, 40],
        "do_sample": False,
        "temperature": 0.7,
        "top_p": 0.8,
    }
    (source / "generation_config.json").write_text(json.dumps(generation))
    _created(source, tmp_path / "policy")
    kept = json.loads((tmp_path / "policy" / "generation_config.json").read_text())
    assert kept["eos_token_id"] == [EOS_ID, 40]
    assert kept["top_p"] == 0.8
    assert PromptRenderer(tmp_path / "policy", PromptFormat()).stop_token_ids == (EOS_ID, 40)
    assert "lm_head.weight" not in load_file(tmp_path / "policy" / "model.safetensors")  # tied
    made = Transformers(name="transformers").generate(
        tmp_path / "policy",
        requests_for(40, 4),
        Sampling(max_completion_tokens=8),
        RUNTIME,
        nothing,
    )
    assert {each.token_ids[-1] for each in made if each.finish_reason == "stop"} == {EOS_ID, 40}


def test_a_model_as_gpt2_trains_too(tmp_path: Path) -> None:
    """No chat template, no pad token, no generation config, and BOS and EOS are the same token."""
    source = _save(tmp_path / "source", "GPT2", bos_token_id=EOS_ID, eos_token_id=EOS_ID)
    for name in ("chat_template.jinja", "generation_config.json"):
        (source / name).unlink()
    config = json.loads((source / "tokenizer_config.json").read_text())
    for name in ("pad_token", "bos_token"):
        del config[name]
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    _created(source, tmp_path / "policy")
    renderer = PromptRenderer(tmp_path / "policy", PromptFormat(chat_template="plain"))
    assert renderer.stop_token_ids == (EOS_ID,)
    assert renderer.pad_token_id == EOS_ID
    assert (
        json.loads((tmp_path / "policy" / "generation_config.json").read_text())["eos_token_id"]
        == EOS_ID
    )
    made = Transformers(name="transformers").generate(
        tmp_path / "policy", requests_for(5, 2), Sampling(max_completion_tokens=4), RUNTIME, nothing
    )
    assert all(1 <= len(each.token_ids) <= 4 for each in made)


def test_sharded_and_pickled_weights_become_safetensors(llama: Path, tmp_path: Path) -> None:
    model = load_model(llama, torch.device("cpu"))
    for name in ("sharded", "pickled"):
        _save(tmp_path / name)
        (tmp_path / name / "model.safetensors").unlink()
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    expected = load_file(llama / "model.safetensors")
    for name in ("sharded", "pickled"):
        _created(tmp_path / name, tmp_path / f"{name}_policy")
        got = load_file(tmp_path / f"{name}_policy" / "model.safetensors")
        assert all(torch.equal(expected[key], got[key]) for key in expected)


def test_a_tokenizer_without_tokenizer_json_is_converted(llama: Path, tmp_path: Path) -> None:
    source = _save(tmp_path / "source", "GPT2")
    for file in source.glob("*token*"):
        file.unlink()
    tokenizer = saved(tmp_path / "other", byte_level(bos_first=False))
    vocabulary = {token: place for token, place in tokenizer.get_vocab().items() if place < 262}
    (source / "vocab.json").write_text(json.dumps(vocabulary))
    (source / "merges.txt").write_text("#version: 0.2\n")
    (source / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>"})
    )
    _created(source, tmp_path / "policy")
    renderer = PromptRenderer(tmp_path / "policy", PromptFormat(chat_template="plain"))
    rendered = renderer.render([{"role": "user", "content": "1+2="}])
    assert renderer.decode(rendered.token_ids, keep_special=True) == "1+2="


def test_what_is_missing_is_named(llama: Path, tmp_path: Path) -> None:
    assert "config.json, weights (*.safetensors), a tokenizer" in _problem(model=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "is no model folder: weights (*.safetensors) missing" in _problem(model=str(tmp_path))


def test_weights_that_cannot_be_trained_are_refused(tmp_path: Path) -> None:
    source = _save(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": {"bits": 4}}))
    assert "quantised weights" in _problem(model=str(source))
    (source / "config.json").write_text("{")
    assert "config.json is not valid JSON" in _problem(model=str(source))


def test_a_folder_that_transformers_does_not_know_is_a_policy_error(tmp_path: Path) -> None:
    source = _save(tmp_path / "source")
    (source / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    with pytest.raises(PolicyError, match="cannot be loaded as a causal language model"):
        _created(source, tmp_path / "policy")


def test_weights_of_another_model_are_a_policy_error(tmp_path: Path) -> None:
    source = _save(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(PolicyError, match="missing weights"):
        _created(source, tmp_path / "policy")


def test_a_hub_model_needs_a_commit(llama: Path) -> None:
    assert "needs `revision`: the commit hash" in _problem(model="owner/name")
    assert "got 'main'" in _problem(model="owner/name", revision="main")
    assert Pretrained(name="pretrained", model="owner/name", revision=COMMIT).data_files() == []
    assert Pretrained(name="pretrained", model="gpt2", revision=COMMIT).parameter_count() is None


def test_a_path_that_does_not_exist_is_no_hub_id(llama: Path) -> None:
    for model in ("./models/mine", "/models/mine", "models/mine/final"):
        assert "is no folder here, and no hub id" in _problem(model=model, revision=COMMIT)
    assert "has no revision" in _problem(model=str(llama), revision=COMMIT)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface_hub; the tests are offline, so nothing else can be had."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_hub_model_that_cannot_be_had_is_a_policy_error(hub_cache: Path) -> None:
    policy = Pretrained(name="pretrained", model="owner/name", revision=COMMIT)
    with pytest.raises(PolicyError, match=r"owner/name at 0123\w+ cannot be had"):
        policy.create([], 0, RUNTIME)


def test_a_hub_model_comes_from_the_cache_at_its_commit(
    hub_cache: Path, llama: Path, tmp_path: Path
) -> None:
    for commit in (COMMIT, COMMIT[::-1]):
        snapshot = hub_cache / "models--owner--name" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        if commit == COMMIT:
            shutil.copytree(llama, snapshot, dirs_exist_ok=True)
    created = Pretrained(name="pretrained", model="owner/name", revision=COMMIT).create(
        [], 0, RUNTIME
    )
    (tmp_path / "policy").mkdir()
    created.write(tmp_path / "policy")
    before = load_file(llama / "model.safetensors")
    after = load_file(tmp_path / "policy" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (tmp_path / "policy" / "tokenizer.json").is_file()


def test_a_folders_files_are_data_that_decide_the_result(llama: Path, tmp_path: Path) -> None:
    files = {
        Path(file).name for file in Pretrained(name="pretrained", model=str(llama)).data_files()
    }
    assert files == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    }
