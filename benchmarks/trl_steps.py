"""TRL's GRPOTrainer, one optimizer step whenever the parent process asks for one.

`python -m benchmarks.trl_steps SETTINGS.json` prints `ready`; then, for every line it reads, it takes a step and
prints what it cost as JSON. TRL is no dependency of this project: `pip install 'rollbook[bench]'`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.memory import peak_mib

CLEAR_REFS = Path("/proc/self/clear_refs")
PEAK = "5"
"""What is written there to count the peak of resident memory anew."""


def main(settings_file: str) -> None:
    """Builds the trainer and runs it to its last step."""
    settings = json.loads(Path(settings_file).read_text(encoding="utf-8"))
    answers = sys.stdout
    sys.stdout = sys.stderr  # the trainer prints its logs

    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(settings["threads"])

    class Timed(GRPOTrainer):  # type: ignore[misc]
        """Adds up the seconds of generation and of rewards."""

        generation = rewards = 0.0

        def _generate(self, *args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            made = super()._generate(*args, **options)
            self.generation += time.perf_counter() - started
            return made

        def _calculate_rewards(self, *args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            made = super()._calculate_rewards(*args, **options)
            self.rewards += time.perf_counter() - started
            return made

    class WhenAsked(TrainerCallback):  # type: ignore[misc]
        """Waits before each step, and tells what it cost."""

        def on_step_begin(self, *args: Any, **options: Any) -> None:
            if not sys.stdin.readline():
                raise SystemExit(0)
            trainer.generation = trainer.rewards = 0.0
            CLEAR_REFS.write_text(PEAK, encoding="ascii")
            self.started = time.perf_counter()

        def on_step_end(self, *args: Any, **options: Any) -> None:
            seconds = time.perf_counter() - self.started
            length = trainer._metrics["train"]["completions/mean_length"][-1]
            cost = {
                "seconds": seconds,
                "generation": trainer.generation,
                "rewards": trainer.rewards,
                "update": seconds - trainer.generation - trainer.rewards,
                "tokens": round(length * settings["rows"]),
                "peak_mib": peak_mib(os.getpid()),
            }
            print(json.dumps(cost), file=answers, flush=True)

    trainer = Timed(
        model=settings["model"],
        reward_funcs=[last_number_is_right],
        train_dataset=Dataset.from_list(settings["prompts"]),
        args=GRPOConfig(
            output_dir=settings["scratch"],
            use_cpu=True,
            bf16=settings["precision"] == "bfloat16",
            model_init_kwargs={"dtype": "float32"},
            per_device_train_batch_size=settings["rows"],
            num_generations=settings["group_size"],
            max_completion_length=settings["max_completion_tokens"],
            temperature=settings["temperature"],
            beta=0.0,
            loss_type="grpo",
            learning_rate=settings["learning_rate"],
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            max_steps=settings["steps"],
            shuffle_dataset=False,
            save_strategy="no",
            report_to="none",
            logging_steps=1,
            disable_tqdm=True,
        ),
        callbacks=[WhenAsked()],
    )
    print("ready", file=answers, flush=True)
    trainer.train()


def last_number_is_right(completions: Any, reference_answer: Any, **columns: Any) -> list[float]:
    """1 where the last number of an answer is the reference, as `numeric_answer` in lenient mode."""
    found = [re.findall(r"-?\d+", completion[0]["content"]) for completion in completions]
    return [
        float(bool(numbers) and numbers[-1] == reference)
        for numbers, reference in zip(found, reference_answer, strict=True)
    ]


if __name__ == "__main__":
    main(sys.argv[1])
