"""The examples of the README run unchanged and in order, as one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.snippets import find_snippets, run_snippets


def test_examples_run(ray_local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_snippets(REPOSITORY / "README.md")


def test_readme_shows_the_tested_script() -> None:
    script = (REPOSITORY / "docs" / "examples" / "train.py").read_text(encoding="utf-8")
    shown = find_snippets(REPOSITORY / "README.md", language="py")
    assert script in [code.lstrip("\n") for code in shown]


def test_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
