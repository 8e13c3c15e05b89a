"""Faults between a client and object storage: rows are correct, or one error describes all attempts."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from tests.end_to_end.reading import read_epochs
from tests.faults.proxy import BROKEN_RESPONSES, ERROR_RESPONSES, Fault, Proxy
from tests.io.files import S3, open_parquet
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.storage.retries import Retries

pytestmark = pytest.mark.timeout(120)

QUICK = Retries(seconds=60, first_wait_seconds=0.01, max_wait_seconds=0.05)
FOR_GOOD = ("no such key", "denied")
PASSING = [kind for kind in (*ERROR_RESPONSES, *BROKEN_RESPONSES) if kind not in FOR_GOOD]


def read(path: str | Path, filesystem: Any = None, retries: Retries = QUICK) -> pa.Table:
    """Read two shuffled epochs of a complete pipeline on threads."""
    source = open_parquet(path, filesystem=filesystem, target_block_bytes=6_000, retries=retries)
    pipe = (
        Dataset(LogicalPlan(source)).window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=1)
    )
    with pipe.options(executor="threads").iterator() as shard:
        return pa.concat_tables(batch for epoch in read_epochs(shard, 97) for batch in epoch)


@pytest.fixture
def undisturbed(s3: S3, bucket: str) -> pa.Table:
    return read(s3.directory / bucket / "train")


@pytest.mark.parametrize("kind", PASSING)
def test_transient_faults_change_nothing(
    bucket: str, proxy: Proxy, client: Any, undisturbed: pa.Table, kind: str
) -> None:
    proxy.set(Fault(kind, share=0.1 if kind == "stall" else 0.5, seed=7))
    assert read(f"{bucket}/train", client).equals(undisturbed)
    assert proxy.struck > 0


def test_faults_while_reading_footers_and_filtering(
    bucket: str, proxy: Proxy, client: Any, undisturbed: pa.Table
) -> None:
    import pyarrow.compute as pc

    proxy.set(Fault("short", times=2, methods=("GET",), path=".parquet"))
    source = open_parquet(f"{bucket}/train", filesystem=client, filter=pc.field("x") >= 1_000, retries=QUICK)
    tables = [source.reader.read(address) for address in source.addresses(range(12))]
    assert pa.concat_tables(tables).column("x").to_pylist() == list(range(1_000, 1_200))
    assert proxy.struck > 0


@pytest.mark.parametrize("kind", ["slow down", "reset", "short"])
def test_permanent_faults_are_reported_with_every_attempt(
    bucket: str, proxy: Proxy, client: Any, kind: str
) -> None:
    # the budget outlasts a timeout of the client, which a busy machine alone may cause
    retries = Retries(seconds=4.0, first_wait_seconds=0.1)
    source = open_parquet(f"{bucket}/train", filesystem=client, retries=retries)
    proxy.set(Fault(kind, times=float("inf"), methods=("GET",), path="1.parquet"))
    begin = time.monotonic()
    # the first row group of each file
    for place, address in enumerate(source.addresses([0, 4, 8])):
        if place != 1:
            assert source.reader.read(address).num_rows == 100
            continue
        with pytest.raises(windrow.SourceError, match=r"(?s)train/1\.parquet.*retry_seconds") as caught:
            source.reader.read(address)
    text = str(caught.value)
    assert re.search(r"\d+ attempts failed in \d+\.\d s, with a retry budget of 4 s:", text)
    assert len(re.findall(r"\n  after \d+\.\d s: \w+", text)) >= 2
    assert S3.secret not in text
    # far below the time without a retry limit
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("kind", FOR_GOOD)
def test_permanent_errors_fail_without_retries(bucket: str, proxy: Proxy, client: Any, kind: str) -> None:
    source = open_parquet(f"{bucket}/train", filesystem=client, retries=QUICK)
    proxy.set(Fault(kind, times=float("inf"), path="1.parquet"))
    message = r"(?s)train/1\.parquet.*" + (
        "missing" if kind == "no such key" else "no read permission|DENIED"
    )
    with pytest.raises(windrow.SourceError, match=message) as caught:
        source.reader.read(source.addresses([4])[0])
    assert "attempts" not in str(caught.value)
    assert proxy.requests["HEAD"] + proxy.requests["GET"] <= 6


def test_missing_file_is_not_retried(bucket: str, proxy: Proxy, client: Any) -> None:
    source = open_parquet(f"{bucket}/train", filesystem=client, retries=QUICK)
    address = source.addresses([4])[0]
    source.reader.read(address)
    proxy.set(Fault("no such key", methods=("GET",), path="1.parquet"))
    with pytest.raises(windrow.SourceError, match=r"1\.parquet.*(missing|RESOURCE_NOT_FOUND|NO_SUCH_KEY)"):
        source.reader.read(address)
    assert (proxy.requests["GET"], proxy.struck) == (1, 1)


@pytest.mark.parametrize("pattern", ["train", "*/*.parquet", "**/*.parquet"])
def test_listing_is_complete_or_an_error(bucket: str, proxy: Proxy, client: Any, pattern: str) -> None:
    proxy.set(Fault("internal", times=2, methods=("GET",), path="list-type"))
    source = open_parquet(f"{bucket}/{pattern}", filesystem=client, retries=QUICK)
    assert source.manifest.paths.to_pylist() == (
        [f"{part}.parquet" for part in range(3)]
        if pattern == "train"
        else [f"train/{part}.parquet" for part in range(3)]
    )
    proxy.set(Fault("unavailable", times=float("inf"), methods=("GET",), path="list-type"))
    with pytest.raises(windrow.SourceError, match=r"(?s)cannot be listed: \d+ attempts failed in"):
        open_parquet(f"{bucket}/{pattern}", filesystem=client, retries=Retries(0.5, 0.1))


def test_each_block_takes_one_version_check_and_no_other_request(
    bucket: str, proxy: Proxy, client: Any
) -> None:
    source = open_parquet(f"{bucket}/train", filesystem=client, target_block_bytes=1)
    addresses = source.addresses(range(12))
    for address in addresses:
        source.reader.read(address)
    proxy.set(None)
    for address in addresses:
        source.reader.read(address)
    assert dict(proxy.requests) == {"HEAD": 12, "GET": 12}
