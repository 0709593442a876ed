"""A policy of the Llama family made here, a project around it, and the real stages run on a device.

Its weights are random and its distributions sharp; rewards are for the length of answers.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollbook.components.engines.base import Completion, GenerationRequest, RolloutEngine
from rollbook.components.policies.byte_tokenizer import BOS_ID, EOS_ID, PAD_ID, save_byte_tokenizer
from rollbook.components.policies.frozen import FrozenPolicies
from rollbook.components.policies.loading import prepare_torch
from rollbook.core.framework_imports import lean_transformers
from rollbook.core.ids import BASE_KEY, seed_of
from rollbook.core.registry import build
from rollbook.project.plan import load_stage
from rollbook.rl.context import Context
from rollbook.rl.training.measure import measure
from rollbook.rl.training.rows import rows_of
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params
from rollbook.tables.artifacts import path_of, read_facts, read_table
from tests.in_process import TRAINING_STAGES, chain_of, make_base, run_stage
from tests.unit.settings.test_params import shipped

MIB = 2**20
LOGIT_DEVIATION = 3.0
"""Of a random policy: far from uniform, so that greedy answers are no coin tosses."""
PHASES = {
    "generate_rollouts": "generation",
    "measure_logprobs": "measuring",
    "update_policy": "update",
}


@dataclass(frozen=True)
class Size:
    """A policy: widths, layers, heads; and its work: prompts, answers to each, and tokens of the longest answer."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    prompts: int
    group: int
    tokens: int


SIZES = {
    "cpu": Size(
        hidden=64,
        intermediate=128,
        layers=2,
        heads=4,
        kv_heads=2,
        head=32,
        vocabulary=512,
        prompts=4,
        group=4,
        tokens=16,
    ),
    "cuda": Size(
        hidden=1024,
        intermediate=3072,
        layers=8,
        heads=16,
        kv_heads=8,
        head=64,
        vocabulary=32_768,
        prompts=16,
        group=8,
        tokens=128,
    ),
}
"""A few seconds of work, and 0.17 billion weights: some 10 GB of artifacts in the end."""
UPDATE = {
    "optimizer_steps": 2,
    "learning_rate": 1e-4,
    "loss": {"name": "dapo", "kl_coef": 0.02},
}
"""Two steps and a KL term: the policies before the update and at the beginning are measured too."""
RECIPES: dict[str, dict[str, Any]] = {
    "float": {"generate_rollouts": {"engine": {"name": "transformers", "dtype": "float32"}}},
    "bfloat": {
        "generate_rollouts": {"engine": {"name": "transformers", "dtype": "bfloat16"}},
        "update_policy": {"precision": "bfloat16", "gradient_checkpointing": True},
    },
    "lora": {
        "generate_rollouts": {"engine": {"name": "transformers", "dtype": "bfloat16"}},
        "update_policy": {
            "precision": "bfloat16",
            "gradient_checkpointing": True,
            "lora": {"rank": 8},
            "learning_rate": 1e-3,  # after two steps an engine that left the adapter out would be far off
        },
    },
    "vllm": {"generate_rollouts": {"engine": {"name": "vllm"}}},
}


@dataclass(frozen=True)
class Cost:
    """A stage of an iteration: seconds, completion tokens, and the most GPU memory it held, MiB (0 without a GPU)."""

    seconds: float
    tokens: int
    peak_mib: float


