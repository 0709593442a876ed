"""`rollbook init`."""

from __future__ import annotations

from pathlib import Path

import click

from rollbook.core.yaml import parse_yaml
from rollbook.project.initialize import create
from rollbook.settings.examples import examples, read_example
from rollbook.settings.params import parse_params

OWN = "own"
"""The example that a user completes with data and a model."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "name",
    default="tiny",
    show_default=True,
    type=click.Choice(examples()),
    help="The params.yaml to start from.",
)
def init(folder: Path, name: str) -> None:
    """Make a project in FOLDER: params.yaml, dvc.yaml, DVC's settings, and a git repository if there is none.

    FOLDER may be new, or hold other things (`.` is the current one); no file of yours is changed but .gitignore and
    .dvcignore, which get the lines that they lack. The project holds no code of Rollbook: its commands run what is
    installed.

    Example: rollbook init my-project && cd my-project && dvc repro
    """
    example = read_example(name)
    made = create(folder, example)
    where = "here" if folder.resolve() == Path.cwd() else f"in {folder}"
    click.echo(f"made a project {where} that starts from {name}: {example.title}")
    click.echo(f"  {', '.join(made.written) or 'all files were there already'}")
    if made.made_repository:
        click.echo("  and a git repository, without a commit")
    go = "" if where == "here" else f"cd {folder} && "
    if name == OWN:
        click.echo(
            f"next: {go}say in params.yaml where your data and model are, then rollbook check"
        )
        return
    policy = parse_params(parse_yaml(example.text, f"{name}.yaml"), f"{name}.yaml").policy
    for caution in policy.base.cautions():
        click.echo(f"first: {caution}")
    click.echo(f"next: {go}dvc repro && rollbook report")
