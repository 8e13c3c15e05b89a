"""Range requests to object storage: only needed bytes, in large or in many concurrent requests."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.faults.proxy import Proxy
from tests.io.files import S3
from tests.io.s3.conftest import BUCKET, FILES, ROWS, STYLES, options_of
from windrow.io.storage.range_reads import RemoteFile
from windrow.io.storage.retries import Retries, call_ahead

TAIL_BYTES = 64 * 1024
MIB = 2**20


def stored_bytes(s3: S3, *names: str) -> int:
    """Total size of the chunks of some columns, from the footers."""
    size = 0
    for path in (s3.directory / BUCKET / "train").iterdir():
        footer = pq.read_metadata(path)
        groups = (footer.row_group(number) for number in range(footer.num_row_groups))
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        size += sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in names)
    return size


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("names", [("c03",), ("c00", "c02", "c04", "c06", "c08", "c10")], ids=len)
def test_only_selected_columns_are_fetched(
    s3: S3, proxy: Proxy, data: str, style: str, names: tuple[str, ...]
) -> None:
    pytest.importorskip("s3fs")
    options, needed = options_of(style, proxy.endpoint), stored_bytes(s3, *names)
    proxy.set(None)
    ds = windrow.read_parquet(data, storage_options=options, columns=list(names), target_block_bytes=1)
    pipe = ds.window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=1)
    passed = []
    with pipe.options(executor="threads", prefetch_windows=0).iterator() as shard:
        for epoch in shard.iter_epochs():
            assert sum(len(batch[names[0]]) for batch in epoch.iter_batches(10_000)) == FILES * ROWS
            passed.append(proxy.answered_bytes["GET"])
    # footers are read once by the planner and once by the process that reads blocks; epoch two reads chunks alone
    listing = 8 * 1024
    assert needed <= passed[0] <= needed * 1.04 + 2 * FILES * TAIL_BYTES + listing
    assert needed <= passed[1] - passed[0] <= needed * 1.04


@pytest.mark.parametrize("style", STYLES)
def test_row_groups_that_a_filter_excludes_are_not_fetched(
    s3: S3, proxy: Proxy, data: str, style: str
) -> None:
    pytest.importorskip("s3fs")
    import pyarrow.compute as pc

    proxy.set(None)
    ds = windrow.read_parquet(
        data, storage_options=options_of(style, proxy.endpoint), columns=["c05"], filter=pc.field("x") < 5_000
    )
    before = proxy.answered_bytes["GET"]
    assert len(ds.take(10_000)) == 5_000
    group_bytes = stored_bytes(s3, "x", "c05") // (3 * FILES)
    assert proxy.answered_bytes["GET"] - before <= group_bytes * 1.04 + FILES * TAIL_BYTES


class CountingStore:
    """Answers after a delay, and counts concurrent requests."""

    def __init__(self, size_bytes: int) -> None:
        self.content = np.arange(size_bytes // 8, dtype=np.int64).tobytes()
        self.asked: list[tuple[int, int]] = []
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, start: int, stop: int) -> bytes:
        with self._lock:
            self.asked.append((start, stop))
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(0.02)
        with self._lock:
            self.at_once -= 1
        return self.content[start:stop]

    def open(self) -> RemoteFile:
        return RemoteFile(self, len(self.content), Retries(seconds=0))


def test_large_ranges_are_split_into_requests_of_8_to_16_mib() -> None:
    store = CountingStore(100 * MIB)
    file = store.open()
    file.fetch([(8, 40 * MIB), (50 * MIB, 51 * MIB)])
    file.seek(1000)
    assert bytes(file.read(39 * MIB)) == store.content[1000 : 1000 + 39 * MIB]
    file.seek(50 * MIB)
    assert bytes(file.read(MIB)) == store.content[50 * MIB : 51 * MIB]
    sizes = sorted(stop - start for start, stop in store.asked)
    assert sizes[0] == MIB
    assert all(8 * MIB <= size <= 16 * MIB for size in sizes[1:])
    assert sum(sizes) == 41 * MIB - 8


def test_small_ranges_are_requested_concurrently() -> None:
    store = CountingStore(MIB)
    file = store.open()
    file.fetch([(start, start + 8) for start in range(0, 64 * 1024, 1024)])
    for start in range(0, 64 * 1024, 1024):
        file.seek(start)
        assert bytes(file.read(8)) == store.content[start : start + 8]
    assert 24 <= store.most <= 32


def test_first_range_is_readable_before_the_others_arrive() -> None:
    slow, asked = threading.Event(), Counter[int]()

    def read(start: int, stop: int) -> bytes:
        asked[start] += 1
        if start:
            slow.wait(20)
        return bytes(stop - start)

    file = RemoteFile(read, 1000, Retries(seconds=0))
    file.fetch([(0, 10), (500, 600)], then=lambda: "looked")
    try:
        assert bytes(file.read(10)) == bytes(10)
        assert not slow.is_set()
    finally:
        slow.set()
    assert file.fetch_result() == "looked"
    # a range that was not prefetched discards the result of `then`
    file.seek(700)
    file.read(5)
    assert file.fetch_result() is None
    assert asked == {0: 1, 500: 1, 700: 1}


def test_held_bytes_are_not_requested() -> None:
    store = CountingStore(MIB)
    file = store.open()
    file.hold(1_000, store.content[1_000:1_200])
    # as a range that was requested with others, in which the held ones lie
    file.fetch([(900, 1_500)])
    assert bytes(file.read_at(1_000, 1_200)) == store.content[1_000:1_200]
    assert bytes(file.read_at(1_000, 1_100)) == store.content[1_000:1_100]
    assert bytes(file.read_at(1_000, 1_300)) == store.content[1_000:1_300]
    assert bytes(file.read_at(1_100, 1_700)) == store.content[1_100:1_700]
    assert store.asked == [(900, 1_500), (1_100, 1_700)]
    file.close()


def test_then_is_called_after_all_other_calls() -> None:
    events: list[str] = []

    def read(name: str, seconds: float) -> Any:
        time.sleep(seconds)
        events.append(name)

    futures = call_ahead(
        [lambda: read("slow", 0.1), lambda: read("fast", 0)], 8, "lane", then=lambda: events.append("look")
    )
    futures[-1].result()
    assert events == ["fast", "slow", "look"]


class WaitingStore(CountingStore):
    """Answers once `open_gate` is set."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.open_gate = threading.Event()

    def __call__(self, start: int, stop: int) -> bytes:
        found = super().__call__(start, stop)
        self.open_gate.wait(20)
        return found


def test_closed_file_makes_no_more_requests() -> None:
    store = WaitingStore(MIB)
    file = store.open()
    file.fetch([(start, start + 8) for start in range(0, MIB, 4096)])
    file.close()
    store.open_gate.set()
    time.sleep(0.2)
    assert len(store.asked) <= 64


def test_error_of_a_prefetched_range_is_raised_by_its_read() -> None:
    def read(start: int, stop: int) -> bytes:
        if start == 100:
            raise FileNotFoundError("gone")
        return bytes(stop - start)

    file = RemoteFile(read, 1000, Retries(seconds=0))
    file.fetch([(0, 10), (100, 110)], then=lambda: "looked")
    assert bytes(file.read(10)) == bytes(10)
    file.seek(100)
    with pa.PythonFile(file, mode="r") as arrow, pytest.raises(FileNotFoundError, match="gone"):
        arrow.read_at(10, 100)
    assert file.failed
