"""The examples of the README run as they stand, one after the other, as one program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _examples() -> list[str]:
    """Return the README's Python blocks, padded so that errors give the README's own line numbers."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in PYTHON.finditer(text)]


def test_examples_run(ray_local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = _examples()
    assert examples
    monkeypatch.chdir(tmp_path)
    # Under this name Ray ships what the examples define by value, as it does for a script.
    names: dict[str, Any] = {"__name__": "__main__"}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
