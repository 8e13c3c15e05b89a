from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.io.files import open_parquet, read_all, write
from windrow.core.errors import SourceError
from windrow.io.catalog.blocks import cut_blocks, cut_row_groups, weigh_blocks
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.manifest import (
    Manifest,
    VariableBytes,
    _digest,
    load_manifest,
    narrowed,
    save_manifest,
)


def synthetic(fragments: int, row_groups_each: int) -> Manifest:
    """A manifest of files that do not exist, with three columns of text."""
    total = fragments * row_groups_each
    draws = np.random.Generator(np.random.PCG64(0))
    texts = [pa.field(f"s{place}", pa.string()) for place in range(3)]
    sizes = [narrowed(draws.integers(10**6, 10**7, total)) for _ in range(8)]
    return Manifest(
        root="/data",
        schema=pa.schema([pa.field("n", pa.int64()), *texts]),
        paths=pa.array([f"part-{place:07}.parquet" for place in range(fragments)], pa.large_string()),
        file_bytes=np.full(fragments, 10**8),
        footer_hashes=draws.integers(0, 256, (fragments, 16)).astype(np.uint8),
        row_group_ends=np.arange(1, fragments + 1) * row_groups_each,
        rows=sizes[0],
        encoded_bytes=sizes[1],
        variable={f"s{place}": VariableBytes(sizes[2 + place], sizes[5 + place]) for place in range(3)},
        null_counts={"n": 0, "s0": 1, "s1": None, "s2": 0},
    )


def held_bytes(manifest: Manifest) -> int:
    arrays: list[Any] = [manifest.file_bytes, manifest.footer_hashes, manifest.row_group_ends, manifest.rows]
    arrays += [manifest.encoded_bytes]
    arrays += [part for sizes in manifest.variable.values() for part in (sizes.encoded, sizes.memory)]
    return sum(array.nbytes for array in arrays) + manifest.paths.nbytes


def test_manifest_of_a_million_row_groups_is_small(tmp_path: Path) -> None:
    manifest = synthetic(100_000, 10)
    assert manifest.row_groups == 1_000_000
    assert held_bytes(manifest) < 60e6
    save_manifest(manifest, tmp_path / "m.npz")
    assert (tmp_path / "m.npz").stat().st_size < 60e6
    loaded = load_manifest(tmp_path / "m.npz")
    assert loaded.fingerprint == manifest.fingerprint
    assert held_bytes(loaded) == held_bytes(manifest)
    cuts = cut_blocks(cut_row_groups(loaded, 1, None), np.ones(loaded.fragments, np.bool_), 20 * 10**6)
    table = weigh_blocks(
        loaded, cuts, list(loaded.schema), Partitions(pa.schema([])), rows_known=True, rows_bounded=True
    )
    assert int(table.rows.sum()) == int(manifest.rows.sum(dtype=np.int64))
    assert 100_000 < len(table.rows) < 1_000_000


def test_saved_manifest_loads_unchanged(tmp_path: Path) -> None:
    write(tmp_path / "d" / "k=1" / "a.parquet", pa.table({"n": [1, None], "é\n": ["x", "y"]}))
    write(tmp_path / "d" / "k=2" / "b ä.parquet", pa.table({"n": [3], "é\n": ["z"]}))
    source = open_parquet(tmp_path / "d")
    source.save_manifest(tmp_path / "saved manifest")
    loaded = load_manifest(tmp_path / "saved manifest")
    assert loaded.fingerprint == source.fingerprint
    assert loaded.schema.equals(source.manifest.schema, check_metadata=True)
    assert loaded.paths.to_pylist() == ["k=1/a.parquet", "k=2/b ä.parquet"]
    assert loaded.root == str(tmp_path / "d")
    assert loaded.null_counts == {"n": 1, "é\n": 0}
    assert read_all(open_parquet(None, manifest=loaded)).equals(read_all(source))


