"""``python -m bench cores`` and ``machine``: every system on every number of cores, one file and one picture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench.cli import main
from bench.commands import machine
from bench.commands.cores import choose_counts
from bench.system.gil import GilSampler, find_gil

OPTIONS = ["--size", "1MB", "--seconds", "0.01", "--systems", "scan,threads", "--max-cores", "1"]
SYSTEMS = [("scan", 1), ("threads", 1)]
# holds the GIL, or waits without it, from when it is told that the sampler looks
CHILD = {"held": "while True: pass", "released": "import time\nwhile True: time.sleep(10)"}


def test_numbers_of_cores() -> None:
    assert [choose_counts(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.mark.parametrize("what", CHILD)
def test_gil_of_another_process(what: str) -> None:
    assert find_gil() is not None
    began = time.time()
    with subprocess.Popen([sys.executable, "-c", CHILD[what]]) as child:
        sampler = GilSampler(lambda: child.pid if child.poll() is None else None)
        found, until = None, time.monotonic() + 60
        # a starting interpreter holds it, or has not begun
        while found not in (0.0, 1.0) and time.monotonic() < until:
            time.sleep(0.5)
            found = sampler.share(time.time() - 0.4, time.time())
        child.kill()
    sampler.stop()
    assert found == (what == "held")
    assert sampler.share(began - 2, began - 1) is None


def test_gil_of_a_process_that_has_ended() -> None:
    ended = threading.Event()

    def find() -> int:
        ended.set()
        return os.getpid() if sampler.share(0, time.time()) else 2**22 + 1

    sampler = GilSampler(find)
    assert ended.wait(60)
    sampler.stop()
    assert sampler.share(0, time.time()) is None


@pytest.mark.timeout(180)
def test_every_system_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "x.json"
    files = ["--folder", str(tmp_path / "data"), "--json", str(written)]
    assert main(["cores", *OPTIONS, *files]) == 0
    results = json.loads(written.read_text())["results"]
    assert [(each["system"], each["cores"]) for each in results] == SYSTEMS
    assert len({each["rows"] for each in results}) == 1
    assert all(
        each["of_scan"] > 0 and each["of_one_core"] == 1 and len(each["turns"]) == 2 for each in results
    )
    assert "of the scan" in capsys.readouterr().out
    assert main(["cores", "--max-cores", "all"]) == 2
    assert main(["cores", *OPTIONS, *files, "--max-cores", "1000000"]) == 2


@pytest.mark.timeout(180)
def test_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    files = ["--json", str(tmp_path / "x.json"), "--plot", str(tmp_path / "x.png")]
    assert main(["machine", *files, "--arguments", *OPTIONS, "--folder", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "x.json").read_text())
    assert [(each["system"], each["cores"]) for each in written["cores"]["results"]] == SYSTEMS
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(machine._SECONDS, "cores", 0.01)
    assert main(["machine", *files, "--arguments", *OPTIONS, "--folder", str(tmp_path)]) == 1
    assert "not done" in json.loads((tmp_path / "x.json").read_text())["cores"]["error"]


def test_picture_of_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    loaders = [{"loader": "windrow", "gpu": "a double", "pcie_share": 0.9, "gpu_waits": 0.01}]
    machine.draw(tmp_path / "x.png", [], loaders)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
