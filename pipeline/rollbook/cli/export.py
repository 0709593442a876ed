"""`rollbook export POLICY DIR`: a stored policy as a folder to serve or to publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("policy")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(["stored", "float32", "bfloat16", "float16"]),
    default="stored",
    show_default=True,
    help="Of the weights; `stored` is that of the policy, or of an adapter's base.",
)
def export(policy: str, folder: Path, dtype: Any) -> None:
    """Write POLICY to DIR as a model that any tool loads, with a model card that says how it was made.

    POLICY is an iteration, the first digits of a policy's digest, or a policy folder. An adapter is merged into its
    base. DIR must be new or empty.

    Example: rollbook export i0006 models/sums --dtype bfloat16
    """
    from rollbook.project.ancestry import find_policy
    from rollbook.project.run.run import Run
    from rollbook.views.export import export_policy

    run = Run()
    source = find_policy(run, policy)
    written = export_policy(run, source, folder, dtype)
    click.echo(
        f"{folder}: {source} in {written}, with {folder / 'README.md'}; serve it with `vllm serve {folder}`"
    )
