"""Tracebacks that users see: a single windrow error at the end, and few internal frames above it."""

from __future__ import annotations

import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import windrow
from tests.faults.corrupt_files import corrupt_row_groups, write_files
from windrow import Dataset, DatasetPipeline, PlanError, WindrowError
from windrow.pipeline.shard.run_reader import RunReader

MAX_FRAMES = 10
PACKAGE = str(Path(windrow.__file__).parent)
EXECUTORS = pytest.mark.parametrize("executor", ["threads", "ray"])


def printed_error(call: Callable[[], Any]) -> tuple[WindrowError, str]:
    with pytest.raises(WindrowError, match=r".") as caught:
        call()
    return caught.value, "".join(traceback.format_exception(caught.value))


def assert_readable(call: Callable[[], Any]) -> str:
    """Check that a traceback is readable; returns its text."""
    error, text = printed_error(call)
    frames = [line for line in text.splitlines() if line.lstrip().startswith(f'File "{PACKAGE}')]
    assert 0 < len(frames) <= MAX_FRAMES, text
    links: list[BaseException] = [error]
    while (cause := links[-1].__cause__) is not None:
        links.append(cause)
    assert [link for link in links if isinstance(link, WindrowError)] == [error]
    # the error is the last paragraph, and appears nowhere else
    assert text.count(str(error)) == 1
    assert text.rstrip().endswith(str(error).rstrip())
    return text


def fail(batch: Any) -> Any:
    return fail_deeper(batch)


def fail_deeper(batch: Any) -> Any:
    raise KeyError("raised by the user")


def assert_shows_the_users_frames(text: str) -> None:
    assert "in fail\n" in text
    assert "in fail_deeper\n" in text
    assert "KeyError: 'raised by the user'" in text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    write_files(path)
    return path


def pipeline(folder: Path, executor: str) -> DatasetPipeline:
    ds = windrow.read_parquet(str(folder), target_block_bytes=1).window(blocks_per_window=3)
    return ds.repeat(2).random_shuffle_each_window(seed=5).options(executor=executor)


def corrupt_dataset(folder: Path) -> Dataset:
    corrupt_row_groups(folder, 1)
    return windrow.read_parquet(str(folder), target_block_bytes=1)


def truncated(folder: Path) -> str:
    path = folder / "0.parquet"
    path.write_bytes(path.read_bytes()[:50])
    return str(folder)


LOOKS: dict[str, Callable[[Path], Any]] = {
    "no such path": lambda folder: windrow.read_parquet(str(folder / "none")),
    "no such scheme": lambda folder: windrow.read_parquet("nosuch://x"),
    "no such store": lambda folder: windrow.read_parquet(
        "s3://bucket/x",
        storage_options={"endpoint_url": "http://127.0.0.1:9", "key": "key-7", "secret": "secret-7"},
        retry_seconds=0,
    ),
    "no such column": lambda folder: windrow.read_parquet(str(folder), columns=["z"]),
    "another format": lambda folder: windrow.read_csv(str(folder / "1.parquet"), dtypes={"x": "int64"}),
    "unlike schemas": lambda folder: (
        pq.write_table(pa.table({"x": ["a"]}), folder / "9.parquet"),
        windrow.read_parquet(str(folder)),
    ),
    "truncated": lambda folder: windrow.read_parquet(truncated(folder)),
    "memory limit too small": lambda folder: (
        windrow.read_parquet(str(folder)).repeat(2).options(memory_limit=1).split(2)
    ),
    "schema": lambda folder: windrow.read_parquet(str(folder)).map_batches(fail).schema(),
    "take": lambda folder: windrow.read_parquet(str(folder)).map_batches(fail).take(3),
    "count": lambda folder: windrow.read_parquet(str(folder)).map_batches(fail, preserves_rows=False).count(),
    "write": lambda folder: (
        windrow.read_parquet(str(folder)).map_batches(fail).write_parquet(folder / "written")
    ),
    "text in tensors": lambda folder: next(
        iter(windrow.from_items([{"x": "text"}]).repeat(2).iter_torch_batches(3))
    ),
    "corrupt, taken": lambda folder: corrupt_dataset(folder).take(99),
    "corrupt, collected": lambda folder: corrupt_dataset(folder).to_arrow(),
    "corrupt, written": lambda folder: corrupt_dataset(folder).write_parquet(folder / "written"),
}


@pytest.mark.parametrize("what", LOOKS)
def test_errors_before_reading(folder: Path, what: str) -> None:
    if what == "no such store":
        pytest.importorskip("s3fs")
    text = assert_readable(lambda: LOOKS[what](folder))
    if what in ("schema", "take", "count", "write"):
        assert_shows_the_users_frames(text)


