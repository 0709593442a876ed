"""The `rollbook` command. Each command lives in its own module and is imported only when it is used."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from rollbook.core.errors import RollbookError
from rollbook.core.own_code import prefer_own_code, search_project_last

COMMANDS = {
    "init": "make a project in a new folder, or beside what a repository has",
    "start": "put a shipped starting point in place of params.yaml",
    "check": "validate params.yaml and every component; say what would run",
    "iterate": "extend params.yaml to N iterations in all",
    "recipe": "add a published recipe to params.yaml, or compare two",
    "what-if": "evaluate another loss or estimator on the stored tables",
    "rescore": "ask other rewards about the stored rollouts",
    "train-from": "branch off an iteration under another recipe",
    "seal": "take finished iterations out of the loop, and prune their policies",
    "export": "write a policy as a model to serve, with a model card",
    "export-pairs": "write better and worse answers as a data set for other trainers",
    "probe": "try to fool a reward before a policy does",
    "show": "one rollout from prompt to gradient; also a group, a prompt or a policy",
    "pull": "get all of a run that can be read without a model",
    "compare": "two policies: settings, curves, and a test on the same prompts",
    "lineage": "what made a policy, back to its base; what used a reward, data, code or policy",
    "verify": "find out whether everything stored is what was recorded, to the last bit",
    "doctor": "what is wrong with a run, why, and the parameter to change",
    "status": "what is done, stale, missing or running; works while a stage runs",
    "replay": "run finished steps again from what is stored, and compare to the last bit",
    "report": "evaluation by iteration, and where to look next",
    "page": "write the whole run as one page that opens without a server",
    "track": "bring the MLflow store up to date, or make it anew",
    "ui": "show the runs in MLflow, brought up to date, offline",
}
"""Name and one line of help; the command is the function of that name, `_` for `-`, in
`pipeline/rollbook/cli/<name>.py`."""


class _LazyGroup(click.Group):
    """Lists all commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        function = name.replace("-", "_")
        module = importlib.import_module(f"rollbook.cli.{function}")
        command: click.Command = getattr(module, function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    name="rollbook", cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show tracebacks of expected errors."
)
@click.version_option(package_name="rollbook")
def cli() -> None:
    """A lab notebook that trains: GRPO as a DVC pipeline over versioned tables.

    Example: rollbook iterate 12 && dvc repro
    """


def main(arguments: list[str] | None = None) -> Any:
    """Entry point: expected errors are one message and exit code 1, without a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        prefer_own_code("rollbook.cli.main", arguments)
        search_project_last()
        return cli.main(arguments, prog_name="rollbook", standalone_mode=True)
    except RollbookError as error:
        if "--debug" in arguments:
            raise
        click.echo(f"rollbook: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
