"""Settings of how messages become a prompt."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rollbook.core.component import Model


class PromptFormat(Model):
    """How messages become the text that the policy continues."""

    system_prompt: str | None = None
    """Put before the messages; refused for messages that bring a system message of their own."""
    chat_template: str | None = None
    """A Jinja template of your own, or the path of one; `plain` for base models: the messages' contents with a
    blank line between. Default: the tokenizer's."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the template, such as `{enable_thinking: false}`."""
    assistant_prefix: str = ""
    """Text the answer starts with, put behind the rendered prompt (it is not trained on)."""

    def data_files(self) -> list[str]:
        template = self.chat_template
        return [template] if template is not None and template.endswith(".jinja") else []
