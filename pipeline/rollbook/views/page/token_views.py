"""Completions token by token as columns for the browser: what each token adds, its log-prob, its ratio, and marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.core.text import visible
from rollbook.project.run.run import Run
from rollbook.project.run.stored import StoredTable
from rollbook.views.show.clipping import Objective, with_clips, with_ratios
from rollbook.views.show.decoding import TokenDecoder, decoder_for
from rollbook.views.show.facts import Token
from rollbook.views.show.rollouts import decoded, tokens_of

SPECIAL, MASKED, LOW, HIGH = 1, 2, 4, 8
"""Marks of a token, added up and written as one hexadecimal digit."""
THOUSANDTHS = 1000
"""Log-probs and ratios are whole numbers of these."""
TRAINING = ("logprobs", "updates", "advantages")
"""Tables that say more of the tokens of a rollout; of an evaluation answer there are none."""
LARGEST = 1e6
"""Ratios above it are shown as it."""


@dataclass(frozen=True)
class Views:
    """Token views of one iteration, or of its evaluation.

    Attributes:
        run: that they are of.
        key: the iteration.
        completions: its table of rollouts, or of evaluation answers.
        beside: kinds of the tables that say more of them.
    """

    run: Run
    key: str
    completions: StoredTable
    beside: Sequence[str] = TRAINING

    def columns(self, shown: Sequence[int], places: Sequence[int]) -> dict[str, Any]:
        """The views.

        Args:
            shown: places in the block of the page.
            places: the same rollouts' places in the table.
        """
        rows = self.completions.all().take(pa.array(places, pa.int64()))
        others = {kind: self._beside(kind, rows) for kind in TRAINING}
        found: dict[str, Any] = {
            "row": list(shown),
            "spelled": [],
            "id": [],
            "size": [],
            "logprob": [],
            "ratio": [],
            "marks": [],
            "said": visible(self._decoder[1]),
        }
        for at, own in enumerate(rows.to_pylist()):
            beside = {kind: each[at] for kind, each in others.items()}
            tokens, problem = self._tokens(own, beside)
            texts = [token.text for token in tokens]
            spelled = "".join(text or "" for text in texts) == own["completion"]
            found["said"] = found["said"] or visible(problem)
            found["spelled"].append(int(spelled))
            found["id"] += [token.id for token in tokens]
            found["size"] += [_size(text or "") if spelled else 0 for text in texts]
            found["logprob"] += [round(token.sampling_logprob * THOUSANDTHS) for token in tokens]
            found["ratio"] += [_ratio(token) for token in tokens]
            found["marks"].append("".join(_marks(token) for token in tokens))
        if all(ratio is None for ratio in found["ratio"]):
            found["ratio"] = None
        return found

    @cached_property
    def _objective(self) -> Objective:
        return Objective.of(self.run.iteration(self.key).settings("update_policy"))

    @cached_property
    def _decoder(self) -> tuple[TokenDecoder | None, str]:
        digests = pc.unique(self.completions.column("policy_digest")).to_pylist()
        return decoder_for(self.run.maker(digests[0], self.key) if digests else "", self.run)

    def _beside(self, kind: str, rows: pa.Table) -> list[dict[str, Any]]:
        """Rows of another table in this order; empty where there is none."""
        table = self.run.find_table(kind, self.key) if kind in self.beside else None
        if table is None or not table.rows:
            return [{} for _ in range(rows.num_rows)]
        found = table.all()
        places = pc.index_in(rows["rollout_id"], value_set=found["rollout_id"].combine_chunks())
        return found.take(places).to_pylist()

    def _tokens(
        self, own: dict[str, Any], beside: dict[str, dict[str, Any]]
    ) -> tuple[list[Token], str]:
        update, advantage = beside["updates"], beside["advantages"]
        tokens, problem = decoded(
            tokens_of(own, beside["logprobs"], update, advantage), own, *self._decoder
        )
        tokens = with_ratios(tokens, self._objective)
        if (value := advantage.get("advantage")) is not None:
            tokens = with_clips(tokens, value, update.get("clipped_fraction"), self._objective)
        return tokens, problem


def _size(text: str) -> int:
    """UTF-16 units of a token's text as the page has it, which is how browsers count."""
    return len(visible(text, lines=True).encode("utf-16-le", "surrogatepass")) // 2


def _ratio(token: Token) -> int | None:
    return None if token.ratio is None else round(min(token.ratio, LARGEST) * THOUSANDTHS)


def _marks(token: Token) -> str:
    held = {"low": LOW, "high": HIGH}.get(token.clipped or "", 0)
    return f"{SPECIAL * bool(token.special) + MASKED * (not token.trained) + held:x}"
