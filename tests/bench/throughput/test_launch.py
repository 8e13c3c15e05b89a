from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.system.processes import MemorySampler, ProcessTree, list_tree, shorten_error
from bench.throughput.launch import run_system
from tests.bench.training.test_results import REQUEST


def test_result_of_a_failing_system_names_its_log(tmp_path: Path) -> None:
    request = replace(REQUEST, system="scan", paths=(str(tmp_path / "gone.parquet"),))
    log = tmp_path / "scan.log"
    result = run_system(request, log=log, timeout_seconds=60)
    assert result.error is not None
    assert "FileNotFoundError" in result.error
    assert str(log) in result.error
    assert "Traceback" in log.read_text()


@pytest.mark.timeout(60)
def test_hanging_system_is_interrupted(tmp_path: Path) -> None:
    before = set(list_tree(os.getpid()))
    request = replace(REQUEST, python=str(_write_sleeper(tmp_path)))
    result = run_system(request, log=tmp_path / "log", timeout_seconds=0.5)
    assert result.error is not None
    assert "ended after 0 s" in result.error
    assert set(list_tree(os.getpid())) == before


@pytest.mark.timeout(60)
def test_orphans_of_a_killed_system_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    # a daemon in a separate session; its parent is killed with SIGKILL, as by the kernel's OOM killer
    script.write_text("#!/bin/sh\nsetsid sleep 101 & echo $! > daemon\nsleep 1\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setattr("bench.system.processes._ROOT", tmp_path)
    monkeypatch.setattr("bench.system.processes._ORPHAN_SECONDS", 0.2)
    request = replace(REQUEST, python=str(script))
    result = run_system(request, log=tmp_path / "log", timeout_seconds=30)
    assert result.error is not None
    assert "the process ended without a result" in result.error
    daemon = int((tmp_path / "daemon").read_text())
    assert not _runs(daemon)


def _runs(process: int) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def test_reused_id_is_another_process() -> None:
    tree = ProcessTree(os.getpid())
    tree.refresh()
    assert os.getpid() in tree.living()
    tree._seen[os.getpid()] = b"0"
    assert os.getpid() not in tree.living()


def _write_sleeper(folder: Path) -> Path:
    script = folder / "python"
    script.write_text("#!/bin/sh\nexec sleep 100\n")
    script.chmod(0o755)
    return script


def test_remote_traceback_is_shortened_to_its_last_line() -> None:
    assert shorten_error(ValueError("boom")) == "ValueError: boom"
    assert shorten_error(RuntimeError('ray::f()\n  File "a.py"\nKeyError: 1\n"""')) == "KeyError: 1"
    assert shorten_error(RuntimeError()) == "RuntimeError"


def test_memory_of_a_tree_grows_by_touched_pages() -> None:
    memory = MemorySampler(ProcessTree(os.getpid()))
    before = memory.measure()
    held = np.ones(64 * 2**20, dtype=np.uint8)
    assert memory.measure() - before == pytest.approx(held.nbytes, rel=0.1)
