from pathlib import Path

import pytest

from pipeline.config import PromptFormat
from pipeline.engines.base import Completion
from pipeline.generation import completion_columns, completion_metrics
from pipeline.policies.byte_tokenizer import EOS_ID, encode_bytes, save_byte_tokenizer
from pipeline.prompting import PromptRenderer


def _completion(length: int, stop: bool) -> Completion:
    return Completion([9] * length, [-0.5] * length, "stop" if stop else "length")


def test_texts_are_decoded_from_the_ids_with_and_without_special_tokens(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path, 100)
    ids = [*encode_bytes(tmp_path, ["42é"])[0], EOS_ID]
    made = Completion(ids, [-0.5] * len(ids), "stop")
    columns = completion_columns([made], PromptRenderer(tmp_path, PromptFormat()))
    assert columns["completion"] == ["42é<|eos|>"]
    assert columns["text"] == ["42é"]
    assert columns["completion_token_ids"] == [ids]
    assert columns["loss_mask"] == [[True] * 5]  # the stop token is trained on
    assert columns["sampling_logprobs"] == [[-0.5] * 5]
    assert columns["finish_reason"] == ["stop"]


def test_lengths_are_counted_over_all_and_over_those_that_ended() -> None:
    made = [
        _completion(2, True),
        _completion(4, True),
        _completion(8, False),
        _completion(8, False),
    ]
    metrics = completion_metrics(made)
    assert metrics["completions/mean_length"] == 5.5
    assert metrics["completions/min_length"] == 2
    assert metrics["completions/max_length"] == 8
    assert metrics["completions/clipped_ratio"] == 0.5
    assert metrics["completions/mean_terminated_length"] == 3
    assert metrics["completions/min_terminated_length"] == 2
    assert metrics["completions/max_terminated_length"] == 4


def test_terminated_lengths_are_0_if_nothing_ended() -> None:
    metrics = completion_metrics([_completion(8, False)])
    assert metrics["completions/clipped_ratio"] == 1
    assert metrics["completions/mean_terminated_length"] == 0


def test_a_failed_generation_did_not_end() -> None:
    failed = Completion([], [], "error")
    assert completion_metrics([failed, _completion(2, True)])[
        "completions/clipped_ratio"
    ] == pytest.approx(0.5)
