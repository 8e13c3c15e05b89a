"""A file that is replaced or deleted during an epoch raises an error, and none of its rows are delivered."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

import windrow
from tests.faults.proxy import Proxy
from tests.io.files import S3, open_parquet
from windrow.io.catalog.file_source import FileSource
from windrow.io.parquet import verified_files
from windrow.io.parquet.footers import read_footer
from windrow.io.storage.footer_cache import FooterCache

FILES, ROWS = 3, 400
STORES = ["local", "memory", "arrow", "s3fs", "s3 by arrow"]


def content(part: int, shift: int) -> bytes:
    """A file of 400 rows; files with a different shift differ only in their pages."""
    numbers = np.roll(np.arange(part * ROWS, (part + 1) * ROWS).reshape(4, -1), shift, axis=1)
    table = pa.table({"x": numbers.ravel(), "y": numbers.ravel() * (1 - 2 * (shift > 0))})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=ROWS // 4,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    return bytes(sink.getvalue())


@dataclass
class Store:
    """Storage with three files that can be read, replaced and deleted."""

    path: str
    filesystem: Any
    put: Callable[[str, bytes], None]
    remove: Callable[[str], None]

    def open(self, **options: Any) -> FileSource:
        return open_parquet(self.path, filesystem=self.filesystem, target_block_bytes=1, **options)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(verified_files, "_FOOTER_CACHE", FooterCache(64, 2**24))
    made = _store(request.param, request, tmp_path)
    for part in range(FILES):
        made.put(f"{part}.parquet", content(part, 0))
    yield made
    for part in range(FILES):
        made.remove(f"{part}.parquet")


def _store(kind: str, request: pytest.FixtureRequest, directory: Path) -> Store:
    if kind == "memory":
        memory = fsspec.filesystem("memory")
        return Store(
            "/replaced",
            memory,
            lambda name, data: memory.pipe_file(f"/replaced/{name}", data),
            lambda name: memory.rm(f"/replaced/{name}") if memory.exists(f"/replaced/{name}") else None,
        )
    if kind.startswith("s3"):
        s3: S3 = request.getfixturevalue("s3")
        directory = s3.directory / "replaced"
        directory.mkdir(exist_ok=True)
        reader = _arrow_s3(s3)
        if kind == "s3fs":
            reader = pytest.importorskip("s3fs").S3FileSystem(**s3.storage_options)
        return Store("replaced", reader, _replace_in(directory), _remove_from(directory))
    put, remove = _replace_in(directory), _remove_from(directory)
    if kind == "local":
        return Store(str(directory), None, put, remove)
    above = pa_fs.SubTreeFileSystem(str(directory.parent), pa_fs.LocalFileSystem())
    return Store(directory.name, above, put, remove)


def _arrow_s3(s3: S3) -> Any:
    return pa_fs.S3FileSystem(
        access_key=s3.key,
        secret_key=s3.secret,
        endpoint_override=s3.endpoint.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
    )


def _replace_in(directory: Path) -> Callable[[str, bytes], None]:
    def put(name: str, data: bytes) -> None:
        (directory / "new").write_bytes(data)
        os.replace(directory / "new", directory / name)

    return put


def _remove_from(directory: Path) -> Callable[[str], None]:
    return lambda name: (directory / name).unlink(missing_ok=True)


def test_files_of_these_tests_differ_only_in_pages(tmp_path: Path) -> None:
    put = _replace_in(tmp_path)
    put("a", content(1, 0))
    put("b", content(1, 3))
    source = open_parquet(tmp_path / "a")
    footers = [read_footer(source.files, name, name) for name in ("a", "b")]
    assert footers[0].digest == footers[1].digest
    assert footers[0].version.size_bytes == footers[1].version.size_bytes
    assert footers[0].version.stamp != footers[1].version.stamp


@pytest.mark.parametrize("fresh", [False, True])
def test_replaced_file_is_detected(store: Store, fresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store.open()
    addresses = source.addresses(range(12))
    for address in addresses[:6]:
        source.reader.read(address)
    store.put("1.parquet", content(1, 3))
    if fresh:  # like a new worker process
        monkeypatch.setattr(verified_files, "_FOOTER_CACHE", FooterCache(64, 2**24))
    for address in addresses[4:8]:
        with pytest.raises(
            windrow.SourceError, match=r"1\.parquet, row group \d: the file has changed since"
        ):
            list(source.reader.parts(address))
        with pytest.raises(
            windrow.SourceError, match=r"1\.parquet, row group \d: the file has changed since"
        ):
            source.reader.read(address)
    for address in [*addresses[:4], *addresses[8:]]:
        assert source.reader.read(address).num_rows == 100
    assert store.open().fingerprint == source.fingerprint


def test_deleted_file_is_detected(store: Store) -> None:
    source = store.open()
    addresses = source.addresses(range(12))
    for address in addresses[:6]:
        source.reader.read(address)
    store.remove("1.parquet")
    for address in addresses[4:8]:
        with pytest.raises(windrow.SourceError, match=r"1\.parquet, row group \d: the file is missing"):
            source.reader.read(address)


@pytest.mark.parametrize("saved", [False, True])
def test_no_epoch_mixes_old_and_new_rows(store: Store, tmp_path: Path, saved: bool) -> None:
    options: dict[str, Any] = {"filesystem": store.filesystem, "target_block_bytes": 1}
    ds = windrow.read_parquet(store.path, **options)
    if saved:
        ds.save_manifest(tmp_path / "_manifest")
        ds = windrow.read_parquet(store.path, manifest=tmp_path / "_manifest", **options)
        ds.take_batch(3 * ROWS)  # reads every file before the change
    pipe = ds.window(blocks_per_window=1).repeat(3).random_shuffle_each_window(seed=2)
    rows: list[np.ndarray[Any, Any]] = []
    with pipe.options(executor="threads").iterator() as shard:
        batches = (batch for epoch in shard.iter_epochs() for batch in epoch.iter_batches(50))
        rows.append(next(batches)["y"])
        for part in range(FILES):
            store.put(f"{part}.parquet", content(part, 3))
        with pytest.raises(
            windrow.SourceError, match=r"\d\.parquet, row group \d: the file has changed since"
        ):
            rows.extend(batch["y"] for batch in batches)
    # new rows have no y above 0
    assert (np.concatenate(rows) >= 0).all()


def test_file_replaced_while_a_block_is_read(store: Store) -> None:
    source = store.open()
    address = source.addresses([5])[0]
    if store.filesystem is None:
        parts = source.reader.parts(address)
        next(parts)
        store.put("1.parquet", content(1, 3))
        with pytest.raises(windrow.SourceError, match=r"row group 1: the file has changed since"):
            next(parts)
        return
    source.reader.read(address)
    with verified_files.open_block(source.files, address.locator[0], address.origin) as block:
        block.fetch([1], ["x"])
        store.put("1.parquet", content(1, 3))
        block.fetch([1], ["y"])
        with pytest.raises(windrow.SourceError, match=r"row group 1: the file has changed since"):
            block.check()


def test_copies_on_several_machines_are_accepted(tmp_path: Path) -> None:
    """File versions are compared on the machine where they were taken, elsewhere with those of the first read."""
    put = _replace_in(tmp_path)
    put("0.parquet", content(0, 0))
    source = open_parquet(tmp_path)
    put("0.parquet", content(0, 0))
    elsewhere = replace(source, files=replace(source.files, machine="another")).reader
    address = source.addresses([0])[0]
    assert elsewhere.read(address).num_rows == ROWS // 4
    put("0.parquet", content(0, 0))
    with pytest.raises(windrow.SourceError, match="the file has changed since"):
        elsewhere.read(address)


def test_reopened_manifest_accepts_copies(tmp_path: Path) -> None:
    """Copies with the same content are accepted, whatever file versions were seen before."""
    put = _replace_in(tmp_path)
    put("0.parquet", content(0, 0))
    manifest = open_parquet(tmp_path).manifest
    first = open_parquet(tmp_path, manifest=manifest)
    first.reader.read(first.addresses([0])[0])
    put("0.parquet", content(0, 0))
    again = open_parquet(tmp_path, manifest=manifest)
    assert again.reader.read(again.addresses([0])[0]).num_rows == ROWS // 4
    with pytest.raises(windrow.SourceError, match="the file has changed since"):
        first.reader.read(first.addresses([0])[0])


def test_both_s3_clients_compare_the_same_versions(s3: S3, bucket: str, proxy: Proxy, client: Any) -> None:
    """The version of a file is not taken from a client's cached listing."""
    source = open_parquet(f"{bucket}/train", filesystem=client)
    before = source.files.stamp("0.parquet")
    assert source.files.stamp("0.parquet") == before
    path = s3.directory / bucket / "train" / "0.parquet"
    path.write_bytes(path.read_bytes() + b"more")
    assert source.files.stamp("0.parquet") != before
