"""`rollbook start NAME`: puts a shipped params.yaml in place."""

from __future__ import annotations

from pathlib import Path

import click

from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.core.ids import BASE_KEY, PARAMS_FILE
from rollbook.core.yaml import parse_yaml
from rollbook.project.environment import git_says
from rollbook.project.run.store import Store
from rollbook.settings.examples import examples, read_example
from rollbook.settings.params import parse_params, write_text


@click.command()
@click.argument("name", required=False)
@click.option(
    "--force",
    is_flag=True,
    help="Also over unsaved changes, and beside artifacts of another base policy.",
)
def start(name: str | None, force: bool) -> None:
    """Replace params.yaml by a shipped starting point; without NAME, list them.

    Example: rollbook start smollm2 && dvc repro
    """
    if name is None:
        for each in map(read_example, examples()):
            click.echo(f"{each.name}  {each.title}")
        return
    example = read_example(name)
    params = parse_params(parse_yaml(example.text, f"{name}.yaml"), f"{name}.yaml")
    commit = _commit_of(PARAMS_FILE)
    if not force:
        _refuse_unsaved(commit)
        _refuse_other_base(params.policy.base.settings())
    if PARAMS_FILE.exists():
        write_text(example.text)
    else:
        PARAMS_FILE.write_text(example.text, encoding="utf-8")
    click.echo(f"{PARAMS_FILE} is now {example.name}: {example.title}")
    for caution in params.policy.base.cautions():
        click.echo(f"first: {caution}")
    click.echo("next: dvc repro && rollbook report")
    if commit:
        click.echo(f"back: git checkout {commit} -- {PARAMS_FILE}")


def _commit_of(file: Path) -> str:
    """The commit whose content the file has, shortened; empty if git does not know that content."""
    if not file.exists() or git_says("diff", "--quiet", "HEAD", "--", str(file)) is None:
        return ""
    return git_says("log", "-1", "--format=%h", "--", str(file)) or ""


def _refuse_unsaved(commit: str) -> None:
    if PARAMS_FILE.exists() and not commit:
        raise RollbookError(
            f"{PARAMS_FILE} has changes that git does not know; they would be lost",
            f"commit them (git commit {PARAMS_FILE}), or give --force",
        )


def _refuse_other_base(base: dict[str, object]) -> None:
    """Raises RollbookError if a base policy was made here that is not the one to start from."""
    run = Store()
    if not run.has("policies", BASE_KEY):
        return
    try:
        made = run.needed_info("init_policy", BASE_KEY).settings["policy"]["base"]
    except (ArtifactError, KeyError, TypeError):
        made = None
    if made != base:
        known = made.get("name") if isinstance(made, dict) else "unknown"
        raise RollbookError(
            f"artifacts/ holds a run from another base policy ({known}), which `dvc repro` would replace",
            "start in a clone of its own, or give --force: what git and DVC's cache know can be checked out again",
        )