def test_manifest_of_an_older_version_loads_and_reads(tmp_path: Path) -> None:
    """Version 1 has no schemas by file: it was written by versions that demanded files that agree."""
    for number in range(3):
        write(tmp_path / "d" / f"{number}.parquet", pa.table({"n": [number, None], "s": ["x", "y"]}))
    source = open_parquet(tmp_path / "d")
    source.save_manifest(tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz", allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files if name != "digest"}
    head = json.loads(arrays["head"].tobytes())
    assert head["version"] == 1
    # nor did it know what came later
    older = {name: value for name, value in head.items() if name not in ("schemas", "codecs")}
    arrays["head"] = np.frombuffer(json.dumps(older).encode(), np.uint8)
    with (tmp_path / "older.npz").open("wb") as file:
        np.savez(file, digest=_digest(arrays), **arrays)
    loaded = load_manifest(tmp_path / "older.npz")
    assert (loaded.schemas, loaded.schema_numbers, loaded.codecs) == ((), None, {})
    assert loaded.fingerprint == source.fingerprint
    again = open_parquet(None, manifest=tmp_path / "older.npz")
    assert again.schema_changes == ()
    assert again.identity() == source.identity()
    assert read_all(again).equals(read_all(source))
    given = open_parquet(None, manifest=tmp_path / "older.npz", schema=pa.schema([("n", pa.float64())]))
    assert read_all(given).to_pydict() == {"n": [0.0, None, 1.0, None, 2.0, None]}


def test_manifest_file_contains_no_pickled_objects(tmp_path: Path) -> None:
    save_manifest(synthetic(2, 2), tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz", allow_pickle=False) as stored:
        assert json.loads(stored["head"].tobytes())["format"] == "windrow manifest"
        assert not any(stored[name].dtype.hasobject for name in stored.files)


@pytest.mark.parametrize("corruption", ["truncate", "flip", "text", "empty", "foreign", "newer", "pickle"])
def test_other_files_than_manifests_raise(tmp_path: Path, corruption: str) -> None:
    path = tmp_path / "m.npz"
    save_manifest(synthetic(50, 20), path)
    content = bytearray(path.read_bytes())
    if corruption == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif corruption == "flip":
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    elif corruption == "text":
        path.write_text("hello")
    elif corruption == "empty":
        path.write_bytes(b"")
    elif corruption == "foreign":
        np.savez(path, x=np.arange(3))
    elif corruption == "pickle":
        np.savez(path, allow_pickle=True, digest=np.array([None]))
    else:
        _rewrite_head(path, version=99)
    with pytest.raises(SourceError, match=r"m\.npz.*make it again with save_manifest"):
        load_manifest(path)


def _rewrite_head(path: Path, **changes: Any) -> None:
    with np.load(path) as stored:
        arrays = dict(stored)
    head = {**json.loads(arrays["head"].tobytes()), **changes}
    np.savez(path, **{**arrays, "head": np.frombuffer(json.dumps(head).encode(), np.uint8)})


def test_missing_manifest_or_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no manifest at .*none\.npz"):
        load_manifest(tmp_path / "none.npz")
    with pytest.raises(SourceError, match=r"cannot be written to .*no/m\.npz"):
        save_manifest(synthetic(1, 1), tmp_path / "no" / "m.npz")


def test_fingerprint_depends_on_paths_sizes_and_footers_only() -> None:
    base = synthetic(3, 2)
    same = {**vars(base), "root": "s3://elsewhere", "null_counts": {}}
    same.pop("fingerprint", None)
    assert Manifest(**same).fingerprint == base.fingerprint
    for change in (
        {"paths": pa.array(["a", "b", "c"], pa.large_string())},
        {"file_bytes": base.file_bytes + 1},
        {"footer_hashes": base.footer_hashes + np.uint8(1)},
    ):
        assert Manifest(**{**same, **change}).fingerprint != base.fingerprint


def test_fingerprint_is_stable() -> None:
    """Checkpoints contain fingerprints, so these must never change."""
    manifest = Manifest(
        root="",
        schema=pa.schema([]),
        paths=pa.array(["a.parquet", "k=ä/b.parquet"], pa.large_string()),
        file_bytes=np.array([10, 2**40]),
        footer_hashes=np.arange(32, dtype=np.uint8).reshape(2, 16),
        row_group_ends=np.array([1, 2]),
        rows=narrowed([1, 2]),
        encoded_bytes=narrowed([3, 4]),
        variable={},
        null_counts={},
    )
    assert manifest.fingerprint == "75b39fb41b42f36343bf5678c827fa390549a4baf012059f0316529d5aa98895"
    sliced = {**vars(manifest), "paths": pa.array(["x", "a.parquet", "k=ä/b.parquet"], pa.large_string())[1:]}
    sliced.pop("fingerprint")
    assert Manifest(**sliced).fingerprint == manifest.fingerprint


def test_codecs_are_those_of_the_footers_and_older_manifests_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"x": np.arange(5_000), "y": np.arange(5_000) % 7})
    write(tmp_path / "d" / "a.parquet", table, compression={"x": "zstd", "y": "none"}, row_group_size=1_000)
    write(tmp_path / "d" / "b.parquet", table, compression="snappy")
    manifest = open_parquet(tmp_path / "d").manifest
    assert set(manifest.codecs) == {"zstd", "uncompressed", "snappy"}
    chunk = pq.read_metadata(tmp_path / "d" / "a.parquet").row_group(0).column(0)
    assert manifest.codecs["zstd"] == chunk.total_compressed_size
    save_manifest(manifest, tmp_path / "m.npz")
    loaded = load_manifest(tmp_path / "m.npz")
    assert (loaded.codecs, loaded.fingerprint) == (manifest.codecs, manifest.fingerprint)
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda head: dumps({n: v for n, v in head.items() if n != "codecs"}))
    save_manifest(manifest, tmp_path / "m.npz")
    loaded = load_manifest(tmp_path / "m.npz")
    assert (loaded.codecs, loaded.fingerprint) == ({}, manifest.fingerprint)


def test_narrowed_uses_the_smallest_integer_type() -> None:
    assert narrowed([]).dtype == np.uint8
    assert narrowed([255]).dtype == np.uint8
    assert narrowed([2**32]).dtype == np.uint64
