"""Adapters as policy folders: what is written, what any tool reads of it, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rollbook.components.policies.adapters import (
    adapter_parameters,
    attach_new,
    attach_stored,
    base_folder,
    is_adapter,
    load_weights,
    merge,
    refuse_other_shape,
    switch,
)
from rollbook.components.policies.frozen import FrozenPolicies
from rollbook.components.policies.loading import load_model, stored_dtype
from rollbook.components.policies.lora import Lora
from rollbook.core.errors import ArtifactError, PolicyError
from rollbook.rl.training.checkpoint import policy_writer, trained_parameters
from rollbook.tables.artifacts import path_of, read_facts, write_folder
from tests.unit.rl.training.small import write_model, write_policy

CPU = torch.device("cpu")
IDS = torch.tensor([[1, 5, 9, 13, 2]])
LORA = Lora(rank=4, alpha=8)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(IDS).logits
    return found


def stored_adapter(
    key: str = "i0001", lora: Lora = LORA, previous: str = "i0000", size: float = 0.3
) -> Path:
    """An adapter whose B is not zero, as if trained, on a policy of the current project."""
    model = load_model(path_of("policies", previous), CPU)
    attach_new(model, lora, seed=3)
    torch.manual_seed(1)
    with torch.no_grad():
        for value in adapter_parameters(model).values():
            value.copy_(torch.randn_like(value) * size)
    write = policy_writer(model, path_of("policies", previous), "float32")
    write_folder(write, "policies", key)
    return path_of("policies", key)


def test_a_fresh_adapter_changes_nothing(project: Path) -> None:
    write_policy()
    model = load_model(path_of("policies", "i0000"), CPU)
    before = logits(model)
    attach_new(model, LORA, seed=0)
    assert torch.equal(logits(model), before)
    trained = trained_parameters(model)
    assert trained.keys() == adapter_parameters(model).keys()
    # two layers of q, k, v, o, gate, up and down, A and B each
    assert len(trained) == 2 * 7 * 2
    assert all(value.any() == (".lora_A." in name) for name, value in trained.items())
    assert not any(module.training for module in model.modules())


def test_its_weights_come_from_the_seed_alone(project: Path) -> None:
    write_policy()
    made = []
    for seed in (0, 0, 1):
        model = load_model(path_of("policies", "i0000"), CPU)
        state = torch.random.get_rng_state()
        attach_new(model, LORA, seed)
        assert torch.equal(state, torch.random.get_rng_state())
        made.append(torch.cat([value.flatten() for value in adapter_parameters(model).values()]))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_what_is_written_is_an_adapter_that_peft_loads(project: Path) -> None:
    base = write_policy()
    folder = stored_adapter()
    assert is_adapter(folder) and not is_adapter(path_of("policies", "i0000"))
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])
    assert config["base_model_name_or_path"] == "artifacts/policies/i0000"
    said = json.loads((folder / "base.json").read_text())
    assert said == {"key": "i0000", "digest": base.content_hash}
    for file, source in (
        ("base_config.json", "config.json"),
        ("chat_template.jinja", "chat_template.jinja"),
    ):
        assert (folder / file).read_bytes() == (path_of("policies", "i0000") / source).read_bytes()
    names = {file.name for file in folder.iterdir()}
    assert not names & {"config.json", "model.safetensors"}
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    ours = logits(FrozenPolicies(CPU).open(folder))
    for other in (AutoPeftModelForCausalLM, AutoModelForCausalLM):
        assert torch.equal(logits(other.from_pretrained(folder).eval()), ours)
    assert not torch.allclose(ours, logits(load_model(path_of("policies", "i0000"), CPU)), atol=0.1)


def test_the_same_adapter_gives_the_same_bytes(project: Path) -> None:
    write_policy()
    first, second = stored_adapter("i0001"), stored_adapter("i0009")
    assert read_facts(first).content_hash == read_facts(second).content_hash
    text = b"".join(file.read_bytes() for file in first.iterdir())
    assert str(project).encode() not in text


def test_an_adapter_on_another_base_is_another_policy(project: Path) -> None:
    digests = []
    for seed in (0, 1):
        write_policy(seed=seed)
        digests.append(read_facts(stored_adapter()).content_hash)
    assert digests[0] != digests[1]


def test_merged_and_not_merged_agree_to_rounding(project: Path) -> None:
    write_policy()
    folder = stored_adapter()
    model = load_model(base_folder(folder), CPU)
    attach_stored(model, folder)
    unmerged = logits(model)
    names = [name for name, _ in load_model(path_of("policies", "i0000"), CPU).named_parameters()]
    merge(model)
    assert [name for name, _ in model.named_parameters()] == names
    torch.testing.assert_close(logits(model), unmerged, rtol=1e-5, atol=1e-5)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_merged_policy_has_the_type_that_is_asked_for(project: Path) -> None:
    write_policy(dtype="bfloat16")
    folder = stored_adapter()
    assert stored_dtype(folder) == "float32"
    assert load_model(folder, CPU).dtype == torch.float32
    assert load_model(folder, CPU, "bfloat16").dtype == torch.bfloat16
    assert load_model(folder, CPU, "stored").dtype == torch.bfloat16


def test_switched_off_it_is_its_base(project: Path) -> None:
    write_policy()
    base = logits(load_model(path_of("policies", "i0000"), CPU))
    model = load_model(path_of("policies", "i0000"), CPU)
    attach_stored(model, folder := stored_adapter())
    on = logits(model)
    switch(model, False)
    assert torch.equal(logits(model), base)
    switch(model, True)
    assert torch.equal(logits(model), on)
    assert not trained_parameters(model)
    assert not torch.equal(on, base)
    assert is_adapter(folder)


def test_policies_on_one_base_share_it(project: Path) -> None:
    write_policy()
    base, first = path_of("policies", "i0000"), stored_adapter("i0001")
    second = stored_adapter("i0002", size=0.7)
    frozen = FrozenPolicies(CPU)
    model = frozen.open(first)
    on_first = logits(model)
    assert frozen.open(base) is model
    assert torch.equal(logits(model), logits(load_model(base, CPU)))
    assert frozen.open(second) is model
    torch.testing.assert_close(logits(model), logits(load_model(second, CPU)), rtol=1e-4, atol=1e-4)
    assert frozen.open(first) is model
    assert torch.equal(logits(model), on_first)


def test_other_policies_are_opened_anew(project: Path) -> None:
    write_policy()
    write_policy("i0007", seed=1)
    frozen = FrozenPolicies(CPU)
    for key in ("i0000", "i0007"):
        folder = path_of("policies", key)
        assert torch.equal(logits(frozen.open(folder)), logits(load_model(folder, CPU)))


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        (["q_proj", "v_proj"], ["q_proj", "v_proj"]),
        (["v_proj", "q_proj"], ["q_proj", "v_proj"]),
        (["layers.1.mlp.up_proj"], ["model.layers.1.mlp.up_proj"]),
    ],
)
def test_only_the_modules_named_are_adapted(
    project: Path, modules: list[str], named: list[str]
) -> None:
    write_policy()
    folder = stored_adapter(lora=Lora(rank=2, target_modules=modules))
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["target_modules"] == named
    model = load_model(path_of("policies", "i0000"), CPU)
    attach_stored(model, folder)
    assert len(adapter_parameters(model)) == 2 * (2 * len(named) if len(named) > 1 else 1)


@pytest.mark.parametrize("modules", [["lm_head"], ["embed_tokens"], ["no_such_layer"]])
def test_modules_that_cannot_be_adapted(project: Path, modules: list[str]) -> None:
    write_policy()
    model = load_model(path_of("policies", "i0000"), CPU)
    with pytest.raises(PolicyError, match=r"update_policy\.lora\.target_modules"):
        attach_new(model, Lora(target_modules=modules), seed=0)


def test_layers_that_are_stored_the_other_way_round(project: Path) -> None:
    """GPT-2's; and a generation config that contradicts itself, as published ones do, is carried along."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = GPT2LMHeadModel(config)

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        odd = {"do_sample": False, "temperature": 0.6, "eos_token_id": 2}
        (folder / "generation_config.json").write_text(json.dumps(odd))

    write_folder(write, "policies", "i0000")
    folder = stored_adapter()
    assert json.loads((folder / "adapter_config.json").read_text())["fan_in_fan_out"]
    unmerged = logits(FrozenPolicies(CPU).open(folder))
    torch.testing.assert_close(logits(load_model(folder, CPU)), unmerged, rtol=1e-5, atol=1e-5)
    source = path_of("policies", "i0000")
    policy_writer(load_model(source, CPU), source, "float32")(made := project / "full")
    for place in (folder, made):
        name = "generation_config.json"
        assert (place / name).read_bytes() == (source / name).read_bytes()


