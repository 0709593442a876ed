"""Small random models of the architectures that people bring: made a policy, opened, sampled from, updated once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rollbook.components.engines.base import GenerationRequest, Sampling
from rollbook.components.engines.transformers import Transformers
from rollbook.components.policies.loading import load_model, prepare_torch
from rollbook.components.policies.pretrained import Pretrained
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.errors import DataError, PolicyError
from rollbook.core.runtime import Runtime
from rollbook.rl.training.critic_state import empty_critic_state
from rollbook.rl.training.optimizer import empty_optimizer_state
from rollbook.settings.recipe_sections import UpdatePolicy
from rollbook.stages.update_policy import Settings, update_policy
from rollbook.tables.artifacts import schema_of, write_folder
from tests.policy_folders import CHATML, byte_level, saved, sentence_piece_like
from tests.unit.components.engines.models import nothing
from tests.unit.rl.training.small import context, inputs_for, tables_for

RUNTIME = Runtime(device="cpu", threads=1)
QUESTION = [{"role": "user", "content": "17+5="}]
BOS, EOS, PAD, TURN_END = 1, 2, 3, 5
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": True}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": False},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"tie_word_embeddings": True},
    "Gemma2": {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 0.5},
    "Gemma3Text": {"query_pre_attn_scalar": 8, "sliding_window": 16},
    "Phi3": {"original_max_position_embeddings": 128, "head_dim": None},
    "Mixtral": {"num_local_experts": 4, **EXPERTS},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 16, **EXPERTS},
}
HEADS = {"Gemma3Text": "Gemma3ForCausalLM"}


def _save(
    folder: Path, name: str, tokenizer: Any = None, template: Any = CHATML, **config: Any
) -> Path:
    """A random model with the byte-level tokenizer that has Qwen's marks."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    saved(folder, tokenizer or byte_level(bos_first=False), template)
    options = {**SIZES, **ARCHITECTURES.get(name, {}), **config}
    given = {
        key: value for key, value in options.items() if value is not None or key == "pad_token_id"
    }
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}Config")(**given)
    getattr(transformers, HEADS.get(name, f"{name}ForCausalLM"))(made).save_pretrained(folder)
    return folder


def _policy(source: Path, key: str = "i0000", **options: Any) -> Path:
    """The source as base policy of the current project."""
    created = Pretrained(name="pretrained", model=str(source), **options).create([], 0, RUNTIME)
    write_folder(created.write, "policies", key)
    write_folder(empty_optimizer_state(), "optimizers", key)
    write_folder(empty_critic_state(), "values", key)
    return Path("artifacts/policies") / key


def _generated(policy: Path, **format: Any) -> list[int]:
    """Token ids of a short completion of the question."""
    ids = PromptRenderer(policy, PromptFormat(**format)).render(QUESTION).token_ids
    [made] = Transformers(name="transformers").generate(
        policy,
        [GenerationRequest(ids, 7, False)],
        Sampling(max_completion_tokens=3),
        RUNTIME,
        nothing,
    )
    return list(made.token_ids)


def _updated(advantages: list[list[float]]) -> Any:
    """One optimizer step on rollouts of the policy."""
    inputs = inputs_for(tables_for(_digest(), advantages))
    settings = Settings(
        seed=0,
        update=UpdatePolicy(learning_rate=1e-3, optimizer_steps=1),
        temperature=1.0,
        max_completion_tokens=16,
        correction=None,
        reward_kl=0.0,
        reward_kl_estimator="k1",
    )
    return update_policy(settings, inputs, context())


def _digest() -> str:
    from rollbook.tables.artifacts import path_of, read_folder

    return read_folder(path_of("policies", "i0000"), "policies").content_hash


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_goes_through_an_iteration(name: str, project: Path) -> None:
    policy = _policy(_save(project / "source", name))
    assert 1 <= len(_generated(policy)) <= 3
    outputs = _updated([[1.0, -1.0], [0.0, 0.0]])
    outputs.folders["policies"](_made(project / "next"))
    before = load_model(policy, torch.device("cpu")).state_dict()
    after = load_model(project / "next", torch.device("cpu")).state_dict()
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    updates = schema_of("updates").validate(outputs.tables["updates"], "updates")
    trained = dict(
        zip(updates["rollout_id"].to_pylist(), updates["trained"].to_pylist(), strict=True)
    )
    assert len(trained) == 4


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
def test_the_loss_of_a_mixture_of_experts_has_no_router_part(name: str, project: Path) -> None:
    """So rollouts without advantage give no gradient: their step leaves every weight as it is."""
    _policy(_save(project / "source", name))
    outputs = _updated([[0.0, 0.0]])
    [step] = outputs.tables["optimizer_steps"].to_pylist()
    assert step["loss"] == 0.0
    assert step["grad_norm"] == 0.0


