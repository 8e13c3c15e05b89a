"""The commands that the documentation shows run on the data that its snippets make."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.snippets import find_snippets, run_snippets
from windrow.cli.main import main

PAGES = ["reference/cli.md", "guides/shuffle-quality.md", "guides/good-files.md", "guides/balance.md"]


@pytest.mark.parametrize("page", PAGES)
def test_documented_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = REPOSITORY / "docs" / page
    run_snippets(path)
    lines = [line for block in find_snippets(path, "sh") for line in block.strip().splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("windrow ")]
    assert commands
    for command in commands:
        assert main(command[1:]) == 0, command


def test_every_subcommand_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    names = re.findall(r"^    ([a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    headings = re.findall(r"^## windrow (.+)$", (REPOSITORY / "docs" / PAGES[0]).read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(names)
