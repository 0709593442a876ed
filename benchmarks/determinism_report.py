"""What determinism.py measured, in few numbers per step, and reports/determinism.md made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.tables import markdown
from rollbook.project.replay.environment import INEXACT_NUMBERS, INEXACT_WEIGHTS
from rollbook.project.replay.verdict import Outcome, worst

HEAD = (
    "# Determinism\n\nFinished steps run again under other conditions, each from the stored inputs, and their outputs "
    "compared by the functions of `rollbook replay`, at tolerance 0. *Numbers apart* is the largest distance as a "
    "tolerance counts: in tables and metrics relative to the larger number or 1, in weights relative to the largest "
    "of their tensor."
)
WORDS = """\
What one may rely on:

- The same machine and packages give the same bytes: in any folder and clone, under any HOME, locale, timezone and hash
  seed, forked from the server or not, before and after `rollbook seal`, and from a policy that was made again. That
  killed and repeated steps do too is measured by `python -m benchmarks kills` and not here.
- What computes without torch gives the same bytes on simulated processors too: prompts, scores, advantages. How many
  processes score changes nothing.
- Another numpy, transformers or pandera of those below changes no byte. Another pyarrow writes other bytes of the same
  content; replay says so, and names every package that is another.
- A replay takes the recorded number of threads, so `auto` does no harm. Another number changed nothing for the
  embedded policy on an Intel Xeon; on AMD's Zen 4 (EPYC, 2026-12-01) two threads instead of one moved log-probs of 1
  generated rollout of 512, by 2.2e-7, and no token.

What not:

- Another batch size, micro-batch or sharing of prompts rounds otherwise, and so does another processor: log-probs in
  their last digits, and most weights. A rollout gets another token where a rounding moves a probability across the
  row's random number; from the same stored policy that is rare.
