"""Chat templates as `transformers` renders them, without importing it (half a second in every stage).

Follows transformers 5.19 `utils/chat_template_utils.py`; a test compares the two on real tokenizers. One difference is
meant: `strftime_now` tells a fixed date, since a prompt must not depend on the day it is rendered.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollbook.core.errors import ConfigError, PolicyError, Problem, nearest

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATES_FOLDER = "additional_chat_templates"
PLAIN = "plain"
TODAY = datetime.datetime(2024, 7, 26)
"""The date that Llama 3's template falls back to. Where a date matters, templates take it from chat_template_kwargs."""

Render = Callable[..., str]


def templates_in(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates of a policy folder by name; the usual one is called `default`. Files win over the config."""
    files = {path.stem: path for path in sorted((folder / TEMPLATES_FOLDER).glob("*.jinja"))}
    if (folder / TEMPLATE_FILE).is_file():
        files["default"] = folder / TEMPLATE_FILE
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    configured = tokenizer_config.get("chat_template")
    if isinstance(configured, list):
        return {item["name"]: item["template"] for item in configured}
    return {} if configured is None else {"default": configured}


def chosen_template(wanted: str | None, templates: Mapping[str, str]) -> str | None:
    """The template text that a recipe's `chat_template` stands for; None = plain.

    Args:
        wanted: `plain`, a path ending in `.jinja`, a name among `templates`, a template, or None for the folder's own.
        templates: the folder's, by name.

    Raises:
        ConfigError: if it is none of these.
        PolicyError: if the folder has several templates and none is the default.
    """
    if wanted is None:
        if templates and "default" not in templates:
            raise PolicyError(
                f"the tokenizer has several chat templates; {nearest('', templates)}",
                "name one of them as prepare_prompts.chat_template",
            )
        return templates.get("default")
    if wanted == PLAIN:
        return None
    if wanted in templates:
        return templates[wanted]
    if wanted.endswith(".jinja"):
        return _file_text(Path(wanted))
    if "{" not in wanted:
        raise _problem(
            f"{wanted!r} is neither a Jinja template nor a path ending in .jinja; "
            f"{nearest(wanted, [PLAIN, *templates])}"
        )
    return wanted


@cache
def compiled(template: str) -> Render:
    """The function that renders a template.

    Raises:
        ConfigError: if it is not valid Jinja.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = TODAY.strftime
    try:
        return environment.from_string(template).render
    except jinja2.TemplateSyntaxError as error:
        raise _problem(f"line {error.lineno} is not valid Jinja: {error.message}") from None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words; it renders as its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = jinja2.nodes.CallBlock(self.call_method("_content"), [], [], body)
        block.set_lineno(line)
        return block

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _file_text(file: Path) -> str:
    if not file.is_file():
        siblings = [str(path) for path in file.parent.glob("*.jinja")]
        raise _problem(f"no such file: {file}; {nearest(file, siblings)}")
    return file.read_text(encoding="utf-8")


def _problem(message: str) -> ConfigError:
    return ConfigError([Problem("chat_template", message)])
