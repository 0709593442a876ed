import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollbook.components.engines.base import Completion, GenerationRequest, Sampling
from rollbook.components.engines.kept_batches import FOLDER, KeptBatches
from rollbook.components.engines.transformers import Transformers
from rollbook.components.policies.byte_tokenizer import EOS_ID, encode_bytes, save_byte_tokenizer
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.runtime import Runtime
from rollbook.rl.context import Context, Inputs
from rollbook.rl.generation import completion_columns, completion_metrics, completions_of
from rollbook.tables.artifacts import path_of, write_folder
from tests.unit.components.engines.models import RUNTIME, requests_for, save_llama

SAMPLING = Sampling(max_completion_tokens=6)
REQUESTS = requests_for(prompts=9, samples=3)
BATCH_SIZE, BATCHES = 4, 7


class Killed(BaseException):
    """Stands for the end of the process."""


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


@pytest.fixture
def inputs(project: Path) -> Inputs:
    facts = write_folder(lambda folder: save_llama(folder) and None, "policies", "i0000")
    return Inputs({}, {"policies": path_of("policies", "i0000")}, {"policies": facts})


def _context(digest: str = "settings", key: str = "i0001", runtime: Runtime = RUNTIME) -> Context:
    return Context(key, runtime, "generate_rollouts", digest)


def _completions(inputs: Inputs, context: Context) -> list[Completion]:
    engine = Transformers(name="transformers", batch_size=BATCH_SIZE)
    return completions_of(engine, REQUESTS, SAMPLING, "rollouts", inputs, context)


def _killed_after(
    batches: int, inputs: Inputs, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends when it has written some batches."""
    write = KeptBatches.write

    def write_or_die(
        self: KeptBatches, requests: Sequence[GenerationRequest], made: Sequence[Completion]
    ) -> None:
        if len(list(FOLDER.rglob("*.npz"))) == batches:
            raise Killed
        write(self, requests, made)

    with monkeypatch.context() as patched:
        patched.setattr(KeptBatches, "write", write_or_die)
        with pytest.raises(Killed):
            _completions(inputs, context)
    assert len(list(FOLDER.rglob("*.npz"))) == batches


def test_what_a_killed_run_has_finished_is_reused(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = _completions(inputs, _context(digest=""))
    assert not FOLDER.exists()  # outside of a run nothing is kept
    _killed_after(3, inputs, _context(), monkeypatch)
    again = _context()
    assert _completions(inputs, again) == undisturbed
    (bar,) = again.progress_made
    assert (bar.reused, bar.done) == (3 * BATCH_SIZE, len(REQUESTS))
    assert bar.record().reused == 3 * BATCH_SIZE
    assert 0 < bar.amount < sum(len(each.token_ids) for each in undisturbed)
    finished = _context()
    assert _completions(inputs, finished) == undisturbed
    assert finished.progress_made[0].reused == len(REQUESTS)
    for clean_up in finished.when_written:
        clean_up()
    assert not list(FOLDER.rglob("*.npz"))


def test_a_damaged_batch_is_generated_again(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = _completions(inputs, _context(digest=""))
    _killed_after(3, inputs, _context(), monkeypatch)
    next(FOLDER.rglob("*.npz")).write_bytes(b"PK")
    again = _context()
    assert _completions(inputs, again) == undisturbed
    assert again.progress_made[0].reused == 2 * BATCH_SIZE


@pytest.mark.parametrize(
    "other",
    [
        {"digest": "other settings"},
        {"key": "i0002"},
        {"runtime": RUNTIME.model_copy(update={"threads": 2})},
    ],
)
def test_another_run_reuses_nothing_and_clears_what_was_left(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch, other: dict[str, object]
) -> None:
    _killed_after(3, inputs, _context(), monkeypatch)
    context = _context(**other)  # type: ignore[arg-type]
    _completions(inputs, context)
    assert context.progress_made[0].reused == 0
    assert len(list(FOLDER.rglob("*.npz"))) == BATCHES


def test_another_policy_reuses_nothing(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    _killed_after(3, inputs, _context(), monkeypatch)
    facts = dataclasses.replace(inputs.facts["policies"], content_hash="f" * 64)
    context = _context()
    _completions(dataclasses.replace(inputs, facts={"policies": facts}), context)
    assert context.progress_made[0].reused == 0
