"""What is shown, as plain values: strings, numbers, truth values, and lists of these. None: not stored, or unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rollbook.project.run.policies import PolicyLink
from rollbook.tables.artifacts import finite

Number = float | None


@dataclass(frozen=True)
class Piece:
    """A token of a prompt.

    Attributes:
        id: in the policy's vocabulary.
        text: what it adds to the text; empty where it ends inside a character.
        special: whether it is a special token.
    """

    id: int
    text: str
    special: bool


@dataclass(frozen=True)
class Token:
    """A token of a completion. Log-probs are natural, under the sampled distribution.

    Attributes:
        place: in the completion, from 0.
        id: in the policy's vocabulary.
        text: what it adds to the text; None without a tokenizer.
        special: whether it is a special token; None without a tokenizer.
        trained: whether the engine marked it to be trained on.
        sampling_logprob: as the engine reported it.
        old_logprob, ref_logprob: of the trainer's policy before the update, and of the reference, where measured.
        policy_logprob: of the policy in training when the rollout was last seen, before that optimizer step.
        ratio: exp(policy_logprob − the log-prob it was compared with).
        advantage: its own, where tokens of a rollout differ.
        value, token_return: what a critic said before the update that is still to come, and what it should have said.
        clipped: `low` or `high` for the bound that held it, empty for none; None: not known.
    """

    place: int
    id: int
    text: str | None
    special: bool | None
    trained: bool
    sampling_logprob: float
    old_logprob: Number = None
    ref_logprob: Number = None
    policy_logprob: Number = None
    ratio: Number = None
    advantage: Number = None
    value: Number = None
    token_return: Number = None
    clipped: str | None = None


@dataclass(frozen=True)
class RewardValue:
    """The value that one reward function gave.

    Attributes:
        name: of its column, without `reward_`.
        value: None where it does not apply or failed.
        weight: in the total; None where it is not recorded.
        logged: what it logged beside its number, by column.
    """

    name: str
    value: Number
    weight: Number
    logged: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """A rollout in a few words, beside its siblings.

    Attributes:
        rollout_id: of it.
        greedy: whether it took the likeliest token at every step.
        text: without special tokens.
        tokens: of the completion.
        finish_reason: stop, length or error.
        reward: total.
        rewards: of each function by name.
        error: of a reward function.
        advantage: as stored.
        kept: whether the update was to train on it.
        trained: whether it did.
        reason: why not.
    """

    rollout_id: str
    greedy: bool
    text: str
    tokens: int
    finish_reason: str
    reward: Number = None
    rewards: Mapping[str, Number] = dataclasses.field(default_factory=dict)
    error: str | None = None
    advantage: Number = None
    kept: bool | None = None
    trained: bool | None = None
    reason: str | None = None


@dataclass(frozen=True)
class AdvantageArithmetic:
    """How an advantage came to be, written out, and computed again.

    Attributes:
        estimator: its name.
        words: what it does, in one line.
        formula: lines of it.
        steps: the arithmetic in numbers.
        from_rollouts: rollouts it was computed from: the group, or the whole iteration where an estimator looks at it.
        computed: the advantage, computed again with the recorded settings; None if that is not possible.
        stored: in the advantages table.
        agrees: whether the two are equal, those of single tokens too; None if it was not computed.
        problem: why it was not computed, or what differs; else empty.
    """

    estimator: str
    words: str
    formula: Sequence[str]
    steps: Sequence[str]
    from_rollouts: int
    computed: Number
    stored: float
    agrees: bool | None
    problem: str = ""


@dataclass(frozen=True)
class Advantage:
    """What the advantages table says of a rollout.

    Attributes:
        value: its advantage; of one with an advantage per token their mean.
        group_mean, group_std: of the rewards in its group.
        informative: whether the group carries a signal.
        kept: whether the update was to train on the rollout.
        arithmetic: how the number came to be; None for a rollout that is a baseline itself.
    """

    value: float
    group_mean: Number
    group_std: Number
    informative: bool
    kept: bool
    arithmetic: AdvantageArithmetic | None


@dataclass(frozen=True)
class Partner:
    """The other answer of a preference pair that a rollout is in.

    Attributes:
        pair_id: of the pair.
        chosen: whether the rollout shown is the better one of the two.
        rollout_id: the other one.
        own_reward, reward: of the rollout shown and of the other, as the estimator saw them.
    """

    pair_id: str
    chosen: bool
    rollout_id: str
    own_reward: float
    reward: float


@dataclass(frozen=True)
class RolloutUpdate:
    """What the update did with a rollout.

    Attributes:
        trained: whether it was trained on.
        reason: why not.
        ratio_mean, ratio_min, ratio_max: over its trained-on tokens, as last seen; None for a loss without a ratio.
        clipped_fraction: share of these tokens that a bound held; likewise.
        kl: token mean of the KL term, nats.
        rollout_weight: token mean of the rollout correction.
        loss_share: its part of the sum of |loss| over all tokens.
        loss: name of the loss.
        words: what the loss does, in one line; empty if the loss is not here any more.
    """

    trained: bool
    reason: str | None
    ratio_mean: Number
    ratio_min: Number
    ratio_max: Number
    clipped_fraction: Number
    kl: Number
    rollout_weight: Number
    loss_share: Number
    loss: str
    words: str


@dataclass(frozen=True)
class Origin:
    """A table that was read.

    Attributes:
        path: relative to the project.
        content_hash: logical hash of its rows, as recorded in it.
        md5: DVC's; empty if no lock file knows it.
    """

    path: str
    content_hash: str
    md5: str


@dataclass(frozen=True)
class Made:
    """The step that made something.

    Attributes:
        stage: as DVC calls it.
        finished: ISO time.
        commit: of the repository; empty outside of one.
        dirty: whether files differed from the commit; run_info holds the patch.
        environment: packages, processor and the like that matter to it, in words.
    """

    stage: str
    finished: str
    commit: str
    dirty: bool
    environment: str


@dataclass(frozen=True)
class Tracked:
    """The run in MLflow that shows an iteration.

    Attributes:
        run_id: of it; empty if the store does not hold it or could not be asked.
        url: of its page, once the server runs.
        how: how to open it, or how to find it, in words.
    """

    run_id: str
    url: str
    how: str


@dataclass(frozen=True)
class Provenance:
    """Where something comes from.

    Attributes:
        iteration: its key.
        recipe: name in params.yaml; empty for the base policy, and where it is not known.
        sealed: name of the sealed part that the iteration is in; empty if it is in none.
        policy_in: that generated.
        policy_out: that the update made; None if there was none.
        engine: that generated, with its settings.
        settings: recorded, of the stages that decide the result, by stage.
        made: the steps that made it.
        origins: tables that were read.
        mlflow: the run that shows it.
        missing: files that would say more, and how to get them.
        disagreements: tables that were not made from each other.
    """

    iteration: str
    recipe: str
    sealed: str
    policy_in: PolicyLink
    policy_out: PolicyLink | None
    engine: str
    settings: Mapping[str, Any]
    made: Sequence[Made]
    origins: Sequence[Origin]
    mlflow: Tracked
    missing: Sequence[str] = ()
    disagreements: Sequence[str] = ()


@dataclass(frozen=True)
class Prompt:
    """A prompt as it was asked.

    Attributes:
        prompt_id: of it.
        messages: role and content.
        reference_answer: what is right.
        columns: of its source.
        rendered: the text that the policy continued; empty where only messages are stored.
        pieces: its tokens; empty without a tokenizer or without stored ids.
    """

    prompt_id: str
    messages: Sequence[Mapping[str, str]]
    reference_answer: str | None
    columns: Mapping[str, Any]
    rendered: str = ""
    pieces: Sequence[Piece] = ()


@dataclass(frozen=True)
class RolloutFacts:
    """Everything about one rollout. `evaluation_set` is empty for one of training."""

    kind: ClassVar[str] = "rollout"

    rollout_id: str
    group_id: str
    evaluation_set: str
    sample_index: int
    greedy: bool
    seed: int
    prompt: Prompt
    completion: str
    text: str
    finish_reason: str
    tokens: Sequence[Token]
    decoded: str
    reward: Number
    rewards: Sequence[RewardValue]
    logged: Mapping[str, Any]
    step_rewards: Sequence[Mapping[str, Any]]
    error: str | None
    siblings: Sequence[Answer]
    advantage: Advantage | None
    partners: Sequence[Partner]
    update: RolloutUpdate | None
    provenance: Provenance


@dataclass(frozen=True)
class GroupFacts:
    """All answers to one prompt in one iteration. `evaluation_set` is empty for those of training."""

    kind: ClassVar[str] = "group"

    group_id: str
    evaluation_set: str
    prompt: Prompt
    answers: Sequence[Answer]
    mean: Number
    std: Number
    informative: bool | None
    kept: int | None
    estimator: str
    words: str
    provenance: Provenance


@dataclass(frozen=True)
class Occurrence:
    """One iteration that asked a prompt.

    Attributes:
        group_id: of its answers.
        iteration: in training the one that asked; in an evaluation the one whose policy was asked.
        evaluation_set: empty in training.
        rollouts: sampled answers.
        mean_reward: of those that have one.
        right: share of those whose value in `right_column` of the facts is at least RIGHT_FROM, if they have one.
        informative: whether the rewards differed, in the eyes of the estimator; None in an evaluation.
        answer: the greedy one, else the first; None unless asked for.
    """

    group_id: str
    iteration: str
    evaluation_set: str
    rollouts: int
    mean_reward: Number
    right: Number
    informative: bool | None
    answer: Answer | None = None


@dataclass(frozen=True)
class PromptFacts:
    """A prompt, and what came of it.

    Attributes:
        prompt: of it.
        data: the data table it stands in, `train` or `evaluation`, and its set; empty if it is in neither.
        occurrences: iterations that asked it, in order; evaluations behind training.
        right_column: the reward that says what is right; empty where none does, and nothing is `right`.
        over_time: whether the occurrences have answers.
        missing: files that would say more.
    """

    kind: ClassVar[str] = "prompt"

    prompt: Prompt
    data: str
    occurrences: Sequence[Occurrence]
    right_column: str
    over_time: bool
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class Evaluation:
    """How a policy did on a set; shares with their 95 % interval, as `rollbook report` has them."""

    set: str
    samples: int
    mean: Number
    mean_low: Number
    mean_high: Number
    greedy: Number
    passed: Number


@dataclass(frozen=True)
class TrainedOn:
    """The rollouts that made a policy.

    Attributes:
        origin: their table.
        groups, rollouts: in it.
        kept, trained: rollouts that the update was to train on, and did.
        mean_reward: of all with a reward.
        informative: groups whose rewards differed.
        same: whether the table is still the one that the update read.
    """

    origin: Origin
    groups: int
    rollouts: int
    kept: int | None
    trained: int | None
    mean_reward: Number
    informative: int | None
    same: bool


@dataclass(frozen=True)
class PolicyFacts:
    """A policy: how it came to be, where it is, and how good it is.

    Attributes:
        policy: of it.
        path: where its folder belongs.
        md5: DVC's, of the folder.
        recipe: that made it; empty for the base policy.
        sealed: part that its iteration is in; empty if it is in none.
        base: `policy.base` as it was.
        previous: policy that it was trained from; None for the base policy.
        reference: of the KL term; None where nothing was measured under one.
        steps_back: updates between it and the base that changed something; None if the chain is broken.
        trained_on: rollouts it was made from; None for the base policy.
        settings: of the update, as recorded; for the base policy those that made it.
        metrics: of the update.
        evaluations: by set.
        made: the step that made it.
        mlflow: the run that shows it.
        missing: files that would say more.
    """

    kind: ClassVar[str] = "policy"

    policy: PolicyLink
    path: str
    md5: str
    recipe: str
    sealed: str
    base: Mapping[str, Any]
    previous: PolicyLink | None
    reference: PolicyLink | None
    steps_back: int | None
    trained_on: TrainedOn | None
    settings: Mapping[str, Any]
    metrics: Mapping[str, Number]
    evaluations: Sequence[Evaluation]
    made: Made | None
    mlflow: Tracked
    missing: Sequence[str] = ()


Shown = RolloutFacts | GroupFacts | PromptFacts | PolicyFacts
"""What can be shown."""


def as_json(facts: Shown) -> dict[str, Any]:
    """The facts as JSON values, with what they are about under `kind`; numbers that are not finite are null.

    Values of a source's own columns stay what they are: dates and the like, which JSON writes as texts.
    """
    return {"kind": facts.kind, **finite(dataclasses.asdict(facts))}
