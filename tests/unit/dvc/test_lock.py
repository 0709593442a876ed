import contextlib
import os
from pathlib import Path

import pytest

from rollbook.core.errors import ConfigError
from rollbook.core.ids import PARAMS_FILE
from rollbook.core.yaml import read_yaml
from rollbook.dvc import guard
from rollbook.dvc.lock import LOCK_FILE, output_md5s, parse_stages, read_entries, yaml_section
from rollbook.settings.params import read_text

LOCK = """\
schema: '2.0'
stages:
  init_policy:
    cmd: python -P -m rollbook.stages.init_policy
    outs:
    - path: artifacts/policies/i0000
      hash: md5
      md5: 22222222222222222222222222222222.dir
      size: 10
      nfiles: 2
  generate_rollouts@i0001:
    cmd: exec python -P -m rollbook.stages.generate_rollouts --iteration i0001
    deps:
    - path: artifacts/policies/i0000
      hash: md5
      md5: 00000000000000000000000000000000.dir
      size: 10
      nfiles: 2
    params:
      artifacts/plan.json:
        i0001.generate_rollouts: aaaa
    outs:
    - path: artifacts/rollouts/i0001.parquet
      hash: md5
      md5: cccccccccccccccccccccccccccccccc
      size: 5
"""


def test_md5s_of_outputs_and_not_of_dependencies(tmp_path: Path) -> None:
    """A dependency holds the hash of when its reader last ran, which may be an older one."""
    lock = tmp_path / "dvc.lock"
    lock.write_text(LOCK)
    assert output_md5s(lock) == {
        "artifacts/rollouts/i0001.parquet": "c" * 32,
        "artifacts/policies/i0000": "2" * 32 + ".dir",
    }


def test_no_lock_file_no_md5s(tmp_path: Path) -> None:
    assert output_md5s(tmp_path / "dvc.lock") == {}


MEND = "`git checkout dvc.lock` brings the committed one back"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\xff\xfe\0garbage{{{", "can't decode byte 0xff"),
        (b"garbage{{{", "should hold steps by name"),
        (b"<<<<<<< HEAD\n" + LOCK.encode(), "mapping values are not allowed"),
        (LOCK.encode()[: LOCK.index("c" * 32) + 19], f"'{'c' * 19}' of artifacts/rollouts"),
    ],
)
def test_a_damaged_lock_file_is_named_with_its_mend(
    project: Path, content: bytes, what: str
) -> None:
    LOCK_FILE.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        output_md5s()
    assert what in str(caught.value) and MEND in str(caught.value)
    with pytest.raises(ConfigError, match=MEND):
        read_entries()
    assert guard.current_entries() == [] or b"stages" in content  # it may be being written
    os.utime(LOCK_FILE, (0, 0))
    with pytest.raises(ConfigError, match=MEND):
        guard.current_entries()


@pytest.mark.parametrize("content", ["stages: [a]", "stages: {a: 1}", "stages: {a: {outs: [b]}}"])
def test_entries_that_dvc_would_not_write(project: Path, content: str) -> None:
    LOCK_FILE.write_text(content)
    with pytest.raises(ConfigError, match=MEND):
        read_entries()


def test_a_damaged_copy_of_another_revision_gets_no_advice(tmp_path: Path) -> None:
    lock = tmp_path / "dvc.lock"
    lock.write_bytes(b"\xff")
    with pytest.raises(ConfigError) as caught:
        output_md5s(lock)
    assert "git checkout" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff", b"recipes: {", b"- 1"])
def test_a_damaged_params_file_is_named_with_its_mend(project: Path, content: bytes) -> None:
    Path("params.yaml").write_bytes(content)
    mend = "`git diff params.yaml` shows what was changed, `git checkout params.yaml` brings"
    with pytest.raises(ConfigError, match=mend):
        read_yaml(PARAMS_FILE)
    if content == b"\xff":
        with pytest.raises(ConfigError, match=mend):
            read_text()


OTHERS = """\
schema: '2.0'
stages:
  a@i0001:
    cmd: exec python -m stages.a --iteration i0001
    deps:
    - path: 'it''s here'
      hash: md5
      md5: '11111111111111111111111111111111'
      size: 5
      isexec: true
    params:
      artifacts/plan.json:
        i0001.a: '123'
      params.yaml:
        seed: 0
        rate: 1e-06
  b-name: {cmd: "python -m b: c", outs: [{path: x, md5: 1e111111111111111111111111111111}]}
"""


MD5S = [
    "1e111111111111111111111111111111",
    "'1e111111111111111111111111111111'",
    "e" * 32,
    "e1" * 16,
]
"""Some of which YAML takes for numbers where they are not quoted."""


def _of(md5: str) -> str:
    return LOCK.partition("md5: ")[0] + f"md5: {md5}\n      size: 007\n"


TEXTS = [
    LOCK,
    OTHERS,
    *map(_of, MD5S),
    "",
    "schema: '2.0'\nstages: {}\n",
    LOCK[: LOCK.index("    params:")],
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_line_parser_gives_what_a_yaml_parser_gives(text: str) -> None:
    assert parse_stages(text) == yaml_section(text, "stages")


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("text", [LOCK, OTHERS])
def test_a_file_that_is_cut_off_anywhere_is_parsed_or_refused(text: str, end: str) -> None:
    """As a kill leaves it; `rollbook.dvc.guard` mends it, and catches ValueError alone."""
    for length in range(len(text)):
        with contextlib.suppress(ValueError):
            assert isinstance(parse_stages(text[:length] + end), dict)


@pytest.mark.parametrize("text", [LOCK, LOCK.rstrip(), f"{LOCK}\n"])
def test_what_dvc_writes_is_parsed_line_by_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a run of hundreds of iterations would take seconds to look at; whatever an editor made of its end."""
    expected = yaml_section(text, "stages")
    monkeypatch.setattr("rollbook.dvc.lock.yaml_section", None)
    assert parse_stages(text) == expected
