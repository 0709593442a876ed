"""Tables of an iteration whose recipe has a critic: what it said, and what it should have said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rollbook.tables.artifacts import schema_of
from rollbook.tables.schemas.rollouts import IDS
from tests.unit.rl.training.small import with_column


def taught(
    tables: dict[str, pa.Table],
    values: Sequence[Sequence[float]] | None = None,
    unscored: Sequence[int] = (),
    old_logprobs: float | None = None,
) -> dict[str, pa.Table]:
    """The tables with returns for every token, drawn at random, the same ones for the same completions.

    Args:
        tables: of `tables_for`.
        values: of each rollout's tokens; default 0, as a critic says that has learned nothing.
        unscored: rows without a reward, and so without returns.
        old_logprobs: of every token under the policy before the update; None: not measured.
    """
    rollouts = tables["rollouts"]
    lengths = [len(ids) for ids in rollouts["completion_token_ids"].to_pylist()]
    random = np.random.default_rng(5)
    returns = [random.uniform(-1, 1, length).tolist() for length in lengths]
    nothing = pa.nulls(len(lengths))
    logprobs = {
        **{name: rollouts[name] for name in IDS},
        **dict.fromkeys(("ref_logprobs", "entropies"), nothing),
        "old_logprobs": nothing
        if old_logprobs is None
        else [[old_logprobs] * length for length in lengths],
        "values": [[0.0] * length for length in lengths] if values is None else values,
    }
    known = [None if row in unscored else each for row, each in enumerate(returns)]
    return {
        **tables,
        "advantages": with_column(tables["advantages"], "token_returns", known),
        "logprobs": schema_of("logprobs").build(logprobs),
    }
