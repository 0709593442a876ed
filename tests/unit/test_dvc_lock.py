from pathlib import Path

from pipeline.dvc_lock import output_md5s

LOCK = """\
schema: '2.0'
stages:
  init_policy:
    cmd: python -m stages.init_policy
    outs:
    - path: artifacts/policies/i0000
      hash: md5
      md5: 22222222222222222222222222222222.dir
      size: 10
      nfiles: 2
  generate_rollouts@i0001:
    cmd: exec python -m stages.generate_rollouts --iteration i0001
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
      md5: 11111111111111111111111111111111
      size: 5
"""


def test_md5s_of_outputs_and_not_of_dependencies(tmp_path: Path) -> None:
    """A dependency holds the hash of when its reader last ran, which may be an older one."""
    lock = tmp_path / "dvc.lock"
    lock.write_text(LOCK)
    assert output_md5s(lock) == {
        "artifacts/rollouts/i0001.parquet": "1" * 32,
        "artifacts/policies/i0000": "2" * 32 + ".dir",
    }


def test_no_lock_file_no_md5s(tmp_path: Path) -> None:
    assert output_md5s(tmp_path / "dvc.lock") == {}
