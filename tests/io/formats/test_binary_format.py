"""read_binary_files: each file is a row, and no file is requested before it is read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.files import S3
from tests.io.formats.stored import CountingStore, read_blocks, same_order_as_parquet, source_of
from tests.laws.examples import examples


def write_files(folder: Path, count: int, size: int = 5) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        path = folder / f"k={number % 2}" / f"{number:06}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number % 256]) * size)
        rows.append({"bytes": path.read_bytes(), "k": number % 2, "path": str(path)})
    return sorted(rows, key=lambda row: str(row["path"]))


@examples(40)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.integers(1, 100))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], block_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("binary")
    store = CountingStore()
    for number, content in enumerate(contents):
        (folder / f"{number:03}").write_bytes(content)
        store.pipe_file(f"/d/{number:03}", content)
    local = windrow.read_binary_files(folder, target_block_bytes=block_bytes)
    remote = windrow.read_binary_files("/d", filesystem=store, target_block_bytes=block_bytes)
    for ds in (local, remote):
        assert read_blocks(ds).column("bytes").to_pylist() == contents
        assert source_of(ds).null_counts == {"bytes": 0}
        assert source_of(ds).blocks.memory_bytes.sum() >= sum(map(len, contents))
    assert source_of(local).fingerprint == source_of(remote).fingerprint


def test_paths_partitions_and_directories(tmp_path: Path) -> None:
    rows = write_files(tmp_path, 6)
    ds = windrow.read_binary_files(tmp_path, include_paths=True)
    assert ds.take() == rows
    named = windrow.read_binary_files(
        tmp_path, partitioning=None, directory_column="of", columns=["of", "bytes"]
    )
    assert named.take(1) == [{"of": "k=0", "bytes": rows[0]["bytes"]}]
    at_root = windrow.read_binary_files(
        tmp_path / "k=0" / "000000.bin", partitioning=None, directory_column="of"
    )
    assert at_root.take() == [{"bytes": rows[0]["bytes"], "of": "k=0"}]
    for paths in (tmp_path / "k=0", tmp_path / "k=0" / "*.bin", f"{tmp_path}/k=0/"):
        one = windrow.read_binary_files(paths, partitioning=None, directory_column="of")
        assert {row["of"] for row in one.take()} == {"k=0"}, paths
        assert one.filter(pc.field("of") == "k=0").count() == one.count()
    chosen = pc.field("of") == "k=0"
    few = windrow.read_binary_files(tmp_path / "k=0", partitioning=None, directory_column="of", filter=chosen)
    assert few.count() == one.count() > 0
    for name in ("k", "bytes", ""):
        with pytest.raises(windrow.PlanError, match="directory_column="):
            windrow.read_binary_files(tmp_path, directory_column=name)


def test_filters(tmp_path: Path) -> None:
    rows = write_files(tmp_path, 10)
    path = rows[2]["path"]
    ds = windrow.read_binary_files(tmp_path, include_paths=True, filter=pc.field("path") != path)
    assert source_of(ds).blocks.rows_known
    assert ds.take() == [row for row in rows if row["path"] != path]
    ds = windrow.read_binary_files(tmp_path, filter=pc.field("bytes") == rows[3]["bytes"], columns=["k"])
    assert ds.take() == [{"k": rows[3]["k"]}]
    assert not source_of(ds).blocks.rows_known


def test_row_id_is_the_rank_of_the_file(tmp_path: Path) -> None:
    rows = write_files(tmp_path, 9)
    ds = windrow.read_binary_files(tmp_path, target_block_bytes=12).options(row_id_column="id")
    assert ds.num_blocks() == 5
    origins = ds.row_lineage([row["id"] for row in ds.take()])
    assert [tuple(origin) for origin in origins] == [(row["path"], 0, 0) for row in rows]
    pipe = ds.window(blocks_per_window=2).random_shuffle_each_window(seed=3)
    read = list(pipe.iter_rows())
    assert [origin.path for origin in pipe.epoch_lineage(0, 0, 9)] == [
        rows[row["id"]]["path"] for row in read
    ]
    assert [rows[row["id"]]["bytes"] for row in read] == [row["bytes"] for row in read]


def test_order_equals_that_of_parquet(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    write_files(tmp_path / "files", 40)
    ds = windrow.read_binary_files(tmp_path / "files", target_block_bytes=35, include_paths=True)
    assert source_of(ds).blocks.rows.tolist() == [7] * 5 + [5]
    same_order_as_parquet(ds, tmp_path)


def test_only_a_listing_is_requested() -> None:
    store = CountingStore()
    store.pipe({f"/d/{number:05}": b"x" * (number % 7) for number in range(2000)})
    store.forget()
    ds = windrow.read_binary_files("/d", filesystem=store, columns=["bytes"])
    # the directory, and the first file, to check that its stat agrees with the listing
    assert (store.looks, store.reads) == (2, 0)
    assert ds.count() == 2000
    store.forget()
    assert sum(len(row["bytes"]) for row in ds.iter_rows()) == sum(number % 7 for number in range(2000))
    assert store.looks == 2000, "each is looked at once, when it has been read"
    assert store.reads == sum(number % 7 > 0 for number in range(2000))
    store.forget()
    windrow.read_binary_files("/d", filesystem=store, include_paths=True, columns=["path"]).take(2000)
    assert (store.looks, store.reads) == (2, 0)


def test_listing_without_versions_requests_each_file() -> None:
    class Vague(CountingStore):
        def find(self, path: str, **options: Any) -> Any:
            found = super().find(path, **options)
            return {name: {**info, "created": None} for name, info in found.items()}

    store = Vague()
    store.pipe({f"/d/{number:05}": b"x" for number in range(20)})
    store.forget()
    ds = windrow.read_binary_files("/d", filesystem=store)
    assert store.looks == 1 + 1 + 20
    assert len(ds.take(50)) == 20


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("local", [False, True])
def test_replaced_file_raises(tmp_path: Path, local: bool, saved: bool) -> None:
    store = None if local else CountingStore()

    def put(name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content) if store is None else store.pipe_file(f"/d/{name}", content)

    for name in ("a", "b", "c"):
        put(name, b"one")
    place = {"paths": str(tmp_path)} if local else {"paths": "/d", "filesystem": store}
    ds = windrow.read_binary_files(**place)
    if saved:
        manifest = tmp_path.parent / f"{tmp_path.name}.manifest"
        ds.save_manifest(manifest)
        ds = windrow.read_binary_files(**place, manifest=manifest)
    assert len(ds.take()) == 3
    time.sleep(0.01)
    # a saved manifest contains only sizes
    put("b", b"other" if saved else b"two")
    with pytest.raises(windrow.SourceError, match=r"[\\/]b: the file has changed since it was listed"):
        ds.take()


def test_missing_file_raises(tmp_path: Path) -> None:
    rows = write_files(tmp_path, 5)
    ds = windrow.read_binary_files(tmp_path)
    Path(rows[1]["path"]).unlink()
    with pytest.raises(windrow.SourceError, match=f"{rows[1]['path']}: the file is missing"):
        ds.take()


def test_large_file_is_read_in_several_requests(tmp_path: Path) -> None:
    content = bytes(range(256)) * 2**17  # 32 MiB: two requests to object storage
    (tmp_path / "large").write_bytes(content)
    assert windrow.read_binary_files(tmp_path).take()[0]["bytes"] == content
    store = CountingStore()
    store.pipe_file("/large", content)
    assert windrow.read_binary_files("/large", filesystem=store).take()[0]["bytes"] == content
    assert store.reads == 2


def test_files_on_s3_are_read_and_changes_raise(s3: S3) -> None:
    bucket = s3.directory / "files"
    bucket.mkdir(exist_ok=True)
    for number in range(30):
        (bucket / f"{number:02}").write_bytes(b"x" * number)
    ds = windrow.read_binary_files("s3://files", storage_options=s3.storage_options, include_paths=True)
    rows = ds.take(100)
    assert [len(row["bytes"]) for row in rows] == list(range(30))
    assert rows[3]["path"] == "s3://files/03"
    (bucket / "05").write_bytes(b"y" * 5)
    with pytest.raises(windrow.SourceError, match=r"s3://files/05.*has changed"):
        ds.take(100)


@pytest.mark.nightly
def test_a_hundred_thousand_files(tmp_path: Path) -> None:
    write_files(tmp_path, 100_000)
    ds = windrow.read_binary_files(tmp_path)
    assert ds.count() == 100_000
    pipe = ds.window().random_shuffle_each_window(seed=1)
    assert sum(len(batch["bytes"]) for batch in pipe.iter_batches(batch_size=1000)) == 100_000


def test_block_bytes_equal_file_sizes(tmp_path: Path) -> None:
    write_files(tmp_path, 10, size=100)
    blocks = source_of(windrow.read_binary_files(tmp_path, columns=["bytes"], target_block_bytes=400)).blocks
    assert blocks.rows.tolist() == [4, 4, 2]
    assert blocks.memory_bytes.tolist() == [400, 400, 200]
    with_paths = source_of(windrow.read_binary_files(tmp_path, include_paths=True, columns=["path"])).blocks
    texts = sum(len(f"{tmp_path}/k=0/000000.bin") for _ in range(10))
    assert with_paths.memory_bytes.sum() == texts + 4 * 10
    assert (
        pa.large_binary() == source_of(windrow.read_binary_files(tmp_path, columns=["bytes"])).schema[0].type
    )


def test_s3_listing_has_sizes_and_versions(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    bucket = s3.directory / "listed"
    bucket.mkdir(exist_ok=True)
    for number in range(25):
        (bucket / f"{number:02}").write_bytes(b"x")
    asked: list[str] = []
    call = s3fs.S3FileSystem._call_s3

    async def counted(self: Any, method: str, *args: Any, **options: Any) -> Any:
        asked.append(method)
        return await call(self, method, *args, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    windrow.read_binary_files("s3://listed", storage_options=s3.storage_options)
    assert asked.count("head_object") <= 2
    assert asked.count("get_object") == 0
