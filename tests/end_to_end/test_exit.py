"""A process that exits in the middle of an epoch exits quickly and without messages."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import RAY_ENVIRONMENT, REPOSITORY
from tests.end_to_end.data import write_numbers
from tests.library_versions import RAY_UNCLOSED

pytestmark = pytest.mark.timeout(120)

_BEGIN = """
import signal, sys, time, traceback, threading
import windrow

# a shell that starts jobs in the background lets them ignore Ctrl-C, and their children too
signal.signal(signal.SIGINT, signal.default_int_handler)

executor, path = sys.argv[1:]
if executor == "ray":
    import ray
    ray.init(address="local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False,
             log_to_driver=False, logging_level="ERROR")
ds = windrow.read_parquet(path, target_block_bytes=1)
pipe = ds.window(blocks_per_window=5).repeat().random_shuffle_each_window(seed=1).options(executor=executor)
"""

_LEFT_OPEN = """
shard, other = pipe.split(2)
batches, more = shard.iter_torch_batches(100), other.iter_batches(100, batch_format="pandas")
next(batches), next(more)
print("left open", flush=True)
"""

_INTERRUPTED = """
shard = pipe.iterator()
try:
    for epoch in shard.iter_epochs():
        for batch in epoch.iter_batches(100):
            print("reading", flush=True)
            time.sleep(0.01)
except KeyboardInterrupt:
    del batch, epoch
    shard.close()
    left = [t.name for t in threading.enumerate() if t.name.startswith("windrow")]
    print("interrupted", left, flush=True)
with pipe.iterator() as shard:
    print(sum(len(batch["x"]) for batch in shard.iter_batches(1000)), "rows", flush=True)
"""

_FAILING = """
class OwnError(Exception):
    def __init__(self, code, *, why):
        super().__init__(f"{code}: {why}")
        self.code = code

    def __reduce__(self):
        return rebuild, (self.code, str(self))

def rebuild(code, text):
    error = OwnError(code, why="rebuilt")
    error.args = (text,)
    return error

class UnpicklableError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

def fail(batch, kind):
    raise OwnError(7, why="mine") if kind == "own" else UnpicklableError("one", "two")

for kind in ("own", "unpicklable"):
    for before in (True, False):
        start = ds.map_batches(fail, fn_args=(kind,)) if before else ds
        pipeline = start.repeat(1).random_shuffle_each_window(seed=1).options(executor=executor)
        pipeline = pipeline if before else pipeline.map_batches(fail, fn_args=(kind,))
        try:
            list(pipeline.iterator().iter_batches(100))
        except windrow.TransformError as error:
            cause, story = error.__cause__, traceback.format_exc()
            if kind == "own":
                assert type(cause) is OwnError and cause.code == 7, repr(cause)
            assert "line" in story and "in fail" in story, story
            text = "OwnError: 7: mine" if kind == "own" else "UnpicklableError: one and two"
            assert text in str(error), str(error)
            assert text in story, story
            assert not before or "x.parquet, row group" in str(error), str(error)
            print("right", flush=True)
"""


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40,000 rows in 40 row groups."""
    return write_numbers(tmp_path_factory.mktemp("numbers") / "x.parquet", 40_000, row_group_size=1_000)


@pytest.fixture(params=["threads", pytest.param("ray", marks=pytest.mark.ray)])
def executor(request: pytest.FixtureRequest) -> str:
    """The name of each executor; the started process initialises Ray itself."""
    return str(request.param)


def _start(directory: Path, body: str, executor: str, numbers: Path) -> subprocess.Popen[str]:
    script = directory / "trainer.py"
    script.write_text(_BEGIN + body)
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            *(f"-W{each}" for each in RAY_UNCLOSED),
            str(script),
            executor,
            str(numbers),
        ],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", **RAY_ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
    )


def _finish(process: subprocess.Popen[str]) -> str:
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the process does not end\n{out}\n{err}")
    assert err == ""
    assert process.returncode == 0
    return out


@pytest.mark.ray_at_night
def test_exit_during_an_epoch(tmp_path: Path, executor: str, numbers: Path) -> None:
    assert _finish(_start(tmp_path, _LEFT_OPEN, executor, numbers)) == "left open\n"


def test_interrupt_during_an_epoch(tmp_path: Path, executor: str, numbers: Path) -> None:
    process = _start(tmp_path, _INTERRUPTED, executor, numbers)
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out = _finish(process)
    assert out.endswith("interrupted []\n40000 rows\n")


@pytest.mark.ray_at_night
def test_exceptions_of_the_main_script(tmp_path: Path, executor: str, numbers: Path) -> None:
    assert (
        _finish(_start(tmp_path, _FAILING + _LEFT_OPEN, executor, numbers)) == "right\n" * 4 + "left open\n"
    )
