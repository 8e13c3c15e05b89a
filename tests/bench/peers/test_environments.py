from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bench.peers.environments import find_python, find_version, list_requirements, make_environment
from bench.peers.names import PEERS

NAMES = sorted({peer.environment for peer in PEERS.values() if peer.environment is not None})
FOLDER = Path(__file__).resolve().parents[3] / ".bench"


def _pins(name: str) -> list[str]:
    lines = [line for file in list_requirements(name) for line in file.read_text().splitlines()]
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("name", NAMES)
def test_versions_are_pinned_once_and_torch_has_a_cpu_build(name: str) -> None:
    pins = _pins(name)
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), pins
    packages = [pin.partition("==")[0].lower().replace("_", "-") for pin in pins]
    assert len(packages) == len(set(packages))
    assert "torch==2.13.0" in pins
    assert {"numpy", "pyarrow", "setuptools"} <= set(packages)
    assert "windrow" not in packages


def test_version_of_every_rival_is_known() -> None:
    rivals = [peer for peer in PEERS.values() if peer.rival]
    assert all(re.match(r"\d+\.\d", find_version(peer.library or "", peer.environment)) for peer in rivals), (
        rivals
    )


def test_every_requirements_file_is_used() -> None:
    files = {file for name in NAMES for file in list_requirements(name)}
    assert files == set(next(iter(files)).parent.iterdir())


def test_environments_belong_to_rivals_including_all_row_wise_ones() -> None:
    assert all(peer.rival for peer in PEERS.values() if peer.environment)
    assert all(peer.environment for peer in PEERS.values() if peer.by_row)


def test_missing_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no environment for daft .* run make peers to set it up"):
        find_python(tmp_path, "daft")


def test_environment_is_ready_once_its_pins_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins, alone = tmp_path / "toy.txt", tmp_path / "toy.no-deps.txt"
    pins.write_text("a==1\n")
    alone.write_text("b==2\n")
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        (tmp_path / "venvs" / "toy").mkdir(parents=True, exist_ok=True)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("bench.peers.environments._REQUIREMENTS", tmp_path)
    monkeypatch.setattr("subprocess.run", run)
    make_environment(tmp_path, "toy", tmp_path / "log")
    assert [command[-1] for command in commands[1:]] == [str(pins), str(alone)]
    assert ["--no-deps" in command for command in commands[1:]] == [False, True]
    assert find_python(tmp_path, "toy") == tmp_path / "venvs" / "toy" / "bin" / "python"
    pins.write_text("a==2\n")
    with pytest.raises(ValueError, match="no environment for toy"):
        find_python(tmp_path, "toy")


def test_failed_installation_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: subprocess.CompletedProcess[str] = subprocess.CompletedProcess([""], 1)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: failed)
    with pytest.raises(ValueError, match=f"environment for daft cannot be set up: see {tmp_path / 'log'}"):
        make_environment(tmp_path, "daft", tmp_path / "log")


@pytest.mark.parametrize("name", NAMES)
def test_child_imports_only_what_every_environment_has(name: str) -> None:
    try:
        python = find_python(FOLDER, name)
    except ValueError as absent:
        pytest.skip(str(absent))
    # of windrow, bench.training.delivered_rows uses a function that needs NumPy alone
    absent_here = "{'windrow.dataset', 'windrow.io', 'ray', 'pandas'}"
    code = f"import sys, bench.throughput.launch; print(sorted({absent_here} & set(sys.modules)))"
    output = subprocess.run(
        [str(python), "-c", code], cwd=FOLDER.parent, capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