def test_the_wrong_base_is_refused(project: Path) -> None:
    write_policy()
    folder = stored_adapter()
    write_policy(seed=5)
    with pytest.raises(PolicyError, match="is an adapter on policy") as caught:
        load_model(folder, CPU)
    assert "dvc checkout artifacts/policies/i0000" in caught.value.hint


def test_a_base_that_is_not_there(project: Path) -> None:
    write_policy()
    folder = stored_adapter()
    path_of("policies", "i0000").rename("elsewhere")
    with pytest.raises(ArtifactError, match="policies/i0000: does not exist"):
        load_model(folder, CPU)


def test_an_adapter_of_another_model_is_refused(project: Path) -> None:
    write_policy()
    folder = stored_adapter()
    write_model(Path("wider"), hidden_size=64)
    model = load_model(Path("wider"), CPU)
    with pytest.raises(PolicyError, match="does not fit its base"):
        attach_stored(model, folder)


def test_a_damaged_adapter_is_refused(project: Path) -> None:
    write_policy()
    folder = stored_adapter()
    model = load_model(path_of("policies", "i0000"), CPU)
    attach_stored(model, folder)
    (folder / "adapter_model.safetensors").write_bytes(b"not an adapter")
    with pytest.raises(PolicyError, match="its adapter cannot be read"):
        load_weights(model, folder)


def test_an_adapter_keeps_its_shape(project: Path) -> None:
    write_policy()
    folder = stored_adapter()
    refuse_other_shape(folder, LORA)
    with pytest.raises(PolicyError, match="rank 4 and alpha 8"):
        refuse_other_shape(folder, Lora(rank=8, alpha=8))


def test_numbers_in_the_file_are_those_of_the_layers(project: Path) -> None:
    """W x + alpha / rank · B A x, by hand for one layer."""
    write_policy()
    folder = stored_adapter()
    from safetensors.numpy import load_file

    stored = load_file(folder / "adapter_model.safetensors")
    place = "base_model.model.model.layers.0.mlp.up_proj"
    a, b = (stored[f"{place}.lora_{part}.weight"] for part in "AB")
    own = load_model(path_of("policies", "i0000"), CPU).model.layers[0].mlp.up_proj.weight
    merged = load_model(folder, CPU).model.layers[0].mlp.up_proj.weight
    np.testing.assert_allclose(merged.detach().numpy(), own.detach().numpy() + 2 * b @ a, atol=1e-6)
