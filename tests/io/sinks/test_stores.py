"""Files appear complete or not at all, on every filesystem."""

from __future__ import annotations

import errno
import os
import pickle
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pyarrow.fs as pa_fs
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tests.io.files import S3, arrow_s3, make_bucket
from windrow.core.errors import PlanError, SourceError
from windrow.io.sinks.commit import list_replaced
from windrow.io.sinks.open_store import ArrowStore, find_store, mapped_errors
from windrow.io.sinks.store import TEMPORARY, LocalStore, Store, is_temporary
from windrow.io.storage.retries import GaveUpError, Retries


@pytest.fixture(params=["local", "memory", "arrow", "subtree", "s3fs", "arrow s3", "s3fs parts"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty directory on each kind of filesystem."""
    if request.param == "local":
        yield find_store(tmp_path / "out", None, None)
    elif request.param == "memory":
        yield find_store(f"memory://{tmp_path}/out", None, None)
        fsspec.filesystem("memory").rm(str(tmp_path), recursive=True)
    elif request.param in ("arrow", "subtree"):
        plain = pa_fs.SubTreeFileSystem(str(tmp_path), pa_fs.LocalFileSystem())
        nested = pa_fs.SubTreeFileSystem("deep", plain)
        yield find_store("out", plain if request.param == "arrow" else nested, None)
    elif request.param == "s3fs":
        yield from _s3_store(request.getfixturevalue("s3"), tmp_path.name)
    else:
        endpoint, root = request.getfixturevalue("memory_s3"), f"{tmp_path.name.replace('_', '-')}/out"
        filesystem = make_bucket(endpoint, root.partition("/")[0])
        if request.param == "arrow s3":
            yield find_store(root, filesystem, None)
        else:
            pytest.importorskip("s3fs")
            options = {"key": S3.key, "secret": S3.secret, "endpoint_url": endpoint}
            yield find_store(f"s3://{root}", None, options)


def _s3_store(s3: S3, folder: str) -> Iterator[Store]:
    pytest.importorskip("s3fs")
    yield find_store(f"s3://written/{folder}/out", None, s3.storage_options)


def put(store: Store, relative: str, data: bytes) -> None:
    def fill(file: BinaryIO) -> None:
        file.write(data)

    store.put(relative, fill)


def read(store: Store, relative: str) -> bytes:
    if not hasattr(store, "filesystem"):
        return (Path(store.url) / relative).read_bytes()
    path = f"{store.root}/{relative}"  # type: ignore[attr-defined]
    if isinstance(store.filesystem, pa_fs.FileSystem):
        with store.filesystem.open_input_stream(path) as file:
            return bytes(file.read())
    return bytes(store.filesystem.cat_file(path))


def test_files_are_put_listed_replaced_and_removed(store: Store) -> None:
    assert store.list_files() == []
    put(store, "k=1/b", b"one")
    put(store, "a", b"")
    put(store, "k=1/b", b"another")
    assert store.list_files() == ["a", "k=1/b"]
    assert (read(store, "k=1/b"), read(store, "a")) == (b"another", b"")
    copy = pickle.loads(pickle.dumps(store))
    put(copy, "_c", b"2")
    assert store.list_files() == ["_c", "a", "k=1/b"]
    store.remove(["a", "k=1/b", "never"])
    assert store.list_files() == ["_c"]


def test_sizes_leave_out_files_that_vanish_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = find_store(tmp_path, None, None)
    put(store, "a", b"12")
    monkeypatch.setattr(LocalStore, "list_files", lambda _: ["a", f".b.0{TEMPORARY}"])
    assert store.sizes() == {"a": 2}


def test_failed_write_leaves_no_file(store: Store) -> None:
    put(store, "kept", b"before")

    def fill(file: BinaryIO) -> None:
        file.write(b"x" * 100_000)
        raise RuntimeError("in the middle")

    for name in ("new", "kept"):
        with pytest.raises(RuntimeError, match="in the middle"):
            store.put(name, fill)
    assert store.list_files() == ["kept"]
    assert read(store, "kept") == b"before"


def test_concurrent_attempts_at_a_file_leave_it_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = find_store(f"memory://{tmp_path}/out", None, None)
    send = MemoryFileSystem.put_file
    others = [b"whole"]

    def send_slowly(self: MemoryFileSystem, local: str, path: str, **options: Any) -> None:
        send(self, local, path, **options)
        if others:
            put(store, "a.bin", others.pop())

    monkeypatch.setattr(MemoryFileSystem, "put_file", send_slowly)
    put(store, "a.bin", b"whole")
    assert store.list_files() == ["a.bin"]
    assert fsspec.filesystem("memory").cat(f"{tmp_path}/out/a.bin") == b"whole"
    fsspec.filesystem("memory").rm(str(tmp_path), recursive=True)


class FlakyHandler(pa_fs.FSSpecHandler):  # type: ignore[misc]
    """A filesystem without atomic uploads; ``failures`` is the number of calls that fail, by operation."""

    def __init__(self, filesystem: Any, failures: dict[str, int]) -> None:
        super().__init__(filesystem)
        self.failures = failures
        self.failed: list[str] = []

    def _fail(self, operation: str) -> None:
        if self.failures.get(operation, 0) > 0:
            self.failures[operation] -= 1
            self.failed.append(operation)
            raise ConnectionResetError(errno.ECONNRESET, "reset by peer")

    def create_dir(self, path: str, recursive: bool) -> None:
        self._fail("create_dir")
        super().create_dir(path, recursive)

    def delete_file(self, path: str) -> None:
        self._fail("delete_file")
        super().delete_file(path)

    def move(self, source: str, target: str) -> None:
        self._fail("move")
        super().move(source, target)


@pytest.mark.parametrize("operation", ["create_dir", "delete_file", "move"])
def test_arrow_filesystems_retry_operations_that_fail_transiently(operation: str) -> None:
    handler = FlakyHandler(MemoryFileSystem(), {operation: 1})
    root = f"/flaky-{operation}"
    quick = Retries(seconds=10, first_wait_seconds=0.001)
    store = ArrowStore(f"{root}/out", pa_fs.PyFileSystem(handler), quick)
    try:
        put(store, "k=1/a", b"one")
        put(store, "k=1/a", b"another")
        assert handler.failed == [operation]
        assert store.list_files() == ["k=1/a"]
        assert read(store, "k=1/a") == b"another"
        handler.failures["delete_file"] = 1
        store.remove(["k=1/a"])
        assert handler.failed == [operation, "delete_file"]
        assert store.list_files() == []
    finally:
        MemoryFileSystem().rm(root, recursive=True)


@pytest.mark.parametrize("operation", ["create_dir", "delete_file", "move"])
def test_operation_raises_when_its_retry_budget_is_exhausted(operation: str) -> None:
    handler = FlakyHandler(MemoryFileSystem(), {operation: 1_000_000})
    store = ArrowStore(f"/failing-{operation}/out", pa_fs.PyFileSystem(handler), Retries(1, 0.001))
    try:
        with pytest.raises(GaveUpError, match="reset by peer"):
            put(store, "a", b"")
        assert len(handler.failed) > 1
    finally:
        if MemoryFileSystem().exists(f"/failing-{operation}"):
            MemoryFileSystem().rm(f"/failing-{operation}", recursive=True)


def test_large_file_is_written_completely(store: Store, request: pytest.FixtureRequest) -> None:
    # large enough for multipart uploads on the server that supports them
    sizes = {"arrow s3": 12_000_000, "s3fs parts": 60_000_000}
    data = os.urandom(sizes.get(request.node.callspec.params["store"], 3_000_000))
    put(store, "large", data)
    assert read(store, "large") == data


def test_local_file_is_hidden_until_it_is_complete(tmp_path: Path) -> None:
    store = find_store(tmp_path / "out", None, None)
    seen: list[str] = []

    def fill(file: BinaryIO) -> None:
        file.write(b"half")
        seen.extend(store.list_files())

    store.put("name", fill)
    (hidden,) = seen
    assert hidden.startswith(".")
    assert is_temporary(hidden)
    assert oct((tmp_path / "out" / "name").stat().st_mode & 0o777 & ~0o022) == "0o644"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full: make room"),
        (errno.EACCES, "grant write permission"),
        (errno.EROFS, "grant write permission"),
        (errno.EIO, "check the path"),
    ],
)
def test_disk_errors_are_mapped_to_an_error_with_a_fix(
    number: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("windrow.io.sinks.store.os.fsync", refuse)
    store = find_store(tmp_path / "out", None, None)
    message = rf"out/name: cannot be written: .*{words}"
    with pytest.raises(SourceError, match=message) as caught, mapped_errors(store, f"{store.url}/name"):
        put(store, "name", b"data")
    assert isinstance(caught.value.__cause__, OSError)
    assert list((tmp_path / "out").iterdir()) == []


def test_file_in_place_of_the_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        store = find_store(path, None, None)
        with pytest.raises(SourceError, match="something else stands there"), mapped_errors(store, store.url):
            put(store, "name", b"")
    with pytest.raises(SourceError, match="something else stands there"):
        list_replaced(find_store(tmp_path / "file", None, None), "error", ())


@pytest.mark.parametrize("client", ["s3fs", "arrow"])
def test_missing_bucket_and_wrong_credentials_are_reported_without_secrets(s3: S3, client: str) -> None:
    pytest.importorskip("s3fs")
    wrong = {**s3.storage_options, "key": "wrong-key-not-shown", "secret": "wrong-secret-not-shown"}
    if client == "s3fs":
        cases = [
            (find_store("s3://nobucket/x", None, s3.storage_options), "create the bucket"),
            (find_store("s3://here/x", None, wrong), "check"),
        ]
    else:
        secret = "wrong-secret-not-shown"
        cases = [
            (find_store("nobucket/x", arrow_s3(s3.endpoint), None), "bucket"),
            (find_store("here/x", arrow_s3(s3.endpoint, secret), None), "check"),
        ]
    for store, words in cases:
        with pytest.raises(SourceError, match=words) as caught, mapped_errors(store, f"{store.url}/name"):
            put(store, "name", b"data")
        text = "".join(traceback.format_exception(caught.value)) + repr(store)
        assert not re.search(r"not-shown|that-nobody-shows", text)
    assert not (s3.directory / "nobucket").exists()
    assert list((s3.directory / "here").rglob("*")) == []


@pytest.mark.parametrize("client", ["options", "dirfs", "arrow", "handler"])
def test_credentials_quoted_by_a_client_are_redacted(client: str) -> None:
    if client == "arrow":
        filesystem: Any = pa_fs.S3FileSystem(access_key="k-of-it", secret_key="not-shown", region="us-east-1")
    else:
        pytest.importorskip("s3fs")
        filesystem = fsspec.filesystem("s3", key="k-of-it", secret="not-shown")
        if client == "dirfs":
            filesystem = DirFileSystem("here", filesystem)
        elif client == "handler":
            handled = pa_fs.PyFileSystem(pa_fs.FSSpecHandler(filesystem))
            filesystem = pa_fs.SubTreeFileSystem("below", handled)
    store = find_store("here/x", filesystem, None)
    with pytest.raises(SourceError, match="refused for") as caught, mapped_errors(store, "x"):
        raise OSError("refused for k-of-it:not-shown")
    assert not re.search(
        "k-of-it|not-shown", "".join([*_traceback_lines(caught.value), repr(store), store.url])
    )


def _traceback_lines(error: BaseException | None) -> Iterator[str]:
    """The lines of a traceback except source lines, since here these contain the secret."""
    if error is not None:
        yield from traceback.format_exception_only(error)
        yield from _traceback_lines(error.__cause__ if error.__suppress_context__ else error.__context__)


def test_overwriting_the_root_of_a_filesystem_raises(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/top/file", b"")
    for store in (
        find_store("/", None, None),
        find_store("memory://", None, None),
        find_store("s3://bucket", None, {"key": "k", "secret": "s"}),
        find_store("bucket", pa_fs.S3FileSystem(anonymous=True, region="us-east-1"), None),
    ):
        assert store.is_root, store
    assert not find_store("s3://bucket/x", None, {"key": "k", "secret": "s"}).is_root
    assert not find_store(tmp_path, None, None).is_root
    with pytest.raises(PlanError, match="would replace all of memory://"):
        list_replaced(find_store("memory://", None, None), "overwrite", ())
    fsspec.filesystem("memory").rm("/top", recursive=True)


def test_overwrite_replaces_only_files_that_readers_list(tmp_path: Path) -> None:
    names = ["a.csv", "k=1/b", "_other/c", ".git/config", "_manifest-0a.json", ".x.windrow-tmp"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    store = find_store(tmp_path, None, None)
    replaced = list_replaced(store, "overwrite", ())
    assert set(replaced) == {"a.csv", "k=1/b", "_manifest-0a.json", ".x.windrow-tmp"}
    assert list_replaced(store, "append", ()) == ()
    with pytest.raises(PlanError, match=r"is not empty \(5 files, such as .git/config\)"):
        list_replaced(store, "error", ())
    with pytest.raises(PlanError, match="mode='new' must be 'error', 'overwrite', 'append' or 'resume'"):
        list_replaced(store, "new", ())  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"would replace what is being read, .*a\.csv"):
        list_replaced(store, "overwrite", {str(tmp_path / "a.csv")})