def test_attention_scores_are_capped_where_the_model_says_so(project: Path) -> None:
    """PyTorch's fused attention has no cap, so it would run another model than the one that was trained."""
    policy = _policy(_save(project / "source", "Gemma2"))
    prepare_torch(RUNTIME)
    model = load_model(policy, torch.device("cpu"))
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_runtime_decides_how_models_attend(name: str, project: Path) -> None:
    policy = _policy(_save(project / "source", "Llama"))
    prepare_torch(Runtime(device="cpu", threads=1, attn_implementation=name))
    assert load_model(policy, torch.device("cpu")).config._attn_implementation == name
    prepare_torch(RUNTIME)
    assert load_model(policy, torch.device("cpu")).config._attn_implementation == "sdpa"


def test_thinking_can_be_switched_off(project: Path) -> None:
    policy = _policy(_save(project / "source", "Qwen3"))
    on = PromptRenderer(policy, PromptFormat()).render(QUESTION).text
    off = PromptFormat(chat_template_kwargs={"enable_thinking": False})
    assert PromptRenderer(policy, off).render(QUESTION).text == on + "<think></think>"
    assert _generated(policy, chat_template_kwargs={"enable_thinking": False})


def test_pad_may_be_eos_and_several_tokens_may_end_an_answer(project: Path) -> None:
    source = _save(project / "source", "Qwen2", pad_token_id=EOS)
    generation = json.loads((source / "generation_config.json").read_text())
    ends = {**generation, "eos_token_id": [EOS, TURN_END], "pad_token_id": EOS}
    (source / "generation_config.json").write_text(json.dumps(ends))
    tokenizer = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "pad_token": "</s>"}))
    renderer = PromptRenderer(_policy(source), PromptFormat())
    assert renderer.stop_token_ids == (EOS, TURN_END)
    assert renderer.pad_token_id == EOS
    assert _updated([[1.0, -1.0]])


def test_there_may_be_no_pad_token(project: Path) -> None:
    source = _save(project / "source", "Llama", pad_token_id=None)
    tokenizer = json.loads((source / "tokenizer_config.json").read_text())
    tokenizer.pop("pad_token")
    (source / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    policy = _policy(source)
    assert PromptRenderer(policy, PromptFormat()).pad_token_id == EOS
    assert _generated(policy)


@pytest.mark.parametrize("template", [CHATML, "{{ bos_token }}" + CHATML])
def test_bos_is_there_once_whether_the_template_writes_it_or_not(
    template: str, project: Path
) -> None:
    policy = _policy(_save(project / "source", "Llama", sentence_piece_like(), template))
    ids = PromptRenderer(policy, PromptFormat()).render(QUESTION).token_ids
    assert ids[0] == BOS
    assert ids.count(BOS) == 1


def test_a_template_without_a_system_role_says_what_to_do(project: Path) -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    policy = _policy(_save(project / "source", "Gemma2", template=refuses + CHATML))
    assert _generated(policy)
    with pytest.raises(DataError, match="System role not supported") as caught:
        PromptRenderer(policy, PromptFormat(system_prompt="Be brief.")).render(QUESTION)
    assert "remove system_prompt" in str(caught.value)


def test_a_base_model_without_a_template_continues_plain_text(project: Path) -> None:
    policy = _policy(_save(project / "source", "Llama", template=None))
    for format in (PromptFormat(), PromptFormat(chat_template="plain")):
        assert PromptRenderer(policy, format).render(QUESTION).text == "17+5="
    assert _generated(policy, chat_template="plain")


CODE = """from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own_llama"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
    answer = 42
"""


@pytest.fixture
def with_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Llama that says it needs Python of its own; what transformers copies of that goes into the project."""
    for module in ("transformers.dynamic_module_utils", "transformers.utils.hub"):
        monkeypatch.setattr(f"{module}.HF_MODULES_CACHE", str(project / "modules"), raising=False)
    source = _save(project / "source", "Llama")
    (source / "own.py").write_text(CODE)
    config = json.loads((source / "config.json").read_text())
    config |= {
        "model_type": "own_llama",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    (source / "config.json").write_text(json.dumps(config))
    return source


def test_code_of_a_model_does_not_run_unless_asked(with_code: Path) -> None:
    with pytest.raises(PolicyError, match="trust_remote_code: true"):
        _policy(with_code)


def test_trusted_code_goes_along_and_later_stages_run_just_that(
    with_code: Path, project: Path
) -> None:
    policy = _policy(with_code, trust_remote_code=True)
    assert load_model(policy, torch.device("cpu")).answer == 42
    assert _generated(policy)
    following = _made(project / "next")
    _updated([[1.0, -1.0]]).folders["policies"](following)
    assert (following / "own.py").read_text() == CODE
    assert load_model(following, torch.device("cpu")).answer == 42
    (following / "own.py").write_text(CODE.replace("42", "43"))
    with pytest.raises(PolicyError, match="not those that were trusted"):
        load_model(following, torch.device("cpu"))
    assert "own.py" in {
        Path(file).name
        for file in Pretrained(
            name="pretrained", model=str(with_code), trust_remote_code=True
        ).data_files()
    }
