"""Each system call of the disk cache fails, once or from then on; the cache continues without the block."""

from __future__ import annotations

import ast
import errno
import gc
import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from tests.pipeline.tasks.cache.faults import ERRORS, failing_calls
from windrow.pipeline.tasks import cache
from windrow.pipeline.tasks.cache import disk_cache as disk_module
from windrow.pipeline.tasks.cache.disk_cache import CacheReport, DiskCache

BLOCKS = 3
TABLES = {block: [pa.table({"x": range(block, block + 100)})] for block in range(BLOCKS + 1)}
MAX_CALLS = 500


class Outcome(NamedTuple):
    found: int
    report: CacheReport


def open_files(folder: Path) -> list[str]:
    """The open files of a folder, including unlinked ones; other tests have files open too."""
    # close the files of unreferenced objects first
    gc.collect()
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        # the descriptor of the listing itself is closed by now
        with suppress(FileNotFoundError):
            targets.append(os.readlink(descriptor))
    return [target for target in targets if target.startswith(str(folder))]


def use(folder: Path, contents: str) -> Outcome:
    """Use the cache like two processes of a job: through two objects that share only the folder."""
    first = DiskCache(str(folder), "run", contents, None, persistent=bool(contents))
    second: DiskCache = pickle.loads(pickle.dumps(first))
    found = 0
    for block in range(BLOCKS):
        with first.reading(block):
            if first.find(block) is None:
                first.put(block, TABLES[block])
    second.put(BLOCKS, TABLES[BLOCKS])
    for disk in (first, second):
        for block, expected in TABLES.items():
            tables = disk.find(block)
            found += tables is not None
            assert tables in (None, expected)
    first.remove()
    return Outcome(found, first.take_report().add(second.take_report()))


@pytest.fixture(autouse=True)
def _collect_only_what_is_made_here() -> Iterator[None]:
    """With the heap of all earlier tests, each of hundreds of collections took 0.3 s."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _nobody_watches_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "_WATCH_SECONDS", 1e6)
    monkeypatch.setattr("windrow.pipeline.tasks.cache.shared_folder._LOCK_SECONDS", 0.01)
    monkeypatch.setattr("windrow.pipeline.tasks.cache.shared_folder._READING_SECONDS", 0.01)


@pytest.mark.parametrize("contents", ["", "x"], ids=["job", "persistent"])
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(
    "error",
    [
        pytest.param(number, id=errno.errorcode[number], marks=[] if at == 0 else pytest.mark.nightly)
        for at, number in enumerate(ERRORS)
    ],
)
def test_each_call_fails(tmp_path: Path, error: int, for_ever: bool, contents: str) -> None:
    for number in range(1, MAX_CALLS):
        with failing_calls(error, lambda _, at, n=number: at >= n if for_ever else at == n) as calls:  # type: ignore[misc]
            outcome = use(tmp_path / str(number), contents)
        failed = calls.names[number - 1 : number]
        # a block that is not found is reported
        noted = outcome.report.errors + outcome.report.corrupt_blocks
        assert outcome.found == 2 * len(TABLES) or noted, failed
        assert bool(outcome.report.first_error) == (outcome.report.errors > 0)
        assert open_files(tmp_path) == [], failed
        if not failed:
            assert outcome.found == 2 * len(TABLES)
            assert noted == 0
            return
    pytest.fail(f"the cache makes more than {MAX_CALLS} calls")


def test_cache_makes_system_calls_through_one_module() -> None:
    """Otherwise some calls could not fail in `test_each_call_fails`."""
    (folder,) = cache.__path__
    allowed = {"os": {"O_", "path", "fspath", "strerror", "getpid", "stat_result", "SEEK_SET", "PathLike"}}
    allowed |= {"mmap": {"ACCESS_", "ALLOCATIONGRANULARITY"}}
    allowed |= {"shutil": set(), "tempfile": {"gettempdir"}, "pathlib": {"Path"}}
    for path in Path(folder).glob("*.py"):
        if path.name == "system_calls.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names = allowed.get(node.value.id)
                assert names is None or any(node.attr.startswith(name) for name in names), (
                    path.name,
                    node.attr,
                )