@dataclass
class Project:
    """A project in the current directory.

    Attributes:
        kind: `cpu` or `cuda`.
        size: of the policy and its work.
        params: with a recipe of each kind, and iterations `<recipe>0001` and `<recipe>0002` of it.
        costs: of stages run, by recipe and stage; of an iteration run twice the last.
    """

    kind: str
    size: Size
    params: Params
    costs: dict[tuple[str, str], Cost] = field(default_factory=dict)

    @classmethod
    def made(cls, device: str) -> Project:
        """Makes the base policy, and the project around it."""
        kind = device.partition(":")[0]
        size = SIZES[kind]
        folder = Path("model").absolute()
        _save_model(folder, size)
        project = cls(kind, size, _params(folder, size, device))
        make_base(project.params)
        return project

    @cached_property
    def device(self) -> torch.device:
        """What the stages compute on."""
        return prepare_torch(self.params.runtime)

    def train(self, recipe: str, key: str) -> dict[str, float]:
        """One iteration through all stages. Returns metrics of the update."""
        metrics: dict[str, float] = {}
        for name in TRAINING_STAGES:
            with self._weighed(recipe, name, key):
                metrics = dict(run_stage(name, key, self.params).metrics)
        return metrics

    @contextlib.contextmanager
    def _weighed(self, recipe: str, stage: str, key: str) -> Iterator[None]:
        """Notes the cost of one of `PHASES`."""
        on_gpu = self.device.type == "cuda"
        self.tidy()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated(self.device) / MIB if on_gpu else 0.0
        if stage in PHASES:
            rollouts, _ = read_table(path_of("rollouts", key), "rollouts")
            tokens = sum(map(len, rollouts["completion_token_ids"].to_pylist()))
            self.costs[recipe, stage] = Cost(seconds, tokens, peak)

    def tidy(self) -> None:
        """Gives GPU memory back that only torch's cache holds: vLLM takes what is free."""
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def policy(self, key: str) -> Path:
        """Folder of the policy that an iteration wrote."""
        return path_of("policies", key)

    def digest(self, key: str) -> str:
        """Hash of that policy."""
        return read_facts(self.policy(key)).content_hash

    def gradient(self, **update: Any) -> dict[str, torch.Tensor]:
        """First moments after one optimizer step on the first rollouts: a tenth of the clipped gradient, on the CPU."""
        from safetensors.torch import load_file

        stage = load_stage("update_policy")
        settings: Any = stage.settings.of(self.params, "float0001")
        changed = {"optimizer_steps": 1, "loss": build("losses", "dapo"), **update}
        settings = settings.model_copy(
            update={"update": settings.update.model_copy(update=changed)}
        )
        inputs = stage.read("float0001", self.params)
        context = Context("float0001", self.params.runtime, "update_policy")
        outputs = stage.run(settings, inputs, context)
        with TemporaryDirectory() as folder:
            outputs.folders["optimizers"](Path(folder))
            return load_file(Path(folder) / "exp_avg.safetensors")

    def generated(
        self, engine: RolloutEngine, requests: Sequence[GenerationRequest]
    ) -> list[Completion]:
        """Completions of the base policy."""
        self.tidy()
        generate = self.params.recipe_of("float0001").generate_rollouts
        return engine.generate(
            self.policy(BASE_KEY), requests, generate, self.params.runtime, lambda *_: None
        )

    def requests(self, greedy: bool = False) -> list[GenerationRequest]:
        """The rollouts of the first iteration, asked with prompts of several lengths."""
        prompts, _ = read_table(path_of("prompts", "float0001"), "prompts")
        return [
            GenerationRequest(ids[: len(ids) - place % 3], seed_of(place, sample), greedy)
            for place, ids in enumerate(prompts["prompt_token_ids"].to_pylist())
            for sample in range(1 if greedy else self.size.group)
        ]

    def differences(self, key: str, precision: str) -> NDArray[np.floating]:
        """|engine − trainer| of the log-prob of every token of an iteration, nats."""
        previous = self.params.iterations[key].previous
        rollouts, _ = read_table(path_of("rollouts", key), "rollouts")
        prompts, _ = read_table(path_of("prompts", key), "prompts")
        rows = rows_of(prompts, rollouts, self.digest(previous))
        model = FrozenPolicies(self.device).open(self.policy(previous))
        measured = measure(
            model,
            rows,
            temperature=1.0,
            precision=precision,
            micro_batch_tokens=16384,
            share_prompts=True,
            on_rows=lambda *_: None,
        )
        return np.abs(measured.logprobs.values - rows.sampling_logprobs.values)


def _save_model(folder: Path, size: Size) -> None:
    """A Llama with grouped queries and its own output head, whose answers end at many lengths."""
    with lean_transformers():
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.utils import logging

    logging.disable_progress_bar()
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        head = model.lm_head.weight
        head.normal_(0, LOGIT_DEVIATION / size.hidden**0.5)
        head[EOS_ID] *= 2
    model.save_pretrained(folder)
    save_byte_tokenizer(folder, config.max_position_embeddings)


def _params(model: Path, size: Size, device: str) -> Params:
    on_cpu = device == "cpu"
    raw = shipped(
        data__train=[{"name": "arithmetic", "below": 50}],
        data__evaluation={},
        policy__base={"name": "pretrained", "model": str(model)},
        recipes__grpo__prepare_prompts={"prompts_per_iteration": size.prompts},
        recipes__grpo__generate_rollouts__group_size=size.group,
        recipes__grpo__generate_rollouts__max_completion_tokens=size.tokens,
        recipes__grpo__score_rollouts__rewards=[
            {"name": "length", "target_tokens": size.tokens // 2, "coef": 0.1}
        ],
        recipes__grpo__update_policy=UPDATE,
        runtime={
            "device": device,
            "threads": 1
            if on_cpu
            else "auto",  # as fast for so small a policy, also beside other work
            "vllm": {"kv_cache_gib": 0.0625 if on_cpu else 2, "gpu_memory_utilization": 0.5},
        },
    )
    raw["iterations"] = {}
    for recipe, settings in RECIPES.items():
        raw["recipes"][recipe] = {"extends": "grpo", **settings}
        raw["iterations"] |= chain_of(recipe, keys_of(recipe))
    return parse_params(raw)


def keys_of(recipe: str) -> list[str]:
    """Its two iterations."""
    return [f"{recipe}0001", f"{recipe}0002"]
