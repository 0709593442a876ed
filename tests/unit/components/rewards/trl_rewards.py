"""Reward functions as users of TRL write them, for prompts with a system message; knows nothing of this project."""

import re


def extract_xml_answer(text):
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def correctness_reward_func(prompts, completions, answer, **kwargs) -> list[float]:
    responses = [completion[0]["content"] for completion in completions]
    question = prompts[0][-1]["content"]
    assert question
    extracted = [extract_xml_answer(r) for r in responses]
    return [2.0 if r == a else 0.0 for r, a in zip(extracted, answer)]  # noqa: B905


def int_reward_func(completions, **kwargs) -> list[float]:
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if extract_xml_answer(r).isdigit() else 0.0 for r in responses]


def strict_format_reward_func(completions, **kwargs) -> list[float]:
    pattern = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>\n$"
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if re.match(pattern, r, re.DOTALL) else 0.0 for r in responses]


def soft_format_reward_func(completions, **kwargs) -> list[float]:
    pattern = r"<think>.*?</think>\s*<answer>.*?</answer>"
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if re.search(pattern, r, re.DOTALL) else 0.0 for r in responses]


def tag_count_reward_func(completions, **kwargs) -> list[float]:
    tags = ["<think>", "</think>", "<answer>", "</answer>"]
    contents = [completion[0]["content"] for completion in completions]
    return [sum(0.125 for tag in tags if c.count(tag) == 1) for c in contents]


async def novelty_reward_func(completions, log_metric=None, **kwargs):
    """Looks at the whole group: an answer that nobody else gives."""
    answers = [extract_xml_answer(completion[0]["content"]) for completion in completions]
    if log_metric:
        log_metric("distinct_answers", len(set(answers)))
    return [None if not a else float(answers.count(a) == 1) for a in answers]
