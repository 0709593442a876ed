"""judge: a language model grades the completion, asked over any OpenAI-compatible endpoint (a local `vllm serve`, …).

    r = mean over votes of (score − lowest) / (highest − lowest)                          in [0, 1]
    with criteria: score = Σ_c weight_c score_c / Σ_c weight_c                            partial credit by rubric

    {name: judge, base_url: "http://127.0.0.1:8000/v1", model: Qwen/Qwen3-8B, rubric: "10: correct and complete …"}

A judge is noisy, and group normalisation amplifies noise: where all answers of a group are equally good, all that is
left to divide by is the judge's own spread, and chance decides which answers are reinforced at full size. n votes
divide the noise by √n; `<label>_spread` (their deviation, in units of the reward) shows what there is of it.

A reply that cannot be read, or a score out of range, is an error on the row, never 0; so is an endpoint that gives no
reply. A completion may try to talk to the judge ("give me 10"): read what `<label>_verdicts` holds, raw, before you
trust it. The same column keeps replies from being paid for twice (`verdicts.py`): what was sent once is not sent again
(equal answers to a prompt share a verdict), and a repaired `score_pattern` reads the old replies. To ask afresh, set
another `seed`. In a replay nobody is asked: what came then, errors too, is read from
the table that was made (`recorded_replies.py`).

Every request goes out from the main process. Logged: `<label>_spread`, `<label>_tokens`, `<label>_<criterion>`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated, Any, ClassVar

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    field_validator,
    model_validator,
)

from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.components.rewards.chat_endpoint import (
    ChatEndpoint,
    EndpointDownError,
    Reply,
    in_threads,
)
from rollbook.components.rewards.judge_prompt import TEMPLATE, rendering, text_of
from rollbook.components.rewards.judge_reply import SCORE, scores_in
from rollbook.components.rewards.outcomes import error_text
from rollbook.components.rewards.patterns import ExtractingRegex
from rollbook.components.rewards.recorded_replies import RecordedReplies, is_replay
from rollbook.components.rewards.unicode_text import without_surrogates
from rollbook.components.rewards.verdicts import (
    COLUMN_SUFFIX,
    Place,
    Verdict,
    VerdictStore,
    as_column,
    key_of,
)
from rollbook.core.errors import RewardError

SET_BY_FIELDS = frozenset({"model", "messages", "temperature", "max_tokens", "seed", "stream", "n"})
KEY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class Usage:
    """What a judge cost since it was built.

    Attributes:
        asked: replies that came from the endpoint.
        stored: replies that were there already.
        tries: requests sent for the replies that came.
        tokens: of prompts and replies asked for, as the endpoint counted them.
        seconds: of each reply that came.
    """

    asked: int = 0
    stored: int = 0
    tries: int = 0
    tokens: int = 0
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Asked:
    """What came of the votes on one row; None where there is no reply, and then why."""

    key: str
    verdicts: Sequence[Verdict | None]
    error: str = ""


class Judge(Reward):
    """Asks a model for a score.

    Attributes:
        base_url: of the endpoint, up to and with `/v1`.
        model: name that the endpoint knows it by.
        template: Jinja text of the message, or the path of a `.jinja` file. It may use messages, prompt (rendered),
            text (clean), completion (raw), reference_answer, columns, rubric, criteria, lowest and highest, and must
            use text or completion.
        rubric: what earns which score; put into the template.
        criteria: name and weight of each criterion. The reply must then end with a JSON object that holds a score for
            each; empty: one score, found by `score_pattern`.
        score_pattern: expression whose group is the score; the last match counts.
        lowest: score that becomes 0.
        highest: score that becomes 1.
        votes: independent replies that are averaged.
        temperature: of the judge; null leaves it out of the request.
        max_tokens: of a reply; null leaves it out of the request.
        seed: sent with each request, raised by 1 per vote; null leaves it out. Another seed asks everything afresh.
        request: further fields of the request, such as `{max_completion_tokens: 512}`.
        api_key_env: name of the environment variable that holds the key. The key itself is stored nowhere.
        timeout: seconds for one try.
        retries: further tries after a timeout, a broken connection or status 408, 425, 429 or 5xx.
        first_wait: seconds before the second try; doubled with each one, at most 60.
        concurrency: most requests at once.
    """

    in_main_process: ClassVar[bool] = True

    base_url: Annotated[str, Field(pattern="^https?://[^/@]+(/.*)?$")]
    model: Annotated[str, Field(min_length=1)]
    template: str = TEMPLATE
    rubric: str = ""
    criteria: dict[str, PositiveFloat] = Field(default_factory=dict)
    score_pattern: ExtractingRegex = SCORE
    lowest: float = 0.0
    highest: float = 10.0
    votes: PositiveInt = 1
    temperature: NonNegativeFloat | None = 0.0
    max_tokens: PositiveInt | None = 1024
    seed: int | None = None
    request: dict[str, Any] = Field(default_factory=dict)
    api_key_env: str | None = None
    timeout: PositiveFloat = 120.0
    retries: NonNegativeInt = 5
    first_wait: NonNegativeFloat = 1.0
    concurrency: PositiveInt = 16

    _usage: Usage = PrivateAttr(default_factory=Usage)
    _asked: dict[int, tuple[RewardInput, _Asked]] = PrivateAttr(default_factory=dict)
    _recorded: RecordedReplies | None = PrivateAttr(default=None)

    @field_validator("template")
    @classmethod
    def _renders(cls, template: str) -> str:
        if template.endswith(".jinja") and not Path(template).is_file():
            return template  # `check` lists missing files
        rendering(text_of(template))
        return template

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not KEY_NAME.fullmatch(name):
            raise ValueError("must be the name of an environment variable, not the key itself")
        return name

    @model_validator(mode="after")
    def _scores_have_a_range(self) -> Judge:
        if not self.lowest < self.highest:
            raise ValueError(f"lowest {self.lowest:g} must be below highest {self.highest:g}")
        if taken := sorted(SET_BY_FIELDS & self.request.keys()):
            raise ValueError(f"request: {taken[0]} has its own place, or is fixed; leave it out")
        if taken := sorted({"spread", "tokens", "verdicts"} & self.criteria.keys()):
            raise ValueError(f"criteria: {taken[0]} is a column of the judge; take another name")
        return self

    def cautions(self) -> list[str]:
        if self.votes > 1 and self.temperature == 0:
            return [
                f"reward {self.title}: {self.votes} votes at temperature 0 are the same vote; "
                "set a temperature"
            ]
        return []

    def data_files(self) -> list[str]:
        return [self.template] if self.template.endswith(".jinja") else []

    def look_ahead(self, rows: Sequence[RewardInput]) -> None:
        self._asked.clear()
        # Together, so that `concurrency` is used across groups.
        for row, asked in zip(rows, self._ask(rows), strict=True):
            self._asked[id(row)] = (row, asked)  # with the row, so that its id stays its own

    def __call__(self, row: RewardInput) -> float | RewardResult | None:
        return self.score([row])[0]

    def score(self, group: Sequence[RewardInput]) -> list[float | RewardResult | None]:
        if not all(id(row) in self._asked for row in group):
            return [self._result(asked) for asked in self._ask(group)]
        return [self._result(self._asked.pop(id(row))[1]) for row in group]

    def run_info(self) -> dict[str, Any]:
        """Cost and latency; what varies from run to run."""
        usage, seconds = self._usage, sorted(self._usage.seconds)
        return {
            "asked": usage.asked,
            "stored": usage.stored,
            "tries": usage.tries,
            "tokens": usage.tokens,
            "seconds_median": round(seconds[len(seconds) // 2], 3) if seconds else None,
            "seconds_longest": round(seconds[-1], 3) if seconds else None,
        }

    def _ask(self, rows: Sequence[RewardInput]) -> list[_Asked]:
        """Replies to all votes on all rows: stored ones, and else new ones."""
        votes = range(self.votes)
        requests = [self._request(row) for row in rows]
        keys = ["" if isinstance(each, str) else key_of(self.base_url, each) for each in requests]
        if is_replay():
            return [
                self._as_recorded(row, request, key)
                for row, request, key in zip(rows, requests, keys, strict=True)
            ]
        bodies: dict[Place, dict[str, Any]] = {
            (key, vote): self._of_vote(request, vote)
            for key, request in zip(keys, requests, strict=True)
            if not isinstance(request, str)
            for vote in votes
        }
        with VerdictStore() as store:
            verdicts = store.find(bodies)
            self._usage.stored += len(verdicts)
            missing = {place: body for place, body in bodies.items() if place not in verdicts}
            new, errors = self._ask_endpoint(missing, store)
        verdicts |= new
        return [
            _Asked("", [None] * self.votes, request)
            if isinstance(request, str)
            else _Asked(
                key,
                [verdicts.get((key, vote)) for vote in votes],
                next((errors[key, vote] for vote in votes if (key, vote) in errors), ""),
            )
            for key, request in zip(keys, requests, strict=True)
        ]

    def _as_recorded(self, row: RewardInput, request: Mapping[str, Any] | str, key: str) -> _Asked:
        """What came of a row when its step ran first."""
        if isinstance(request, str):
            return _Asked("", [None] * self.votes, request)
        if self._recorded is None:
            self._recorded = RecordedReplies()
        found = self._recorded.find(row.rollout_id, key, self.votes)
        return _Asked(key, found.verdicts, found.error)

    def _ask_endpoint(
        self, bodies: Mapping[Place, Mapping[str, Any]], store: VerdictStore
    ) -> tuple[dict[Place, Verdict], dict[Place, str]]:
        """New replies, and why there is none. An endpoint that is down is not asked about the other rows."""
        verdicts: dict[Place, Verdict] = {}
        errors: dict[Place, str] = {}
        if not bodies:
            return verdicts, errors
        try:
            key = self._api_key()
        except RewardError as error:
            return verdicts, dict.fromkeys(bodies, error.message)
        endpoint = ChatEndpoint(self.base_url, key, self.timeout, self.retries, self.first_wait)
        places = list(bodies)
        calls = [_call(endpoint, bodies[place]) for place in places]
        for number, answer in in_threads(calls, self.concurrency):
            place = places[number]
            if isinstance(answer, Reply):
                verdicts[place] = Verdict(answer.text, answer.tokens)
                store.keep(place, verdicts[place])
                self._count(answer)
            elif isinstance(answer, EndpointDownError):
                rest = [each for each in places if each not in verdicts]
                errors |= dict.fromkeys(rest, answer.message)
                break
            elif isinstance(answer, RewardError):
                errors[place] = answer.message
            else:
                raise answer
        return verdicts, errors

    def _count(self, reply: Reply) -> None:
        self._usage.asked += 1
        self._usage.tries += reply.tries
        self._usage.tokens += reply.tokens
        self._usage.seconds.append(reply.seconds)

    def _api_key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise RewardError(f"the environment variable {self.api_key_env} holds no key; set it")
        return key

    def _request(self, row: RewardInput) -> dict[str, Any] | str:
        """What is sent about a row, or why nothing can be."""
        try:
            content = rendering(text_of(self.template))(
                messages=row.messages,
                prompt=row.prompt,
                text=row.text,
                completion=row.completion,
                reference_answer=row.reference_answer,
                columns=row.columns,
                rubric=self.rubric,
                criteria=list(self.criteria),
                lowest=f"{self.lowest:g}",
                highest=f"{self.highest:g}",
            )
        except Exception as error:  # what a template of the user's own does with a row
            return f"the template cannot be rendered: {error_text(error)}"
        fields = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": without_surrogates(content)}],
            **{name: value for name, value in fields.items() if value is not None},
            **self.request,
        }

    def _of_vote(self, request: Mapping[str, Any], vote: int) -> dict[str, Any]:
        return {**request, **({} if self.seed is None else {"seed": self.seed + vote})}

    def _result(self, asked: _Asked) -> RewardResult:
        label = self.title
        log: dict[str, Any] = {
            f"{label}{COLUMN_SUFFIX}": as_column(asked.key, asked.verdicts, asked.error),
            f"{label}_tokens": sum(each.tokens for each in asked.verdicts if each is not None),
        }
        if asked.error:
            return RewardResult(None, log, error=asked.error)
        try:
            votes = [
                scores_in(each.text, self.criteria, self.score_pattern, self.lowest, self.highest)
                for each in asked.verdicts
                if each is not None
            ]
        except RewardError as error:
            return RewardResult(None, log, error=error.message)
        rewards = [self._weighted(scores) for scores in votes]
        for name in self.criteria:
            log[f"{label}_{name}"] = fmean(scores[name] for scores in votes)
        return RewardResult(fmean(rewards), {**log, f"{label}_spread": pstdev(rewards)})

    def _weighted(self, scores: Mapping[str, float]) -> float:
        weights = self.criteria or {"": 1.0}
        total = sum(weight * scores[name] for name, weight in weights.items())
        return total / sum(weights.values())


def _call(endpoint: ChatEndpoint, body: Mapping[str, Any]) -> Callable[[threading.Event], Reply]:
    return lambda stop: endpoint.ask(body, stop)
