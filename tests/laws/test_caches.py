"""Caches of decoded blocks: the order never changes, limits hold, and no files are left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.files import open_parquet
from windrow.pipeline.coordinator.memory_cache import JobCache
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.cache import job_store
from windrow.pipeline.tasks.cache.block_file import write_block

FILES, GROUPS, ROWS = 6, 3, 400
# four columns: 8 + 8 + 8 bytes, and text
CACHES: list[dict[str, Any]] = [
    {"cache": "memory"},
    {"cache": "memory", "cache_limit": 30_000},
    {"cache": "disk"},
    {"cache": "disk", "cache_limit": 40_000},
]


def write(folder: Path, *, times: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(FILES):
        x = np.arange(number * GROUPS * ROWS, (number + 1) * GROUPS * ROWS)
        nulls = pa.array(x, mask=x % 5 == 0)
        table = pa.table({"x": x, "y": x * times, "n": nulls, "s": [f"row {i}" for i in x]})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=ROWS)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("caches") / "data")


def negate(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "y": -batch["y"]}


def make(data: Path, *, how: str = "plain", epochs: int = 3, window: int = 5, **options: Any) -> Any:
    import pyarrow.compute as pc

    row_filter = pc.field("n") > 1000 if how == "filtered" else None
    ds: Any = windrow.read_parquet(data, filter=row_filter, target_block_bytes=1)
    if how == "mapped":
        ds = ds.map_batches(negate)
    pipe = ds.window(blocks_per_window=window).repeat(epochs).random_shuffle_each_window(seed=5)
    return pipe.options(**{"executor": "threads", "progress": False, **options})


def read(pipe: Any, shards: int = 1) -> tuple[list[Any], RunStats]:
    parts = pipe.split(shards)
    rows: list[Any] = []
    for _ in range(10):
        epochs = [next(part.iter_epochs(), None) for part in parts]
        if None in epochs:
            break
        batches = [epoch.iter_batches(100, batch_format="pyarrow") for epoch in epochs if epoch is not None]
        rows.append([[batch.to_pylist() for batch in iterator] for iterator in batches])
    for part in parts:
        part.close()
    return rows, parts[0].stats().run


@pytest.mark.parametrize("how", ["plain", "filtered", "mapped"])
@pytest.mark.parametrize("options", CACHES, ids=str)
@pytest.mark.parametrize("shards", [1, 2])
def test_cached_order_is_the_same(
    data: Path, tmp_path: Path, how: str, options: dict[str, Any], shards: int
) -> None:
    place: dict[str, Any] = {"cache_dir": tmp_path} if options["cache"] == "disk" else {}
    expected, plain = read(make(data, how=how, memory_limit="1GiB"), shards)
    got, run = read(make(data, how=how, memory_limit="1GiB", **options, **place), shards)
    assert got == expected
    assert plain.cache_hits == plain.cache_bytes == 0
    assert run.cache_hits + run.cache_misses == plain.cache_misses
    assert run.cache_hits > 0
    if "cache_limit" not in options:
        # blocks of the next epoch may be requested while they are being read for the current one
        assert FILES * GROUPS <= run.cache_misses < plain.cache_misses
    assert list(tmp_path.iterdir()) == []


def bytes_in(folder: Path) -> int:
    """Bytes of all files in the subfolders of a folder; some may be renamed meanwhile."""
    size = 0
    for path in folder.glob("*/*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_cache_stays_within_its_limit(data: Path, tmp_path: Path, cache: str) -> None:
    place: dict[str, Any] = {"cache_dir": tmp_path} if cache == "disk" else {}
    # half of the blocks; the first block that does not fit while others are written is the last
    limit = 150_000
    with make(data, cache=cache, cache_limit=limit, **place).iterator() as shard:
        peak = 0
        for epoch in shard.iter_epochs():
            for _ in epoch.iter_batches(100):
                peak = max(peak, bytes_in(tmp_path), shard.stats().run.cache_bytes)
    assert limit // 2 < peak <= limit


def test_later_epochs_in_stored_order_use_the_cache(data: Path) -> None:
    pipe = windrow.read_parquet(data, target_block_bytes=1).window(blocks_per_window=2).repeat()
    (shard,) = pipe.options(cache="memory", executor="threads").split(1)
    with shard:
        passes = [[batch["x"].tolist() for batch in shard.iter_batches(500)] for _ in range(3)]
        run = shard.stats().run
    assert passes[0] == passes[1] == passes[2]
    assert run.cache_misses < 2 * FILES * GROUPS <= run.cache_hits + run.cache_misses


def test_later_epochs_on_demand_use_the_cache(data: Path) -> None:
    (shard,) = windrow.read_parquet(data, target_block_bytes=1).options(cache="memory").split(1)
    with shard:
        passes = [[batch["x"].tolist() for batch in shard.iter_batches(500)] for _ in range(3)]
        run = shard.stats().run
    assert passes[0] == passes[1] == passes[2]
    assert (run.cache_misses, run.cache_hits) == (FILES * GROUPS, 2 * FILES * GROUPS)


def test_early_stop_and_windows_dropped_under_pressure(data: Path) -> None:
    expected, _ = read(make(data, epochs=3))
    with make(data, epochs=3, cache="memory").iterator() as shard:
        epochs = shard.iter_epochs()
        next(iter(next(epochs).iter_batches(100)))
        for epoch in epochs:
            got = [batch.to_pylist() for batch in epoch.iter_batches(100, batch_format="pyarrow")]
            assert [got] == expected[epoch.number]


def test_memory_is_released_with_the_run(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_tables: list[weakref.ref[Any]] = []
    add_report = JobCache.add_report

    def note(self: JobCache, task: Any, report: Any, handles: Any) -> None:
        cached_tables.extend(weakref.ref(table) for handle in handles for table in handle)
        add_report(self, task, report, handles)

    monkeypatch.setattr(JobCache, "add_report", note)
    pipe = make(data, cache="memory")
    shard = pipe.iterator()
    list(next(shard.iter_epochs()).iter_batches(100))
    assert any(table() is not None for table in cached_tables)
    shard.close()
    gc.collect()
    until = time.monotonic() + 20
    while any(table() is not None for table in cached_tables):
        assert time.monotonic() < until
        time.sleep(0.01)


# --- cached for later runs


def keep(data: Path, place: Path, **more: Any) -> Any:
    return make(data, epochs=1, cache="disk", cache_dir=place, keep_cache=True, **more)


def test_later_run_reads_only_the_cache(data: Path, tmp_path: Path) -> None:
    expected, first = read(keep(data, tmp_path))
    got, second = read(keep(data, tmp_path))
    assert got == expected
    assert (first.cache_misses, first.cache_hits) == (FILES * GROUPS, 0)
    assert (second.cache_misses, second.cache_hits) == (0, FILES * GROUPS)


def test_other_columns_and_filters_have_separate_blocks(data: Path, tmp_path: Path) -> None:
    read(keep(data, tmp_path))
    expected, _ = read(make(data, how="filtered", epochs=1))
    got, run = read(keep(data, tmp_path, how="filtered"))
    assert got == expected
    assert run.cache_hits == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_changed_source_is_read_again(tmp_path: Path) -> None:
    place = tmp_path / "cached"
    read(keep(write(tmp_path / "data"), place))
    changed = write(tmp_path / "data", times=3)
    expected, _ = read(make(changed, epochs=1))
    got, run = read(keep(changed, place))
    assert got == expected
    assert run.cache_hits == 0


def test_changed_values_with_the_same_footer_are_read_again(tmp_path: Path) -> None:
    data, footers, sums = tmp_path / "data", [], []
    data.mkdir()
    for value in (0.25, 0.75):
        table = pa.table({"x": [0.0, *[value] * 1000, 1.0]})
        pq.write_table(table, data / "x.parquet", compression="none", use_dictionary=False)
        pipe = keep(data, tmp_path / "cached")
        footers.append(open_parquet(data).fingerprint)
        sums.append(sum(batch["x"].sum() for batch in pipe.iter_batches(100)))
    assert footers[0] == footers[1]
    assert sums == [251.0, 751.0]


@pytest.mark.parametrize("corruption", ["flipped", "truncated", "foreign", "empty"])
def test_corrupt_files_are_read_and_written_again(data: Path, tmp_path: Path, corruption: str) -> None:
    expected, _ = read(keep(data, tmp_path))
    for path in tmp_path.glob("*/*.arrows"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        changed = {"flipped": bytes(content), "truncated": bytes(content[:-9]), "foreign": b"x" * 500}
        path.write_bytes(changed.get(corruption, b""))
    with pytest.warns(RuntimeWarning, match="is corrupt") as caught:
        got, run = read(keep(data, tmp_path))
    assert got == expected
    assert len(caught) == 1
    assert run.cache_misses == run.cache_corrupt_blocks == FILES * GROUPS
    again, run = read(keep(data, tmp_path))
    assert again == expected
    assert run.cache_misses == 0


# --- cleanup


def test_failed_run_leaves_no_files(data: Path, tmp_path: Path) -> None:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if 3000 in batch["x"]:
            raise ArithmeticError("no")
        return batch

    ds = windrow.read_parquet(data, target_block_bytes=1).map_batches(fail).repeat(2)
    with pytest.raises(windrow.TransformError):
        list(ds.options(cache="disk", cache_dir=tmp_path, executor="threads").iter_batches(100))
    assert list(tmp_path.iterdir()) == []


def test_dropped_iterator_leaves_no_files(data: Path, tmp_path: Path) -> None:
    batches = iter(make(data, cache="disk", cache_dir=tmp_path).iter_batches(100))
    next(batches)
    assert list(tmp_path.iterdir()) != []
    del batches
    gc.collect()
    until = time.monotonic() + 20
    while list(tmp_path.iterdir()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_next_run_removes_the_files_of_a_killed_process(data: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time, windrow\n"
        "pipe = windrow.read_parquet(sys.argv[1], target_block_bytes=1).repeat(3)\n"
        "pipe = pipe.options(cache='disk', cache_dir=sys.argv[2], executor='threads')\n"
        "batches = iter(pipe.iter_batches(100))\n"  # a reading that is dropped is closed
        "next(batches)\n"
        "print('reading', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(data), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        os.kill(process.pid, signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == 1
    read(make(data, cache="disk", cache_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_process_that_exits_without_closing_leaves_no_files(data: Path, tmp_path: Path) -> None:
    script = (
        "import sys, windrow\n"
        "pipe = windrow.read_parquet(sys.argv[1], target_block_bytes=1).repeat(3)\n"
        "shard = pipe.options(cache='disk', cache_dir=sys.argv[2], executor='threads').iterator()\n"
        "next(iter(shard.iter_batches(100)))\n"
    )
    subprocess.run([sys.executable, "-c", script, str(data), str(tmp_path)], check=True)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_reported_once_and_the_run_continues(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = read(make(data))
    written: list[Any] = []

    def write_a_few(*args: Any, **options: Any) -> int:
        written.append(args)
        if len(written) > 4:
            raise OSError(28, "No space left on device")
        return write_block(*args, **options)

    monkeypatch.setattr(job_store, "write_block", write_a_few)
    pipe = make(data, cache="disk", cache_dir=tmp_path, executor=ThreadsExecutor(1))
    with pytest.warns(RuntimeWarning, match=r"no longer cached in .*No space left on device") as caught:
        got, run = read(pipe)
    assert got == expected
    assert len(caught) == 1
    assert len(written) == 5
    assert run.cache_hits > 0


# --- functions get copies of cached blocks


def write_to_pandas(batch: Any) -> Any:
    batch["y"] += 1
    batch.loc[:, "x"] = batch["x"] * 2
    return batch


def change(data: Path, function: Any, batch_format: Any, **options: Any) -> Any:
    ds: Any = windrow.read_parquet(data, columns=["x", "y"], target_block_bytes=1)
    pipe = ds.map_batches(function, batch_format=batch_format).repeat(3).random_shuffle_each_window(seed=2)
    return pipe.options(executor="threads", **options)


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_functions_that_write_do_not_change_cached_blocks(data: Path, cache: Any) -> None:
    expected, _ = read(change(data, write_to_pandas, "pandas"))
    got, run = read(change(data, write_to_pandas, "pandas", cache=cache))
    assert got == expected
    assert run.cache_hits > 0