def read_epochs(pipe: DatasetPipeline) -> None:
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            for _ in epoch.iter_torch_batches(7):
                pass


def read_passes(pipe: DatasetPipeline) -> None:
    for _ in pipe.iter_batches(7):
        pass


def _bad_state(pipe: DatasetPipeline) -> None:
    with pipe.iterator() as shard:
        state = shard.state_dict()
    pipe.iterator(state_dict={**state, "row": 7})


def _remove(folder: Path) -> None:
    (folder / "2.parquet").unlink()


@EXECUTORS
@pytest.mark.parametrize("read", [read_epochs, read_passes])
@pytest.mark.parametrize(
    "damage", [lambda folder: corrupt_row_groups(folder, 4), _remove], ids=["corrupt", "deleted"]
)
def test_errors_while_reading(
    ray_local: Any, folder: Path, executor: str, read: Callable[[Any], None], damage: Callable[[Path], None]
) -> None:
    pipe = pipeline(folder, executor)
    damage(folder)
    assert_readable(lambda: read(pipe))


@pytest.mark.ray_at_night
@EXECUTORS
@pytest.mark.parametrize("place", ["before", "after", "collate"])
def test_failing_line_of_a_user_function_is_shown(
    ray_local: Any, folder: Path, executor: str, place: str
) -> None:
    if place == "before":
        ds = windrow.read_parquet(str(folder), target_block_bytes=1).map_batches(fail).repeat(2)
        text = assert_readable(lambda: read_epochs(ds.options(executor=executor)))
    elif place == "after":
        text = assert_readable(lambda: read_epochs(pipeline(folder, executor).map_batches(fail)))
    else:
        batches = pipeline(folder, executor).iter_torch_batches(7, collate_fn=fail)
        text = assert_readable(lambda: list(batches))
    assert_shows_the_users_frames(text)


@pytest.mark.ray_at_night
@EXECUTORS
def test_mismatched_states(ray_local: Any, folder: Path, executor: str) -> None:
    assert_readable(lambda: _bad_state(pipeline(folder, executor)))


LOCK = threading.Lock()


def hold_global(batch: Any) -> Any:
    with LOCK:
        return batch


class Holder:
    """A callable with a lock, like a client of a service."""

    def __init__(self) -> None:
        self.client = threading.Lock()

    def __call__(self, batch: Any) -> Any:
        return batch

    def map(self, batch: Any) -> Any:
        return batch


def hold_variable() -> Callable[..., Any]:
    lock = threading.Lock()

    def locked(batch: Any) -> Any:
        with lock:
            return batch

    return locked


def call_holder() -> Callable[[Any], Any]:
    helper = hold_variable()

    def calls_helper(batch: Any) -> Any:
        return helper(batch)

    return calls_helper


UNPICKLABLE: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "default": (lambda batch, lock=LOCK: batch, {}, r"<lambda>\) .*its default argument 'lock'"),
    "variable": (hold_variable(), {}, r"locked\) .*its variable 'lock'"),
    "helper": (call_holder(), {}, r"calls_helper\) .*its variable 'lock' of variable 'helper'"),
    "object": (Holder(), {}, r"Holder\) .*its attribute 'client'"),
    "method": (Holder().map, {}, r"Holder.map\) .*its attribute 'client' of object of type Holder"),
    "partial": (
        partial(hold_variable(), other=1),
        {},
        r"locked\) .*its variable 'lock' of function 'locked'",
    ),
    "argument": (fail, {"fn_args": (1, LOCK)}, r"fail\) .*its argument fn_args\[1\]"),
    "named argument": (fail, {"fn_kwargs": {"lock": LOCK}}, r"fail\) .*its argument 'lock'"),
}


@pytest.mark.parametrize("what", UNPICKLABLE)
def test_unpicklable_object_is_named(ray_local: Any, folder: Path, what: str) -> None:
    function, arguments, named = UNPICKLABLE[what]
    ds = windrow.read_parquet(str(folder), target_block_bytes=1).map_batches(function, **arguments)
    error, _ = printed_error(lambda: read_passes(ds.repeat(1).options(executor="ray")))
    assert isinstance(error, PlanError)
    assert re.search(r"map_batches\(\S*" + named, str(error)), str(error)
    assert "(_thread.lock) cannot be pickled: TypeError: cannot pickle '_thread.lock' object" in str(error)
    assert "Create it inside the function, or run in this process with options(executor=" in str(error)


