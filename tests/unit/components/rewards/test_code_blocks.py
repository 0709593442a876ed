import pytest

from rollbook.components.rewards.code_blocks import last_block


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```Python3 title=x\na\nb\n```\n", "a\nb\n"),
        ("~~~py\na\n~~~", "a\n"),
        ("first\n```python\na\n```\nthen\n```python\nb\n```\nend", "b\n"),
        ("```python\na\n```\n```bash\nb\n```", "a\n"),
        ("````python\n```\na\n````", "```\na\n"),
        ("```python\nx = '''\n~~~\n'''\n```", "x = '''\n~~~\n'''\n"),
        ("```python\n```", ""),
        ("```python\na", None),
        ("```python\na\n```\n```python\ncut off", "a\n"),
        ("```bash\na\n```", None),
        ("a = 1", None),
        ("inline ```python a``` only", None),
        ("", None),
        ("1. so:\n\n   ```python\n   if a:\n       b\n  c\n   ```", "if a:\n    b\nc\n"),
        ("```python\r\na\r\nb\r\n```\r\n", "a\nb\n"),
        ("```python\na = '\u2028\x0c\x85\x1c'\n```", "a = '\u2028\x0c\x85\x1c'\n"),
        ("```" * 10_000, None),
    ],
)
def test_last_block(text: str, code: str | None) -> None:
    assert last_block(text) == code
