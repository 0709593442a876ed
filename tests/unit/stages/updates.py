"""Settings of `update_policy` as the tests of its stage take them."""

from __future__ import annotations

from rollbook.settings.recipe_sections import UpdatePolicy
from rollbook.stages.update_policy import Settings


def settings_for(update: UpdatePolicy) -> Settings:
    """Those of an update of a small model: 12 tokens, temperature 1, no correction and no KL in the reward."""
    return Settings(
        seed=0,
        update=update,
        temperature=1.0,
        max_completion_tokens=12,
        correction=None,
        reward_kl=0.0,
        reward_kl_estimator="k1",
    )