- So a whole run elsewhere is another run: policies are rounded otherwise from the base policy on, every update adds to
  it, and rollouts with other tokens follow. Compare steps from their stored inputs, as replay does, not whole runs."""
TOLERANCE_WORDS = (
    "Below is how far numbers were apart at most, where nothing but numbers differed, for float32 and Adam; both "
    "limits leave room above the largest of them. Weights are farther apart than the numbers they were computed from: "
    "Adam divides a gradient by its own size, so that a rounding of a gradient near 0 counts as much as a large one, "
    "most of all in i0001, which starts with moments of 0. "
    "Tokens and other words are `different` under any tolerance."
)
LEGEND = (
    "The embedded policy, three iterations of 64 prompts × 8 answers, one thread; i0001 is the shipped recipe (16 "
    "optimizer steps, ratio against the engine's log-probs), i0002 has measured log-probs, a KL term and 4 steps "
    "twice. A cell says *identical* (the same bytes), *same content* (it says otherwise what it was made with), or how "
    "far numbers are apart. Empty: not run."
)
WEIGHTS = (
    "Policies and optimizer states. The last three columns are about the weight, or moment of Adam, with the largest "
    "absolute difference, and the share in the file with the most."
)
RUNS = (
    "The embedded policy from data and base policy on, once more by `dvc repro`, beside the first run. Prompts, "
    "rollouts, scores, log-probs, advantages, updates, evaluations of all iterations, and all policies."
)
EFFECTS = (
    "Another processor was not at hand. Variables of the environment made the libraries of torch take the instructions "
    "of older ones; each was tried alone on small products, sums and exponentials in one thread."
)
NOT_MEASURED = (
    "A larger model, a GPU, a real other processor, another version of torch (it is large, and brings its own "
    "libraries), bfloat16, and engine `vllm`. On a GPU the tolerance is that of the processors, without evidence."
)
COMMAND = "python -m benchmarks determinism --packages"
PROCESSOR = "as on a processor"
TOKENS = "completion_token_ids"
"""Column of rollouts and evaluations."""


@dataclass(frozen=True)
class Finding:
    """One step under one condition.

    Attributes:
        condition: in words.
        step: its label.
        outcome: the worst of its outputs, at tolerance 0; `not replayed` if it could not be run.
        apart: by output that differs, how far its numbers are apart, as a tolerance counts; None if more than numbers
            differs, or only what it says about itself.
        tokens: rows of its tables with other tokens.
        difference: the largest of a weight, policies and optimizer states alike; None: no weight differs.
        ulp: of it.
        share: of weights that differ, in the file that has most.
        reasons: why the same content has other bytes; of a step that could not be run, what it said.
        environment: what replay said is not as it was.
    """

    condition: str
    step: str
    outcome: str
    apart: Mapping[str, float | None] = field(default_factory=dict)
    tokens: int = 0
    difference: float | None = None
    ulp: int | None = None
    share: float | None = None
    reasons: Sequence[str] = ()
    environment: Sequence[str] = ()


@dataclass(frozen=True)
class WholeRun:
    """A whole run beside the first one.

    Attributes:
        condition: in words.
        same, files: policies and tables with the same bytes, and all of them.
        tokens: rollouts with other tokens, by iteration.
        rollouts: of an iteration.
        apart: the last policies, as a tolerance counts; None: they are identical.
        greedy: share of right greedy answers of the last policy, then and now.
    """

    condition: str
    same: int
    files: int
    tokens: Sequence[int]
    rollouts: int
    apart: float | None
    greedy: Sequence[float]


def finding(condition: str, said: Mapping[str, Any]) -> Finding:
    """One step in few numbers.

    Args:
        condition: in words.
        said: of the step, as `rollbook replay --json` does.
    """
    around = [f"{each['what']} {each['then']} → {each['now']}" for each in said["environment"]]
    if said["problem"]:
        failed = str(Outcome.NOT_REPLAYED)
        return Finding(
            condition, said["step"], failed, reasons=[said["problem"]], environment=around
        )
    outputs = {each["path"]: each["comparison"] for each in said["outputs"]}
    facts = [each["facts"] for each in outputs.values()]
    files = [
        of_file
        for each in facts
        for name, of_file in each.items()
        if name.endswith(".safetensors") and "largest" in of_file
    ]
    most: Mapping[str, Any] = max((each["largest"] for each in files), key=_difference, default={})
    return Finding(
        condition,
        said["step"],
        str(worst(Outcome(each["outcome"]) for each in outputs.values())),
        apart={
            path: each["apart"]
            for path, each in outputs.items()
            if each["outcome"] != Outcome.IDENTICAL
        },
        tokens=sum(each.get("cells", {}).get(TOKENS, 0) for each in facts),
        difference=most.get("difference"),
        ulp=most.get("ulp"),
        share=max((each["share"] for each in files), default=None),
        reasons=[
            each["text"] for each in outputs.values() if each["outcome"] == Outcome.SAME_CONTENT
        ],
        environment=around,
    )


def _difference(largest: Mapping[str, Any]) -> float:
    return float(largest["difference"])


def report(
    found: Sequence[Finding],
    runs: Sequence[WholeRun],
    effects: Mapping[str, Sequence[str]],
    measured: str,
) -> str:
    """The whole page.

    Args:
        found: every step under every condition.
        runs: whole runs of the embedded policy.
        effects: by variable of the environment, the results of torch that get other bits by it.
        measured: when and where.
    """
    parts = [
        f"{HEAD}\n\nMeasured {measured}. `{COMMAND}` makes this page.",
        f"## In short\n\n{in_short(found)}\n\n{WORDS}",
        f"## Tolerance\n\n{_tolerance(found)}",
        f"## Step by step\n\n{LEGEND}\n\n{condition_table(found)}",
        f"## Weights after an update\n\n{_weights(found)}",
        f"## Whole runs\n\n{_whole_runs(runs)}",
        f"## Packages\n\n{_packages(found)}",
        f"## The simulated processors\n\n{_effects(effects)}",
        f"## Not measured\n\n{NOT_MEASURED}",
    ]
    return "\n\n".join(parts) + "\n"


def in_short(found: Sequence[Finding]) -> str:
    """A row per condition: how many of its steps came out how."""
    rows = []
    for name in dict.fromkeys(each.condition for each in found):
        own = [each for each in found if each.condition == name]
        same = sum(each.outcome == Outcome.IDENTICAL for each in own)
        written = sum(each.outcome == Outcome.SAME_CONTENT for each in own)
        failed = sum(each.outcome == Outcome.NOT_REPLAYED for each in own)
        tokens = sum(each.tokens for each in own)
        apart = _largest(value for each in own for value in each.apart.values())
        rows.append(
            [
                name,
                f"{same} of {len(own)}",
                str(written or "–"),
                str(len(own) - same - written - failed or "–"),
                _number(apart),
                str(tokens or "–"),
                str(failed or "–"),
            ]
        )
    head = [
        "condition",
        "identical steps",
        "same content",
        "other values",
        "numbers apart",
        "rows with other tokens",
        "could not run",
    ]
    return markdown(head, rows)


def condition_table(found: Sequence[Finding]) -> str:
    """A row per condition, a column per step."""
    steps = list(dict.fromkeys(each.step for each in found))
    cells = {(each.condition, each.step): _cell(each) for each in found}
    rows = [
        [name, *(cells.get((name, step), "") for step in steps)]
        for name in dict.fromkeys(each.condition for each in found)
    ]
    return markdown(["condition", *(step.replace("@", " ") for step in steps)], rows)


def _cell(found: Finding) -> str:
    if found.outcome == Outcome.IDENTICAL:
        return "identical"
    if found.outcome == Outcome.SAME_CONTENT:
        return "same content"
    if found.outcome == Outcome.NOT_REPLAYED:
        return "could not run"
    said = [f"{found.tokens} rows with other tokens"] if found.tokens else []
    apart = _largest(found.apart.values())
    if apart is not None:
        said.append(_number(apart))
    return ", ".join(said) or "other values"


def largest_by_output(found: Iterable[Finding]) -> dict[tuple[str, str], tuple[float, str]]:
    """How far numbers were apart at most, and under which condition, by program and kind of output."""
    most: dict[tuple[str, str], tuple[float, str]] = {}
    for each in found:
        for path, apart in each.apart.items():
            kind = path.removeprefix("artifacts/").rpartition("/")[0].partition("/")[0]
            place = each.step.partition("@")[0], kind
            if apart is not None and apart > most.get(place, (-1.0, ""))[0]:
                most[place] = apart, each.condition
    return most


def _tolerance(found: Sequence[Finding]) -> str:
    processors = [each for each in found if each.condition.startswith(PROCESSOR)]
    elsewhere, anywhere = largest_by_output(processors), largest_by_output(found)
    rows = [
        [
            f"{program}: {kind}",
            _number(elsewhere[program, kind][0] if (program, kind) in elsewhere else None),
            _number(apart),
            condition,
        ]
        for (program, kind), (apart, condition) in sorted(anywhere.items())
    ]
    head = ["program: output", "another processor, simulated", "any condition", "which"]
    return (
        f"`rollbook replay` allows {INEXACT_NUMBERS:g} in tables and metrics and {INEXACT_WEIGHTS:g} in weights "
        f"where a step ran on a GPU or another processor, and nothing elsewhere. {TOLERANCE_WORDS}\n\n"
        f"{markdown(head, rows)}"
    )


def _weights(found: Sequence[Finding]) -> str:
    rows = [
        [
            each.condition,
            each.step,
            *(
                _number(_largest(far for path, far in each.apart.items() if f"/{kind}/" in path))
                for kind in ("policies", "optimizers")  # no recipe measured here has a critic
            ),
            _number(each.difference),
            f"{each.ulp:,}" if each.ulp is not None else "–",
            f"{each.share:.1%}" if each.share is not None else "–",
        ]
        for each in found
        if each.difference is not None
    ]
    head = [
        "condition",
        "step",
        "policy apart",
        "optimizer state apart",
        "largest difference of a weight",
        "ulp of it",
        "weights that differ",
    ]
    return f"{WEIGHTS}\n\n{markdown(head, rows)}"


def _whole_runs(runs: Sequence[WholeRun]) -> str:
    rows = [
        [
            each.condition,
            f"{each.same} of {each.files}",
            ", ".join(map(str, each.tokens)) + f" of {each.rollouts}",
            "identical" if each.same == each.files else _number(each.apart),
            f"{each.greedy[0]:.3f} → {each.greedy[1]:.3f}",
        ]
        for each in runs
    ]
    head = [
        "condition",
        "policies and tables with the same bytes",
        "rollouts with other tokens, by iteration",
        "last policy apart",
        "greedy accuracy",
    ]
    return f"{RUNS}\n\n{markdown(head, rows)}"


def _packages(found: Sequence[Finding]) -> str:
    lines = []
    for name in dict.fromkeys(
        each.condition for each in found if each.condition.startswith("package ")
    ):
        own = [each for each in found if each.condition == name]
        named = "; ".join(dict.fromkeys(text for each in own for text in each.environment))
        counts = [(sum(each.outcome == outcome for each in own), outcome) for outcome in Outcome]
        said = ", ".join(f"{count} {outcome}" for count, outcome in counts if count)
        why = "; ".join(dict.fromkeys(reason for each in own for reason in each.reasons))
        lines.append(
            f"- {name}: {said}. Replay names {named or 'nothing'}"
            + (f", and says: {why}." if why else ".")
        )
    return "\n".join(lines) or "Not measured: `--packages` was not asked for."


def _effects(effects: Mapping[str, Sequence[str]]) -> str:
    rows = [[f"`{name}`", ", ".join(what) or "nothing"] for name, what in effects.items()]
    return f"{EFFECTS}\n\n{markdown(['variable alone', 'other bits'], rows)}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}" if value else "0"


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
