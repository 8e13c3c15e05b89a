"""Blocks of object storage cached on disk: a block that was read once is not requested again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.conftest import REPOSITORY
from tests.faults.proxy import Proxy
from tests.io.s3.conftest import FILES, ROWS, STYLES, options_of

pytest.importorskip("s3fs")

BLOCKS = 3 * FILES


@pytest.fixture(params=["threads", pytest.param("ray", marks=pytest.mark.nightly)])
def executor(request: pytest.FixtureRequest) -> str:
    return _executor(request, request.param)


def _executor(request: pytest.FixtureRequest, name: str) -> str:
    if name == "ray":
        request.getfixturevalue("ray_local")
    return name


def chain(data: str, proxy: Proxy, *, style: str = "s3fs", window: int = 4, epochs: int = 3) -> Any:
    options = options_of(style, proxy.endpoint)
    ds = windrow.read_parquet(data, storage_options=options, columns=["x"], target_block_bytes=1)
    return ds.window(blocks_per_window=window).repeat(epochs).random_shuffle_each_window(seed=1)


def read(shard: Any, proxy: Proxy) -> list[tuple[list[int], int]]:
    """The rows of each epoch, and the number of requests until its end."""
    epochs = []
    for epoch in shard.iter_epochs():
        rows = np.concatenate([batch["x"] for batch in epoch.iter_batches(10_000)]).tolist()
        epochs.append((rows, sum(proxy.requests.values())))
    return epochs


# windows of one block, and windows of a whole epoch
@pytest.mark.parametrize(
    ("on", "style", "window"),
    [
        ("threads", "s3fs", BLOCKS),
        ("threads", "arrow", 1),
        ("ray", "s3fs", BLOCKS),
        pytest.param("ray", "arrow", 1, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.ray_at_night
def test_epoch_two_makes_no_request(
    request: pytest.FixtureRequest, data: str, proxy: Proxy, on: str, style: str, window: int, tmp_path: Path
) -> None:
    executor = _executor(request, on)
    pipe = chain(data, proxy, style=style, window=window)
    with pipe.options(executor=executor).iterator() as shard:
        expected = [rows for rows, _ in read(shard, proxy)]
    proxy.set(None)
    with pipe.options(executor=executor, cache="disk", cache_dir=tmp_path).iterator() as shard:
        got = read(shard, proxy)
        run = shard.stats().run
    assert [rows for rows, _ in got] == expected
    first, *later = [requests for _, requests in got]
    assert first >= BLOCKS
    assert later == [first, first]
    # prefetching the next epoch while this one is still read causes no second miss
    assert (run.cache_misses, run.cache_hits) == (BLOCKS, 2 * BLOCKS)
    assert list(tmp_path.iterdir()) == []


def test_later_job_only_checks_that_files_are_unchanged(
    data: str, proxy: Proxy, executor: str, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {"cache": "disk", "cache_dir": tmp_path, "keep_cache": True, "executor": executor}
    with chain(data, proxy, epochs=1).options(**kept).iterator() as shard:
        ((expected, _),) = read(shard, proxy)
    again = chain(data, proxy, epochs=1).options(**kept)
    proxy.set(None)
    with again.iterator() as shard:
        ((got, _),) = read(shard, proxy)
    assert got == expected
    assert dict(proxy.requests) == {"HEAD": FILES}


@pytest.mark.parametrize("style", STYLES)
def test_blocks_larger_than_the_cache_are_requested_again(
    data: str, proxy: Proxy, style: str, tmp_path: Path
) -> None:
    block_bytes = ROWS // 3 * 8
    pipe = chain(data, proxy, style=style).options(
        executor="threads", cache="disk", cache_dir=tmp_path, cache_limit=BLOCKS * block_bytes // 2
    )
    with pipe.iterator() as shard:
        proxy.set(None)
        epochs = read(shard, proxy)
        run = shard.stats().run
    assert 0 < run.cache_hits < 2 * BLOCKS
    assert epochs[0][1] < epochs[1][1]
    assert [sorted(rows) for rows, _ in epochs] == [list(range(FILES * ROWS))] * 3


_READ = """
import sys, windrow
from tests.io.s3.conftest import options_of
path, endpoint, folder = sys.argv[1:]
ds = windrow.read_parquet(path, storage_options=options_of("s3fs", endpoint), columns=["x"], target_block_bytes=1)
pipe = ds.repeat(1).options(cache="disk", cache_dir=folder, keep_cache=True, executor="threads", progress=False)
with pipe.iterator() as shard:
    print("listed", flush=True)
    sys.stdin.readline()
    print(sum(int(batch["x"].sum()) for batch in shard.iter_batches(10_000)))
    print(shard.stats().run.cache_misses)
"""


def test_processes_of_one_machine_read_each_block_once(data: str, proxy: Proxy, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _READ, data, proxy.endpoint, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen(command, cwd=REPOSITORY, **pipes) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "listed\n"
    told = [reader.communicate("go\n")[0].split() for reader in readers]
    rows = np.arange(FILES * ROWS).sum()
    assert [int(total) for total, _ in told] == [rows, rows]
    assert sum(int(misses) for _, misses in told) == BLOCKS


_DRIVER = """
import sys, time
import ray, windrow
from tests.io.s3.conftest import options_of
address, path, endpoint, folder = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
ds = windrow.read_parquet(path, storage_options=options_of("s3fs", endpoint), columns=["x"], target_block_bytes=1)
pipe = ds.window(blocks_per_window=2).repeat().random_shuffle_each_window(seed=1)
shard = pipe.options(executor="ray", cache="disk", cache_dir=folder).iterator()
next(iter(shard.iter_batches(100)))
print("reading", flush=True)
time.sleep(600)
"""


@pytest.mark.nightly
def test_next_job_deletes_the_cache_of_a_killed_driver(
    ray_local: Any, data: str, proxy: Proxy, tmp_path: Path
) -> None:
    address = ray_local.get_runtime_context().gcs_address
    command = [sys.executable, "-W", "ignore", "-c", _DRIVER, address, data, proxy.endpoint, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert "reading\n" in iter(driver.stdout.readline, "")
        (left,) = tmp_path.iterdir()
        os.kill(driver.pid, signal.SIGKILL)
    assert not left.exists() or any(name.endswith(".block") for name in os.listdir(left))
    # the driver's workers exit a little later, and release their leases only then
    until = time.monotonic() + 60
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        pipe = chain(data, proxy, epochs=2).options(executor="ray", cache="disk", cache_dir=tmp_path)
        assert sorted(row for batch in pipe.iter_batches(10_000) for row in batch["x"].tolist())[-1] > 0
    assert list(tmp_path.iterdir()) == []