@pytest.mark.parametrize("call_name", ["before", "after", "shards", "written", "epochs written", "to_ray"])
def test_pickling_error_is_short(ray_local: Any, folder: Path, call_name: str) -> None:
    ds = windrow.read_parquet(str(folder), target_block_bytes=1)
    function, target = hold_variable(), str(folder.parent / "written")
    windows = ds.window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=5)
    calls: dict[str, Callable[[], Any]] = {
        "before": lambda: read_passes(ds.map_batches(function).repeat(1).options(executor="ray")),
        "after": lambda: read_passes(windows.map_batches(function).options(executor="ray")),
        "shards": lambda: windows.map_batches(function).options(executor="ray").split(2),
        "written": lambda: ds.map_batches(function).options(executor="ray").write_parquet(target),
        "epochs written": lambda: windows.map_batches(function).options(executor="ray").write_parquet(target),
        "to_ray": lambda: ds.map_batches(function).to_ray(),
    }
    text = assert_readable(calls[call_name])
    assert "PlanError: map_batches(hold_variable.<locals>.locked) cannot be sent to Ray's workers" in text
    assert len(text) < 6_000
    assert not Path(target).exists()


def test_unpicklable_source_is_named(ray_local: Any, folder: Path) -> None:
    class Locked(MemoryFileSystem):  # type: ignore[misc]
        """A filesystem that cannot be pickled."""

        def __reduce__(self) -> Any:
            raise TypeError("a session cannot be pickled")

    files = Locked(skip_instance_cache=True)
    files.put(str(folder), "/unpicklable", recursive=True)
    ds = windrow.read_parquet("/unpicklable", filesystem=files, target_block_bytes=1)
    calls: list[Callable[[], Any]] = [
        lambda: read_passes(ds.repeat(1).options(executor="ray")),
        lambda: ds.options(executor="ray").write_parquet(str(folder.parent / "written")),
        lambda: ds.to_ray(),
    ]
    for call_name in calls:
        text = assert_readable(call_name)
        assert "PlanError: the source (" in text
        assert "cannot be pickled: TypeError: a session cannot be pickled. Pass" in text


def end_process(batch: Any) -> Any:
    sys.exit("no such shard")


def interrupt(batch: Any) -> Any:
    raise KeyboardInterrupt


@EXECUTORS
@pytest.mark.parametrize(
    ("function", "said", "place"),
    [
        # not for writing, which first calls the function in the main thread, where signal handlers may raise these
        *((end_process, "SystemExit: no such shard", at) for at in ("before", "after", "collate")),
        *((interrupt, "KeyboardInterrupt", at) for at in ("before", "after", "collate")),
    ],
)
@pytest.mark.ray_at_night
def test_function_that_ends_the_process_is_named(
    ray_local: Any, folder: Path, executor: str, function: Callable[[Any], Any], said: str, place: str
) -> None:
    ds = windrow.read_parquet(str(folder), target_block_bytes=1).map_batches(function)
    pipe = pipeline(folder, executor)
    calls: dict[str, Callable[[], Any]] = {
        "before": lambda: read_epochs(ds.repeat(2).options(executor=executor)),
        "after": lambda: read_epochs(pipe.map_batches(function)),
        "collate": lambda: list(pipe.iter_torch_batches(7, collate_fn=function, device="cpu")),
    }
    text = assert_readable(calls[place])
    caller = "collate_fn" if place == "collate" else "map_batches"
    assert re.search(
        rf"TransformError: {caller}\({function.__name__}\).*: {said}\. A function cannot end", text
    )
    assert f"in {function.__name__}\n" in text


@pytest.fixture
def _signals_are_handled() -> Iterator[None]:
    """Enable SIGINT, which background jobs of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_signals_are_handled")
@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("function", [interrupt, end_process])
def test_exceptions_of_signal_handlers_pass_unchanged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: Callable[[Any], Any], looks: bool
) -> None:
    def wait(*_: Any, **__: Any) -> Any:
        function(None)

    call: Callable[[], Any]
    if looks:
        call = windrow.read_parquet(str(folder)).map_batches(function).schema
    else:
        monkeypatch.setattr(RunReader, "_next", wait)
        call = partial(read_epochs, pipeline(folder, "threads"))
    with pytest.raises((KeyboardInterrupt, SystemExit)) as interrupted:
        call()
    text = "".join(traceback.format_exception(interrupted.value))
    frames = [line for line in text.splitlines() if line.lstrip().startswith(f'File "{PACKAGE}')]
    assert 0 < len(frames) <= MAX_FRAMES, text
    assert f"in {function.__name__}\n" in text
    assert type(interrupted.value).__name__ == (
        "KeyboardInterrupt" if function is interrupt else "SystemExit"
    )
