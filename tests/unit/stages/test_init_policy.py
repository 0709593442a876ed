from pathlib import Path
from typing import Any

import pytest

from rollbook.components.policies.base import BasePolicy, CreatedPolicy
from rollbook.components.policies.loading import check_policy_folder
from rollbook.core.errors import PolicyError
from rollbook.core.runtime import Runtime
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.rl.training.optimizer import read_optimizer_state
from rollbook.settings.config import Policy
from rollbook.stages.init_policy import Settings, init_policy
from rollbook.tables.artifacts import path_of, read_folder, write_folder, write_table
from tests.builders import table
from tests.unit.stages.test_evaluate_policy import _data

CONTEXT = Context("i0000", Runtime(device="cpu", threads=1))
TINY = {
    "name": "tiny",
    "hidden_size": 32,
    "intermediate_size": 32,
    "layers": 1,
    "heads": 1,
    "warm_start_steps": 3,
    "warm_start_batch": 4,
}


def _run(seed: int = 0, **base: Any) -> Outputs:
    settings = Settings(seed=seed, policy=Policy.model_validate({"base": base or TINY}))
    return init_policy(settings, Inputs({"data": table("data", _data())}), CONTEXT)


def test_it_makes_a_policy_and_an_optimizer_that_has_taken_no_step(project: Path) -> None:
    outputs = _run()
    for kind, write in outputs.folders.items():
        write_folder(write, kind, "i0000")
        read_folder(path_of(kind, "i0000"), kind)
    check_policy_folder(path_of("policies", "i0000"))
    assert read_optimizer_state(path_of("optimizers", "i0000")).optimizer_step == 0
    assert outputs.metrics["parameters"] > 0
    assert outputs.tables["history"].num_rows == 0
    write_table(outputs.tables["history"], "history", "i0000")
    assert outputs.metrics["warm_start/examples"] == 4


def test_the_same_seed_gives_the_same_folder(project: Path) -> None:
    digests = [
        write_folder(_run(seed).folders["policies"], "policies", f"i{place:04d}").content_hash
        for place, seed in enumerate((0, 0, 1))
    ]
    assert digests[0] == digests[1] != digests[2]


class Asking(BasePolicy):
    """Refuses to be made, and says what it was given."""

    def create(self, examples: Any, seed: int, runtime: Runtime) -> CreatedPolicy:
        first = examples[0]
        raise PolicyError(
            f"{len(examples)} {first.messages[0]['content']} {first.reference_answer} {seed}"
        )


def test_a_base_policy_is_given_the_training_prompts_and_the_seed() -> None:
    with pytest.raises(PolicyError, match=r"4 1\+2= 3 5"):
        _run(5, path=f"{__name__}:Asking")
