"""Every class of cause has a text of its own, and only bytes that contradict themselves are called corrupt."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.formats.stored import CountingStore
from windrow.core.source import CorruptBlockError
from windrow.io.storage.error_causes import exceeds_arrow, find_cause, is_overflow, shows_corruption

OVERFLOWS = [
    pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes, have 3000000000"),
    pa.ArrowInvalid("offset overflow while concatenating arrays, consider casting input"),
    pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs"),
    pa.ArrowInvalid("BinaryBuilder cannot reserve capacity larger than 2147483646 bytes"),
]


@pytest.mark.parametrize("error", OVERFLOWS)
def test_columns_beyond_32_bit_offsets_are_too_large(error: Exception) -> None:
    assert is_overflow(error)
    assert exceeds_arrow(error)
    assert not shows_corruption(error)
    cause = find_cause(error, local=True, filters=False)
    assert cause.what == "is too large for one Arrow array"
    assert "large_string" in cause.fix


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (pa.ArrowInvalid("Column cannot have more than one dictionary"), "cannot be read"),
        (OSError("Corrupt snappy compressed data."), "cannot be read"),
        (pa.ArrowMemoryError("malloc of size 9 failed"), "does not fit into memory"),
        (pa.ArrowNotImplementedError("no codec"), "holds what cannot be read here"),
        (OSError("Not yet implemented: Unsupported encoding."), "holds what cannot be read here"),
        (FileNotFoundError(errno.ENOENT, "gone"), "the file is missing"),
        (PermissionError(errno.EACCES, "denied"), "no read permission"),
        (OSError(errno.EMFILE, "Too many open files"), "too many files are open"),
        (OSError(errno.EIO, "Input/output error"), "reading failed"),
        (EOFError("end"), "reading failed"),
        (KeyError("x"), "cannot be read"),
        # decoders quote values
        (pa.ArrowInvalid("CSV conversion error to int64: invalid value 'forbidden'"), "cannot be read"),
    ],
)
def test_causes_of_local_files(error: Exception, what: str) -> None:
    cause = find_cause(error, local=True, filters=False)
    assert cause.what == what
    contradicts = shows_corruption(error)
    assert ("it is corrupt" in cause.fix) == contradicts
    assert contradicts == (str(error).startswith(("Co", "CSV")))


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (OSError("AWS Error ACCESS_DENIED during GetObject operation"), "no read permission"),
        (OSError("AWS Error NO_SUCH_KEY during GetObject operation"), "the file is missing"),
        (OSError("something of the filesystem"), "reading failed"),
        (RuntimeError("something of the client"), "reading failed"),
        (pa.ArrowInvalid("bytes"), "cannot be read"),
    ],
)
def test_causes_of_remote_files(error: Exception, what: str) -> None:
    assert find_cause(error, local=False, filters=False).what == what


def test_a_filter_can_fail_on_intact_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": ["1", "x"]}), tmp_path / "a.parquet")
    ds = windrow.read_parquet(tmp_path, filter=pc.field("s").cast(pa.int64()) == 1)
    with pytest.raises(
        windrow.SourceError, match=r"a\.parquet.* filter= fails on its rows.*check that"
    ) as raised:
        ds.take()
    assert "corrupt" not in str(raised.value)
    cause = find_cause(pa.ArrowNotImplementedError("no kernel"), local=True, filters=True)
    assert "filter= is not defined for its types" in cause.what


def test_removed_file_is_missing_and_not_corrupt(tmp_path: Path) -> None:
    for write, read in (("write_parquet", windrow.read_parquet), ("write_arrow", windrow.read_arrow)):
        getattr(windrow.range(9), write)(tmp_path / write)
        ds: Any = read(tmp_path / write)
        for path in (tmp_path / write).glob("part-*"):
            path.unlink()
        with pytest.raises(windrow.SourceError, match="the file is missing") as raised:
            ds.take()
        assert "corrupt" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_is_forbidden(tmp_path: Path) -> None:
    windrow.range(9).write_parquet(tmp_path / "data")
    (path,) = (tmp_path / "data").glob("part-*")
    path.chmod(0)
    with pytest.raises(windrow.SourceError, match="no read permission"):
        windrow.read_parquet(path)


def test_store_that_refuses_says_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore()
    store.pipe({"/d/a.csv": b"x\n1\n"})
    ds = windrow.read_csv("/d", filesystem=store)

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(type(store), "cat_file", refuse)
    monkeypatch.setattr(type(store), "cat_ranges", refuse, raising=False)
    with pytest.raises(windrow.SourceError, match=r"no read permission.*grant read permission"):
        ds.take()


def test_archive_of_an_unknown_method_is_unsupported(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(4))
    stored = bytearray((tmp_path / "a.npz").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = stored.index(signature) + offset
        stored[at : at + 2] = (97).to_bytes(2, "little")
    (tmp_path / "a.npz").write_bytes(stored)
    with (
        pytest.raises((NotImplementedError, zipfile.BadZipFile)),
        zipfile.ZipFile(tmp_path / "a.npz") as archive,
    ):
        archive.read("x.npy")
    with pytest.raises(windrow.SourceError, match=r"a\.npz .*(not supported|cannot be read here)") as raised:
        windrow.read_numpy(tmp_path / "a.npz")
    assert "corrupt" not in str(raised.value)


def test_image_without_a_decoder_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (3, 3)).save(tmp_path / "a.png")
    ds = windrow.read_images(tmp_path)

    def fail(*_: Any) -> Any:
        raise OSError("decoder zip not available")

    monkeypatch.setattr(image, "_getdecoder", fail)
    with pytest.raises(
        windrow.SourceError, match=r"a\.png holds an image that this Pillow cannot decode"
    ) as raised:
        ds.take()
    assert not isinstance(raised.value, CorruptBlockError)


def test_staged_file_is_missing_or_corrupt(tmp_path: Path) -> None:
    cases: list[tuple[Callable[[Path], object], str]] = [
        (lambda path: path.unlink(), r"is missing\. Staged rows last as long as"),
        (lambda path: path.write_bytes(b"no stream at all"), "it is corrupt: make the dataset again"),
    ]
    for damage, expected in cases:
        ds = windrow.from_generator(lambda: iter([{"x": [1, 2]}]), cache_dir=tmp_path)
        (path,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 100)
        damage(path)
        with pytest.raises(windrow.SourceError, match=expected):
            ds.take()
        del ds
        path.unlink(missing_ok=True)


def test_refused_listing_asks_for_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore()
    store.pipe({"/d/a.csv": b"x\n1\n"})

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("AWS Error ACCESS_DENIED during ListObjectsV2 operation")

    monkeypatch.setattr(type(store), "info", refuse)
    with pytest.raises(windrow.SourceError, match=r"cannot be listed: .*grant the permission to list it"):
        windrow.read_csv("/d", filesystem=store)
