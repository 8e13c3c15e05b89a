"""doctor: each check finds what is wrong, nothing hangs, and problems set the exit code."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from windrow.cli import checks
from windrow.cli.checks import GPU_PROBE, RAY_PROBE, Check, ProbeError, run_probe
from windrow.cli.main import main

Usage = namedtuple("Usage", "total used free")


def find(found: list[Check], name: str) -> Check:
    (check,) = [each for each in found if each.name == name]
    return check


def test_quick_checks_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--quick", "--path", str(tmp_path), "--json"])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert code == int(any(each["status"] == "PROBLEM" for each in found.values()))
    names = {
        "Python",
        "pyarrow",
        "numpy",
        "fsspec",
        "kernels",
        "CPUs",
        "memory",
        "open files",
        "disk",
        "Ray",
        "GPU",
    }
    assert names < found.keys()
    assert found[f"path {tmp_path}"]["found"].startswith("directory")
    assert all(each["fix"] for each in found.values() if each["status"] != "OK")


def test_problems_are_code_1_and_have_a_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        checks, "check_libraries", lambda: [Check("WARNING", "a library", "is old", "renew it")]
    )
    assert main(["doctor", "--quick", "--path", str(tmp_path / "nothing")]) == 1
    text = capsys.readouterr().out
    assert "PROBLEM  path" in text
    assert "there is no such file or directory" in text
    assert "bucket" not in text
    assert "fix: renew it" in text
    assert text.splitlines()[-1].startswith("1 problem, ")


def test_unreachable_storage_is_a_problem() -> None:
    pytest.importorskip("s3fs")
    options = {
        "endpoint_url": "http://127.0.0.1:9",
        "key": "name",
        "secret": "hunter2-secret",
        # its default is four retries, which take ten seconds
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }
    (found,) = checks.check_path("s3://bucket/data", options)
    assert (found.status, "hunter2" in found.found) == ("PROBLEM", False)
    assert "check the endpoint" in found.fix
    (found,) = checks.check_path("nosuchscheme://bucket", {})
    assert found.status == "PROBLEM"


def test_storage_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    monkeypatch.setattr(checks, "_PATH_SECONDS", 0.05)
    monkeypatch.setattr(LocalFileSystem, "info", lambda *_, **__: time.sleep(1))
    (found,) = checks.check_path(str(tmp_path), {})
    assert (found.status, "no response within" in found.found) == ("PROBLEM", True)


def test_old_and_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"numpy": "1.20.3", "pyarrow": "19.0.1rc2+local", "ray": "2.52.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    required = ["numpy>=1.26.4", "pyarrow>=19.0.1", "fsspec>=2024.2.0", "ray>=2.52.1; extra == 'ray'"]
    monkeypatch.setattr(metadata, "requires", lambda _: required)
    found = checks.check_libraries()
    status = {each.name: each.status for each in found}
    assert (status["numpy"], status["ray"], status["fsspec"]) == ("PROBLEM", "PROBLEM", "PROBLEM")
    assert (status["pyarrow"], status["torch"]) == ("OK", "OK")
    assert find(found, "ray").fix == 'pip install "ray>=2.52.1"'
    assert "not installed; optional" in find(found, "torch").found


def test_missing_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = checks.check_kernels()
    assert found.status == "OK"
    monkeypatch.setattr(checks, "missing_libraries", lambda: ("windrow.io.parquet._decode",))
    (found,) = checks.check_kernels()
    assert (found.status, "_decode not loaded" in found.found) == ("WARNING", True)


@pytest.mark.parametrize(
    ("changed", "value", "check"),
    [
        ("available_cores", lambda: 1, checks.check_cpus),
        ("free_memory_bytes", lambda: 2**30, checks.check_memory),
    ],
)
def test_small_machines_are_warned_of(
    changed: str, value: Any, check: Callable[[], list[Check]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, changed, value)
    (found,) = check()
    assert found.status == "WARNING"
    assert found.fix


def test_small_disks_and_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def report(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2 * free, free, free))

    monkeypatch.setattr(checks, "free_memory_bytes", lambda: 2**33)
    report(64 * 2**20)
    (shared,), (disk,) = checks.check_shared_memory(tmp_path), checks.check_disk(str(tmp_path))
    assert (shared.status, disk.status) == ("WARNING", "WARNING")
    assert "--shm-size=" in shared.fix
    report(2**40)
    assert [check.status for check in (*checks.check_shared_memory(tmp_path), *checks.check_disk())] == [
        "OK",
        "OK",
    ]
    (found,) = checks.check_shared_memory(tmp_path / "none")
    assert found.status == "WARNING"


def test_low_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 8_192))
    (found,) = checks.check_open_files()
    assert (found.status, "at most 8,192 without root" in found.fix) == ("WARNING", True)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    (found,) = checks.check_open_files()
    assert found.status == "OK"


def answer(monkeypatch: pytest.MonkeyPatch, reply: Any) -> list[tuple[Any, ...]]:
    """Let probes answer at once; return their arguments."""
    asked = []

    def probe(code: str, seconds: float, *arguments: str) -> Any:
        asked.append((code, *arguments))
        if isinstance(reply, ProbeError):
            raise reply
        return reply

    monkeypatch.setattr(checks, "run_probe", probe)
    monkeypatch.setattr(checks, "find_spec", lambda _: "installed")
    return asked


def test_ray_that_does_not_start_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer(monkeypatch, ProbeError("no answer within 120 s"))
    (found,) = checks.check_ray("local", quick=False)
    assert (found.status, found.found) == ("PROBLEM", "a cluster does not start: no answer within 120 s")
    (found,) = checks.check_ray("auto", quick=False)
    assert "auto cannot be joined" in found.found
    assert asked == [(RAY_PROBE, "local"), (RAY_PROBE, "auto")]
    (found,) = checks.check_ray("auto", quick=True)
    assert (found.status, len(asked)) == ("OK", 2)


def test_cluster_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = {"CPU": 64.0, "GPU": 8.0, "object_store_memory": 2**36}
    answer(monkeypatch, {"version": "2.60.0", "nodes": 4, "resources": resources})
    (found,) = checks.check_ray("10.0.0.1:6379", quick=False)
    assert found.found == "2.60.0, 4 nodes, 64 CPUs, 8 GPUs, object stores of 64.0 GiB"


@pytest.mark.parametrize(
    ("devices", "built", "seen", "status"),
    [
        (0, "12.8", 0, "OK"),
        (2, "12.8", 2, "OK"),
        (2, None, 0, "WARNING"),
        (2, "12.8", 0, "PROBLEM"),
    ],
)
def test_gpus(
    devices: int, built: str | None, seen: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, {"version": "2.13", "built_for": built, "devices": ["H100"] * seen})
    monkeypatch.setattr(Path, "glob", lambda *_: [Path(f"/dev/nvidia{at}") for at in range(devices)])
    (found,) = checks.check_gpu(quick=False)
    assert found.status == status
    assert ("2 × H100" in found.found) == bool(seen)


def test_probe_that_hangs_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    # a child of the probe would otherwise live on and write the file
    child = f"import time; time.sleep(2); open({str(mark)!r}, 'w')"
    code = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    )
    with pytest.raises(ProbeError, match="no answer within 1 s"):
        run_probe(code, 1)
    time.sleep(2.5)
    assert not mark.exists()


def test_probe_that_fails_says_why() -> None:
    with pytest.raises(ProbeError, match="ValueError: no driver"):
        run_probe("raise ValueError('no driver')", 60)
    with pytest.raises(ProbeError, match="exit code"):
        run_probe("import os; os._exit(7)", 60)
    assert run_probe("import sys; print('noise'); print('{\"x\": 1}')", 60, "argument") == {"x": 1}


@pytest.mark.nightly
def test_gpu_probe_runs() -> None:
    pytest.importorskip("torch")
    found = run_probe(GPU_PROBE, 120)
    assert found["version"] == metadata.version("torch")


@pytest.mark.nightly
def test_ray_probe_starts_a_cluster() -> None:
    pytest.importorskip("ray")
    found = run_probe(RAY_PROBE, 120, "local")
    assert found["resources"]["CPU"] == 1


def test_probes_run_in_this_python() -> None:
    assert run_probe("import sys, json; print(json.dumps({'python': sys.executable}))", 60) == {
        "python": sys.executable
    }
    assert checks.RAY_PROBE
