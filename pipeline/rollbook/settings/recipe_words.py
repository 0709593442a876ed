"""A recipe in words: what is asked, rewarded, compared and optimised, one line each, for people who look at a run.

It is read from plain settings, as params.yaml resolves them and as run_info recorded them, so that a step of older code
can be told too: what it did not know yet is left out, and what it should have known is called unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rollbook.components.losses.base import Loss
from rollbook.core.field_docs import headline_of
from rollbook.core.registry import build

Settings = Mapping[str, Any]
Item = TypeVar("Item")
Line = tuple[str, str]
"""What it is about, and the words."""
CUTS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""What cuts the distribution that tokens are drawn from: the value that cuts nothing."""
OF_TOKENS = "token"
"""The ratio that a loss takes of each token by itself."""
USUAL_CLIPPING = "a large share is usual where a ratio is of a whole answer, as in gspo"
"""Said beside shares of clipped tokens. Within GSPO's 3e-4 to 4e-4 half of them and more were clipped whatever the
learning rate was (`pipeline/rollbook/views/doctor/checks/clip_share.py`)."""
RATIOS = {"sampling": "the engine's log-probs", "measured": "measured log-probs"}


def stretches(chain: Iterable[Item], recipe_of: Callable[[Item], str]) -> list[list[Item]]:
    """A chain in pieces: neighbours under one recipe."""
    return [list(piece) for _, piece in itertools.groupby(chain, key=recipe_of)]


def recipe_in_words(
    settings: Settings,
    sources: Sequence[str] = (),
    references: Sequence[str] = (),
    explained: bool = False,
) -> list[Line]:
    """The recipe, as far as it decides what an iteration learns.

    Args:
        settings: by section, as in `recipes.<name>` of params.yaml, defaults filled in.
        sources: labels of the data that prompts come from, where they are to be named.
        references: iterations whose policies are frozen for the KL term, where they are to be named.
        explained: whether components are told in the words of their files too; they must be valid then.
    """
    compute, update = _section(settings, "compute_advantages"), _section(settings, "update_policy")
    estimator = _component("advantages", compute.get("estimator", {}), explained)
    kept = "; groups without a signal are left out" if compute.get("drop_zero_signal") else ""
    return [
        ("prompts", _prompts(_section(settings, "prepare_prompts"), sources)),
        ("rollouts", _rollouts(_section(settings, "generate_rollouts"))),
        *_rewards(_section(settings, "score_rollouts"), explained),
        ("advantages", f"{estimator}{kept}"),
        *_critic(update, explained),
        ("loss", _component("losses", update.get("loss", {}), explained)),
        ("KL", _kl(compute, update.get("loss", {}), references)),
        ("update", _update(update)),
    ]


def clipping_in_words(loss: Settings) -> str:
    """What to think of the share of clipped tokens under a loss that does not judge each by itself; else empty.

    Args:
        loss: as run_info recorded it.
    """
    if loss.get("ratio", OF_TOKENS) == OF_TOKENS:
        return ""
    bounds = "".join(
        f", {name} {loss[name]:g}" for name in ("clip_low", "clip_high") if loss.get(name)
    )
    return f"ratio {loss['ratio']}{bounds}: {USUAL_CLIPPING}"


def _section(settings: Settings, name: str) -> Settings:
    found: Settings = settings.get(name, {})
    return found


def _prompts(prepare: Settings, sources: Sequence[str]) -> str:
    factor, preferred = prepare.get("oversample", 1), prepare.get("prefer", "any")
    return "".join(
        [
            f"{_said(prepare, 'prompts_per_iteration', ',')} an iteration",
            f" from {', '.join(sources)}" if sources else "",
            f", {factor:g} times as many drawn" if factor > 1 else "",
            f", {preferred} ones preferred" if preferred != "any" else "",
        ]
    )


def _rollouts(generate: Settings) -> str:
    cuts = [
        f", {name} {generate[name]:g}"
        for name, off in CUTS.items()
        if generate.get(name, off) != off
    ]
    greedy = " and a greedy one" if generate.get("greedy") else ""
    return (
        f"{_said(generate, 'group_size')} answers{greedy} to each prompt, temperature "
        f"{_said(generate, 'temperature', 'g')}{''.join(cuts)}, at most "
        f"{_said(generate, 'max_completion_tokens', ',')} tokens, by {_name(generate.get('engine', {}))}"
    )


def _rewards(score: Settings, explained: bool) -> Iterator[Line]:
    rewards = score.get("rewards", [])
    for reward in rewards:
        shown = len(rewards) > 1 or reward.get("weight") != 1
        weight = f", weight {_said(reward, 'weight', 'g')}" if shown else ""
        yield f"reward{weight}", _component("rewards", reward, explained)


def _critic(update: Settings, explained: bool) -> Iterator[Line]:
    if critic := update.get("critic"):
        yield "critic", _component("critics", critic, explained)


def _kl(compute: Settings, loss: Settings, references: Sequence[str]) -> str:
    """To which policies, where it acts, and how strongly; a coefficient that follows a target is told in full."""
    named = f"to {', '.join(dict.fromkeys(references))}, " if references else ""
    for section, place in ((compute, "taken off the rewards"), (loss, "in the loss")):
        if coefficient := section.get("kl_coef"):
            if isinstance(coefficient, Mapping):
                coefficient = ", ".join(f"{key} {value:g}" for key, value in coefficient.items())
            return f"{named}{place}: coefficient {coefficient}, {_said(section, 'kl_estimator')}"
    known = _known(loss)
    if known is not None and known.needs_reference:
        return f"no term of its own: the loss compares with {', '.join(dict.fromkeys(references)) or 'the reference'}"
    return "none"


def _update(update: Settings) -> str:
    steps, epochs = update.get("optimizer_steps"), update.get("epochs", 1)
    old, known = _said(update, "old_logprobs"), _known(update.get("loss", {}))
    ratios = known is None or known.uses_ratio
    return "".join(
        [
            f"{_said(update, 'optimizer_steps')} optimizer step{'' if steps == 1 else 's'} an iteration",
            f" over {epochs} epochs" if epochs > 1 else "",
            f", learning rate {_said(update, 'learning_rate', 'g')}",
            ", LoRA" if update.get("lora") else "",
            f", ratios against {RATIOS.get(old, old)}" if ratios else "",
        ]
    )


def _known(loss: Settings) -> Loss | None:
    """The loss as this code has it; None for one that it does not know, or no longer with these settings."""
    try:
        found = build("losses", loss)
    except ValueError:  # pydantic's errors are of this kind
        return None
    assert isinstance(found, Loss)
    return found


def _component(kind: str, spec: Settings, explained: bool) -> str:
    """Its name, and what it does in the words of its file."""
    words = headline_of(type(build(kind, spec))) if explained else ""
    return f"{_name(spec)}: {words}" if words else _name(spec)


def _name(spec: Settings) -> str:
    """One of the user's own is called by its path."""
    return str(spec.get("path") or _said(spec, "name"))


def _said(section: Settings, name: str, form: str = "") -> str:
    value = section.get(name)
    return "unknown" if value is None else format(value, form)
