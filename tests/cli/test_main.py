"""The command as a whole: exit codes, errors of one line, both entry points."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import windrow
from tests.conftest import REPOSITORY
from windrow.cli import inspect
from windrow.cli.command_line import parse_options
from windrow.cli.main import main
from windrow.core.errors import PlanError


def test_module_runs(data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "windrow", "inspect", str(data), "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["rows"] == 12_000
    assert done.stderr == ""


def test_installed_script_is_the_same_command() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.scripts]\nwindrow = "windrow.cli.main:main"\n' in project
    # an older installation may have been made before there was a command
    for script in entry_points(group="console_scripts", name="windrow"):
        assert script.value == "windrow.cli.main:main"


def test_light_import_of_the_package() -> None:
    program = "import sys, windrow; print([name for name in sys.modules if name.startswith('windrow.cli')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["inspect", "explain", "tune", "shuffle-report"])
def test_errors_are_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "/no/such/path.parquet"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith(f"windrow {command}: ")
    assert "/no/such/path.parquet matches nothing" in line


def test_wrong_arguments_are_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["inspect"], ["explain", "x", "--shards", "two"], ["unknown"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert "usage: windrow" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"windrow {windrow.__version__}\n"


def test_interruption_is_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "run", interrupt)
    assert main(["inspect", "x"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_options_keep_the_text_of_secrets() -> None:
    given = ["key=123", "anon=false", "secret=a=b", 'config={"retries": 3}']
    assert parse_options(given) == {"key": "123", "anon": False, "secret": "a=b", "config": {"retries": 3}}
    with pytest.raises(PlanError, match="--storage-option KEY=VALUE"):
        parse_options(["key"])


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert not printed.out
    for command in ("inspect", "explain", "tune", "premix", "status", "doctor"):
        assert f"\n    {command} " in printed.err
