"""Prompts rendered without transformers must equal those of real transformers tokenizers, saved by transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    Tokenizer,
    processors,
)

from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.errors import ConfigError, DataError, PolicyError
from tests.policy_folders import CHATML, byte_level, saved, sentence_piece_like

WITH_BOS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
)
BUSY = (
    "{%- set ns = namespace(n=0) %}{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{{ m | tojson }}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}\n"
    "  {% if tools %}never{% endif %}\n{{ ns.n }}{{ pad_token }}{{ extra | tojson(indent=1) }}"
)
CHATS = [
    [{"role": "user", "content": "17+5="}],
    [
        {"role": "system", "content": 'Be <b>brief</b> & "good".'},
        {"role": "user", "content": " Hé 数 "},
    ],
    [
        {"role": "user", "content": "What is\n2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "and 3+3? <|im_end|> </s>"},
    ],
]
QUESTION = CHATS[0]


def ids_of_transformers(tokenizer: Any, messages: Any, **kwargs: Any) -> list[int]:
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False, **kwargs
    )
    return list(ids)


TOKENIZERS = {
    "byte level": lambda: byte_level(bos_first=False),
    "byte level, adds BOS": lambda: byte_level(bos_first=True),
    "sentencepiece, adds BOS": sentence_piece_like,
}


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())
@pytest.mark.parametrize("template", [WITH_BOS, BUSY, CHATML], ids=["bos", "busy", "chatml"])
def test_equals_transformers(tmp_path: Path, make: Any, template: str) -> None:
    reference = saved(tmp_path, make(), template)
    kwargs = {"extra": {"b": [1, "é<"], "a": None}, "enable_thinking": False}
    renderer = PromptRenderer(tmp_path, PromptFormat(chat_template_kwargs=kwargs))
    adds_bos = reference("0")["input_ids"][0] == reference.bos_token_id
    rendered = renderer.render_all(CHATS)
    for chat, prompt in zip(CHATS, rendered, strict=True):
        expected = ids_of_transformers(reference, chat, **kwargs)
        text = reference.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=False, **kwargs
        )
        if (
            adds_bos and template != WITH_BOS
        ):  # the one meant difference: see the module's docstring
            expected = [reference.bos_token_id, *expected]
        assert prompt.text == text
        assert prompt.token_ids == expected
    if template == WITH_BOS or adds_bos:
        assert [prompt.token_ids.count(1) for prompt in rendered] == [1, 1, 1]


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_decodes_as_transformers(tmp_path: Path, make: Any) -> None:
    reference = saved(tmp_path, make())
    renderer = PromptRenderer(tmp_path, PromptFormat())
    rows = [
        reference(text)["input_ids"] + [2]
        for text in ("17+5= 22.", "naïve  数学 x ", "<|im_end|>a")
    ]
    for keep in (True, False):
        expected = [reference.decode(row, skip_special_tokens=not keep) for row in rows]
        assert renderer.decode_all(rows, keep) == expected
        assert [renderer.decode(row, keep) for row in rows] == expected
    assert renderer.decode(rows[2], keep_special=True).endswith("a</s>")
    assert "</s>" not in renderer.decode(rows[2], keep_special=False)


def test_model_classes_that_build_their_own_tokenizer(tmp_path: Path) -> None:
    """Llama's and Qwen's classes set normalizers, pre-tokenizers and special tokens in code, then save them."""
    from transformers import AutoTokenizer, LlamaTokenizer, Qwen2Tokenizer

    classes = {
        "llama": (LlamaTokenizer, sentence_piece_like()),
        "qwen2": (Qwen2Tokenizer, byte_level(False)),
    }
    for model_type, (cls, tokenizer) in classes.items():
        trained, folder = json.loads(tokenizer.to_str())["model"], tmp_path / model_type
        merges = [tuple(merge) for merge in trained["merges"]]
        cls(vocab=trained["vocab"], merges=merges, chat_template=CHATML).save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        reference = AutoTokenizer.from_pretrained(folder)
        assert type(reference) is cls
        for chat, prompt in zip(
            CHATS, PromptRenderer(folder, PromptFormat()).render_all(CHATS), strict=True
        ):
            assert prompt.token_ids == ids_of_transformers(reference, chat)


def test_named_templates(tmp_path: Path) -> None:
    reference = saved(tmp_path, byte_level(False), {"default": CHATML, "short": WITH_BOS})
    for name in (None, "short"):
        prompt = PromptRenderer(tmp_path, PromptFormat(chat_template=name)).render(QUESTION)
        assert prompt.token_ids == ids_of_transformers(reference, QUESTION, chat_template=name)


def test_templates_inside_the_config_are_found(tmp_path: Path) -> None:
    """Older folders keep the template in tokenizer_config.json, as text or as a list of named ones."""
    reference = saved(tmp_path, byte_level(False), CHATML)
    (tmp_path / "chat_template.jinja").unlink()
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text())
    for form in (CHATML, [{"name": "default", "template": CHATML}]):
        file.write_text(json.dumps({**config, "chat_template": form}))
        prompt = PromptRenderer(tmp_path, PromptFormat()).render(QUESTION)
        assert prompt.token_ids == ids_of_transformers(reference, QUESTION)


def test_own_template_inline_and_from_a_file(tmp_path: Path) -> None:
    reference = saved(tmp_path, byte_level(True), CHATML)
    own = tmp_path / "own.jinja"
    own.write_text(WITH_BOS)
    expected = ids_of_transformers(reference, QUESTION, chat_template=WITH_BOS)
    for wanted in (WITH_BOS, str(own)):
        renderer = PromptRenderer(tmp_path, PromptFormat(chat_template=wanted))
        assert renderer.render(QUESTION).token_ids == expected


def test_system_prompt_and_assistant_prefix(tmp_path: Path) -> None:
    reference = saved(tmp_path, byte_level(False), CHATML)
    format = PromptFormat(system_prompt="Be brief.", assistant_prefix="<think>\n")
    text = reference.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, *QUESTION],
        add_generation_prompt=True,
        tokenize=False,
    )
    prompt = PromptRenderer(tmp_path, format).render(QUESTION)
    assert prompt.text == text + "<think>\n"
    assert prompt.token_ids == reference(prompt.text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("bos_first", [True, False])
def test_plain_format_of_base_models(tmp_path: Path, bos_first: bool) -> None:
    """No chat template: contents with a blank line between; BOS only if the tokenizer adds it to every text."""
    reference = saved(tmp_path, byte_level(bos_first))
    for wanted in (None, "plain"):
        format = PromptFormat(chat_template=wanted, system_prompt="Solve it.", assistant_prefix=" ")
        prompt = PromptRenderer(tmp_path, format).render(QUESTION)
        assert prompt.text == "Solve it.\n\n17+5= "
        assert prompt.token_ids == reference("Solve it.\n\n17+5= ")["input_ids"]
        assert prompt.token_ids.count(1) == int(bos_first)


def test_plain_wins_over_the_tokenizers_template(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(False), CHATML)
    prompt = PromptRenderer(tmp_path, PromptFormat(chat_template="plain")).render(QUESTION)
    assert prompt.text == "17+5="


def test_eos_that_the_tokenizer_appends_is_left_out(tmp_path: Path) -> None:
    tokenizer = byte_level(False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    saved(tmp_path, tokenizer)
    ids = PromptRenderer(tmp_path, PromptFormat()).render(QUESTION).token_ids
    assert ids[0] == 1 and 2 not in ids


def test_a_prefix_that_is_not_bos_belongs_to_plain_text_only(tmp_path: Path) -> None:
    tokenizer = byte_level(False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", 0)]
    )
    reference = saved(tmp_path, tokenizer, CHATML)
    ids = PromptRenderer(tmp_path, PromptFormat()).render(QUESTION).token_ids
    assert ids == ids_of_transformers(reference, QUESTION)
    plain = PromptRenderer(tmp_path, PromptFormat(chat_template="plain")).render(QUESTION)
    assert plain.token_ids == reference("17+5=")["input_ids"]


def test_a_template_does_not_know_what_day_it_is(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(False), "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}")
    assert PromptRenderer(tmp_path, PromptFormat()).render(QUESTION).text == "26 Jul 2024 17+5="


def test_a_system_message_cannot_stand_twice(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(False), CHATML)
    with pytest.raises(DataError, match=r"brings a system message of its own"):
        PromptRenderer(tmp_path, PromptFormat(system_prompt="Be brief.")).render(CHATS[1])


def test_a_refusing_template_names_the_prompt_and_its_reason(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(False), NO_SYSTEM)
    assert PromptRenderer(tmp_path, PromptFormat()).render(QUESTION).text == "<s>user: 17+5="
    with pytest.raises(
        DataError, match=r"'17\+5='.*System role not supported\n.*remove system_prompt"
    ):
        PromptRenderer(tmp_path, PromptFormat(system_prompt="Hi")).render(QUESTION)


def test_wrong_templates_are_settings_errors(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(False), CHATML)
    (tmp_path / "own.jinja").write_text("{{ x }}")
    for wanted, message in (
        ("plian", "did you mean 'plain'"),
        ("{% if %}", "line 1 is not valid Jinja"),
        (str(tmp_path / "owm.jinja"), "did you mean .*own.jinja"),
    ):
        with pytest.raises(ConfigError, match=message):
            PromptRenderer(tmp_path, PromptFormat(chat_template=wanted)).render(QUESTION)


def test_templates_run_in_a_sandbox(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(False), "{{ messages.__class__.__mro__ }}{{ messages.append(1) }}")
    with pytest.raises(DataError, match=r"unsafe|not safely callable"):
        PromptRenderer(tmp_path, PromptFormat()).render(QUESTION)


def test_every_stop_token_counts(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(False), CHATML, eos_token_id=2)
    assert PromptRenderer(tmp_path, PromptFormat()).stop_token_ids == (2,)
    # Llama 3's instruct models end a turn with another id than the tokenizer's EOS; both must stop
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 4], "pad_token_id": 0}')
    renderer = PromptRenderer(tmp_path, PromptFormat())
    assert renderer.stop_token_ids == (2, 4, 5)
    assert renderer.pad_token_id == 3  # the tokenizer's own wins
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert PromptRenderer(tmp_path, PromptFormat()).stop_token_ids == (2, 5)


def test_pad_falls_back_to_a_stop_token(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(False))
    file = tmp_path / "tokenizer_config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if k != "pad_token"}
    file.write_text(json.dumps(config))
    assert PromptRenderer(tmp_path, PromptFormat()).pad_token_id == 2


def test_context_length(tmp_path: Path) -> None:
    def found(config: dict[str, Any], model_max_length: float | None = None) -> int | None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        file = tmp_path / "tokenizer_config.json"
        content = {**json.loads(file.read_text()), "model_max_length": model_max_length}
        file.write_text(json.dumps(content))
        return PromptRenderer(tmp_path, PromptFormat()).context_length

    saved(tmp_path, byte_level(False))
    assert found({"max_position_embeddings": 2048}, 512) == 2048
    assert found({"text_config": {"max_position_embeddings": 4096}}) == 4096
    assert found({"n_positions": 1024}) == 1024
    assert found({}, 512) == 512
    assert found({}, 1e30) is None
    assert found({}) is None


def test_folder_without_tokenizer_json_goes_through_transformers(tmp_path: Path) -> None:
    trained = json.loads(byte_level(False).to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(trained["vocab"]))
    merges = [" ".join(merge) for merge in trained["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_positions": 64}')
    names = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "chat_template": CHATML}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", **names})
    )
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(tmp_path)
    renderer = PromptRenderer(tmp_path, PromptFormat())
    assert renderer.render(QUESTION).token_ids == ids_of_transformers(reference, QUESTION)
    assert renderer.stop_token_ids == (2,)


def test_a_folder_that_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no usable tokenizer"):
        PromptRenderer(tmp_path, PromptFormat())
    saved(tmp_path / "broken", byte_level(False))
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    with pytest.raises(PolicyError, match="not a valid tokenizer"):
        PromptRenderer(tmp_path / "broken", PromptFormat())
    shutil.rmtree(tmp_path / "broken")


def test_truncation_and_padding_stored_in_the_tokenizer_are_ignored(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(False))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = PromptRenderer(tmp_path, PromptFormat()).render(QUESTION).token_ids
    assert 2 < len(ids) < 50
