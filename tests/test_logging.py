"""Loggers: one a module, silent by default, and a line for what is retried, dropped, skipped, started and ended."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.conftest import REPOSITORY
from windrow.io.storage.retries import GaveUpError, Retries
from windrow.pipeline.coordinator.window_history import Capacity, WindowHistory
from windrow.pipeline.tasks.cache import system_calls
from windrow.pipeline.tasks.cache.disk_cache import DiskCache

PACKAGE = REPOSITORY / "windrow"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[tuple[str, int, str]]]:
    """What windrow logs from INFO on, in the end of a logger's name, level and text."""
    found: list[tuple[str, int, str]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.name.rpartition(".")[2], record.levelno, record.getMessage()))

    with caplog.at_level(logging.INFO, "windrow"):
        handler = Handler()
        logging.getLogger("windrow").addHandler(handler)
        yield found
        logging.getLogger("windrow").removeHandler(handler)


def _pipe(path: Path) -> windrow.DatasetPipeline:
    ds = windrow.read_parquet(path, target_block_bytes=1).window(blocks_per_window=2)
    return ds.repeat(1).options(executor="threads", progress=False, on_error="skip")


def _write(folder: Path) -> Path:
    folder.mkdir()
    for part in range(4):
        pq.write_table(pa.table({"x": range(part * 10, part * 10 + 10)}), folder / f"{part}.parquet")
    return folder


def test_every_logger_has_the_name_of_its_module() -> None:
    used = [path for path in PACKAGE.rglob("*.py") if "logger = " in path.read_text(encoding="utf-8")]
    assert len(used) >= 10
    for path in used:
        text = path.read_text(encoding="utf-8")
        assert "logger = logging.getLogger(__name__)\n" in text, path
        assert "logger.error" not in text, f"{path}: errors are raised"


def test_a_run_starts_and_ends(lines: list[tuple[str, int, str]], tmp_path: Path) -> None:
    rows = sum(len(batch["x"]) for batch in _pipe(_write(tmp_path / "in")).iter_batches())
    assert rows == 40
    assert [(name, level) for name, level, _ in lines] == [("threads_job", logging.INFO)] * 2
    assert lines[0][2].startswith("a run of 1 shards starts on ")
    assert lines[1][2] == "the run ends: its last shard has closed"


def test_a_skipped_block(lines: list[tuple[str, int, str]], tmp_path: Path) -> None:
    folder = _write(tmp_path / "in")
    whole = (folder / "2.parquet").read_bytes()
    (folder / "2.parquet").write_bytes(whole[:4] + b"\xff" * 60 + whole[64:])
    pipe = _pipe(folder)
    with pytest.warns(RuntimeWarning, match="a corrupt block is skipped"):
        rows = sum(len(batch["x"]) for batch in pipe.iter_batches())
    assert rows == 30
    (skipped,) = [line for line in lines if line[0] == "skipped_blocks"]
    assert skipped[1] == logging.WARNING
    assert "a corrupt block is skipped, 10 stored rows" in skipped[2]
    assert "2.parquet" in skipped[2]


def test_a_repeated_request_and_nothing_of_its_text(
    lines: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    failures = [ConnectionResetError("https://host?key=secret"), TimeoutError("secret")]

    def attempt() -> str:
        if failures:
            raise failures.pop()
        return "content"

    assert Retries().call(attempt) == "content"
    assert [(name, level) for name, level, _ in lines] == [("retries", logging.INFO)] * 2
    assert lines[0][2].startswith("attempt 1 failed after 0.0 s (TimeoutError): next one in ")
    assert lines[1][2].startswith("attempt 2 failed")
    assert "secret" not in repr(lines)
    lines.clear()
    failures = [TimeoutError("secret")]
    with pytest.raises(GaveUpError):
        Retries(seconds=0).call(attempt)
    # it is not repeated, and the error tells the rest
    assert lines == []


def test_a_window_dropped_for_memory(lines: list[tuple[str, int, str]]) -> None:
    history = WindowHistory(Capacity(1))
    history.drop((3, 7), rebuild=False)
    history.drop((3, 8), rebuild=True)
    assert lines == [
        (
            "window_history",
            logging.INFO,
            "epoch 3, window 8 is dropped, since other windows need its memory",
        )
    ]


@pytest.mark.parametrize("persistent", [False, True], ids=["job", "persistent"])
def test_a_disk_cache_that_fails_is_logged_once(
    lines: list[tuple[str, int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = DiskCache(str(tmp_path), "cache", "x", None, persistent=persistent)
    table = pa.table({"x": range(10)})
    assert disk.put(0, [table]) > 0
    monkeypatch.setattr(system_calls, "pwrite", fail)
    assert disk.put(1, [table]) == 0
    monkeypatch.setattr(type(disk._store), "find", fail)
    # reads go on after an error, and fail each time
    assert disk.find(0) is disk.find(0) is None
    assert disk.take_report().errors == 3
    (line,) = lines
    assert line[:2] == ("disk_cache", logging.WARNING)
    assert line[2].startswith(f"decoded blocks are no longer cached in {disk.path}: ")
    assert "No space left on device" in line[2]


def test_a_corrupt_cached_block(lines: list[tuple[str, int, str]], tmp_path: Path) -> None:
    disk = DiskCache(str(tmp_path), "cache", "x", None, persistent=True)
    disk.put(3, [pa.table({"x": range(1_000)})])
    file = disk.path / "3.arrows"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert DiskCache(str(tmp_path), "cache", "x", None, persistent=True).find(3) is None
    text = f"cached block 3 in {disk.path} is corrupt (the checksum differs): it is read again"
    assert lines == [("disk_cache", logging.WARNING, text)]


def test_nothing_is_printed_by_default(tmp_path: Path) -> None:
    script = f"""
import logging, windrow
from windrow.pipeline.coordinator.window_history import logger
rows = windrow.read_parquet({str(_write(tmp_path / "in"))!r}).repeat(1).options(executor="threads", progress=False)
assert sum(len(batch["x"]) for batch in rows.iter_batches()) == 40
logger.warning("without a handler, Python prints warnings to the standard error")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
