"""`rollbook seal`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from rollbook.cli.rescore import keys_in
from rollbook.core.errors import ConfigError, Problem, nearest
from rollbook.project.run.run import Run
from rollbook.settings.config import Params
from rollbook.settings.sealed import files_of, parts, read_part

COMMAND = "rollbook seal"
MEGABYTE = 1e6


@click.command()
@click.argument("part", required=False, metavar="RANGE")
@click.option(
    "--keep",
    default="last",
    show_default=True,
    metavar="POLICIES",
    help="every:N, keys such as i0005,i0010, last (of the range), none or all.",
)
@click.option("--rebuild", metavar="KEY", help="Make a pruned policy again instead.")
def seal(part: str | None, keep: str, rebuild: str | None) -> None:
    """Take the finished iterations of RANGE out of the loop: dvc.lock gets short, and policies are pruned.

    Tables, metrics and evaluations stay where they are: everything reads, re-scores and reports them as before.
    DVC keeps them through sealed/RANGE.dvc. Policies, optimizer states and critics that --keep does not name are
    deleted here and from the project's cache, but never those that other iterations follow or refer to, nor the end of
    a chain. An earlier commit that names a pruned policy can then only be checked out from a remote that has it. Cut
    off, the same command goes on. Sealing cannot be undone.

    With --rebuild, a pruned policy is made again by running the updates after the last kept one.

    Example: rollbook seal i0001-i0010 --keep every:5
    """
    if (part is None) == (rebuild is None):
        raise ConfigError([Problem("", "say a RANGE, or --rebuild KEY")], COMMAND)
    if rebuild is not None:
        _rebuild(rebuild)
    elif part is not None:
        _seal(part, keep)


def _seal(part: str, keep: str) -> None:
    from rollbook.project import sealing

    with sealing.dvc_idle() as repo:
        if (
            part in parts()
        ):  # sealed before, perhaps not to the end; params.yaml may not be valid then
            sealing.finish(part)
            click.echo(f"{part} is sealed; pruned are {_listed(read_part(part)['pruned'])}")
            return
        run = Run()
        params = run.params
        keys = sealing.keys_of(part, params)
        kept = set(kept_keys(keep, keys)) | sealing.needed(keys, params)
        pruned = [key for key in keys if key not in kept]
        sealing.seal(sealing.Sealing(part, keys, pruned), run, repo)
    size = sealing.size_of(part, pruned) / MEGABYTE
    click.echo(
        f"sealed {len(keys)} iterations; policies kept: {_listed([k for k in keys if k in kept])}"
    )
    click.echo(f"pruned: {_listed(pruned)} ({size:,.1f} MB)")
    files = " ".join(map(str, files_of(part)))
    click.echo(f"next: git add {files} params.yaml dvc.lock && git commit")


def kept_keys(keep: str, keys: Sequence[str]) -> list[str]:
    """The iterations among `keys` whose policies `--keep` names.

    Raises:
        ConfigError: if it names none of them, or cannot be read.
    """
    if keep in ("all", "none", "last"):
        return {"all": list(keys), "none": [], "last": list(keys[-1:])}[keep]
    word, colon, number = keep.partition(":")
    if colon and word == "every" and number.isdigit() and int(number):
        return [key for key in keys if int(key[-4:]) % int(number) == 0]
    if colon:
        what = f"{keep!r} cannot be read; write every:10, keys, last, none or all"
        raise ConfigError([Problem("--keep", what)], COMMAND)
    return keys_in(keep, keys, "--keep", COMMAND)


def _rebuild(key: str) -> None:
    from rollbook.project import sealing
    from rollbook.project.rebuilding import rebuild, updates_to

    with sealing.dvc_idle() as repo:
        params = Run().params
        _refuse_unsealed(key, params)
        updates = updates_to(key, params)
        if updates:
            rebuild(key, params)
        sealing.keep_again(params.sealed[key].part, key, repo)
    made = f"made again by the updates of {_listed(updates)}" if updates else "is kept"
    click.echo(f"the policy of {key} {made}; sealed/{params.sealed[key].part}.dvc lists it")


def _refuse_unsealed(key: str, params: Params) -> None:
    if key not in params.sealed:
        hint = nearest(key, params.sealed)
        raise ConfigError([Problem("--rebuild", f"{key!r} is not sealed; {hint}")], COMMAND)


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys) or "none"
