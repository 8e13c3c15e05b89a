from __future__ import annotations

import fnmatch
import ntpath
import os
import types
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

from tests.io.files import open_parquet, read_all, write
from tests.library_versions import FSSPEC
from windrow.core.errors import PlanError, SourceError
from windrow.io.catalog import listing
from windrow.io.catalog.listing import list_files, locate_root
from windrow.io.storage.filesystems import Connection, connect

NAMES = ["b.parquet", "a/2.parquet", "a/1.parquet", "a.d/x.parquet", "k=1/_y=2/p.parquet"]
HIDDEN = ["_SUCCESS", ".crc", "a/_metadata", "_temporary/x.parquet", ".git/x.parquet"]
SORTED = ["a.d/x.parquet", "a/1.parquet", "a/2.parquet", "b.parquet", "k=1/_y=2/p.parquet"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in NAMES + HIDDEN:
        write(tmp_path / name, pa.table({"name": [name]}))
    return tmp_path


def listed(paths: Any, **options: Any) -> tuple[str, list[str]]:
    files, found, _ = list_files(paths, **options)
    return files.root, found


def test_directory_listing_is_sorted_and_omits_hidden_files(tree: Path) -> None:
    for paths in (tree, str(tree), f"{tree}/", f"file://{tree}", [tree]):
        assert listed(paths) == (str(tree), SORTED)


def test_a_relative_path(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert listed("a") == (f"{tree}/a", ["1.parquet", "2.parquet"])
    assert listed(".", filesystem=pa_fs.LocalFileSystem()) == (str(tree), SORTED)


def test_lists_of_paths_keep_their_order(tree: Path) -> None:
    assert listed(tree / "b.parquet") == (str(tree), ["b.parquet"])
    assert listed([tree / "b.parquet", tree / "a" / "1.parquet"]) == (str(tree), ["b.parquet", "a/1.parquet"])
    assert listed([tree / "b.parquet", tree / "a"])[1] == ["b.parquet", "a/1.parquet", "a/2.parquet"]
    assert listed((tree / "a.d", tree / "a"))[1] == ["a.d/x.parquet", "a/1.parquet", "a/2.parquet"]


def test_globs(tree: Path) -> None:
    assert listed(f"{tree}/a*/*.parquet") == (
        str(tree),
        ["a.d/x.parquet", "a/1.parquet", "a/2.parquet"],
    )
    assert listed(f"{tree}/a/[1]*") == (f"{tree}/a", ["1.parquet"])
    assert listed(f"{tree}/**")[1] == SORTED
    assert listed(f"{tree}/k=*") == (str(tree), ["k=1/_y=2/p.parquet"])


def test_a_name_that_looks_like_a_glob(tmp_path: Path) -> None:
    write(tmp_path / "x[1].parquet", pa.table({"n": [1]}))
    assert listed(tmp_path / "x[1].parquet") == (str(tmp_path), ["x[1].parquet"])
    assert read_all(open_parquet(tmp_path / "x[1].parquet")).num_rows == 1


def test_a_folder_that_looks_like_a_glob(tmp_path: Path) -> None:
    for name in ("a[1]/x.parquet", "a[1]/b?/y.parquet", "a1/x.parquet", "b/x*.parquet", "b/xy.parquet"):
        write(tmp_path / name, pa.table({"name": [name]}))
    for path, root, names in (
        ("a[1]", "a[1]", ["b?/y.parquet", "x.parquet"]),
        ("a[1]/*.parquet", "a[1]", ["x.parquet"]),
        ("a[1]/b?/*", "a[1]/b?", ["y.parquet"]),
        ("a[1]/**", "a[1]", ["b?/y.parquet", "x.parquet"]),
        ("b/x*.parquet", "b", ["x*.parquet"]),
        ("a[12]", "", ["a1/x.parquet"]),
        ("a[1]*", "", ["a1/x.parquet"]),
    ):
        for filesystem in (None, pa_fs.LocalFileSystem(), fsspec.filesystem("file")):
            assert listed(tmp_path / path, filesystem=filesystem) == (
                str(tmp_path / root).rstrip("/"),
                names,
            )
    source = open_parquet(tmp_path / "a[1]")
    for path in ("a[1]", "a[1]/*.parquet"):
        assert locate_root(tmp_path / path, {"x.parquet"}).root == str(tmp_path / "a[1]")
    assert open_parquet(tmp_path / "a[1]", manifest=source.manifest).manifest.fragments == 2


def test_a_glob_reads_hidden_names_that_it_names(tree: Path) -> None:
    write(tree / "c" / "_1.parquet", pa.table({"name": ["_1"]}))
    write(tree / "c" / "_d" / "_2.parquet", pa.table({"name": ["_2"]}))
    assert listed(f"{tree}/c/_*.parquet") == (f"{tree}/c", ["_1.parquet"])
    assert listed(f"{tree}/c/_*/_*.parquet")[1] == ["_d/_2.parquet"]
    assert listed(f"{tree}/**/_*.parquet")[1] == ["c/_1.parquet"]
    assert listed(f"{tree}/a/*")[1] == ["1.parquet", "2.parquet"]


@pytest.mark.parametrize("path", ["c", "c/*.parquet", "c/**", "*/c*.parquet"])
def test_files_that_are_all_left_out_are_an_error_that_says_so(tmp_path: Path, path: str) -> None:
    for name in ("c/_1.parquet", "c/.2.parquet", "c/_d/3.parquet", "_e/c.parquet"):
        write(tmp_path / name, pa.table({"name": [name]}))
    with pytest.raises(SourceError, match=r"begin with '\.' or '_' are left out, here .*parquet"):
        list_files(tmp_path / path)


def test_paths_of_partition_files_include_the_key(tree: Path) -> None:
    assert listed(tree / "k=1" / "_y=2" / "p.parquet") == (str(tree), ["k=1/_y=2/p.parquet"])
    assert listed(tree / "k=1" / "_y=2") == (f"{tree}/k=1/_y=2", ["p.parquet"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.parquet", "matches nothing: no such file or directory"),
        ("none/*.parquet", "matches nothing: no file has such a name"),
        ("empty", "is a directory without data files"),
    ],
)
def test_paths_without_a_match_raise(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    for filesystem in (None, pa_fs.LocalFileSystem(), fsspec.filesystem("file")):
        with pytest.raises(SourceError, match=r"(?s).*") as caught:
            list_files(tmp_path / name, filesystem)
        assert f"{tmp_path / name} {message}" in str(caught.value)


@pytest.fixture
def memory() -> Iterator[str]:
    """A directory of the memory filesystem, with two files."""
    root = f"/{uuid.uuid4().hex}"
    filesystem = fsspec.filesystem("memory")
    for name in ("k=1/a.parquet", "k=2/b.parquet"):
        filesystem.makedirs(f"{root}/{name[:3]}", exist_ok=True)
        with filesystem.open(f"{root}/{name}", "wb") as file:
            pq.write_table(pa.table({"name": [name] * 5}), file, row_group_size=2)
    yield root
    filesystem.rm(root, recursive=True)


def test_memory_filesystem_is_listed_and_read(memory: str) -> None:
    filesystem = fsspec.filesystem("memory")
    arrow = pa_fs.PyFileSystem(pa_fs.FSSpecHandler(filesystem))
    for source in (
        open_parquet(f"memory:/{memory}"),
        open_parquet(f"memory:/{memory}/*/*.parquet"),
        open_parquet(memory, filesystem=filesystem),
        open_parquet(memory, filesystem=arrow),
        open_parquet(f"memory:/{memory}", filesystem=arrow),
        open_parquet([f"{memory}/k=1/a.parquet", f"{memory}/k=2/b.parquet"], filesystem=filesystem),
    ):
        table = read_all(source)
        assert table.column("name").to_pylist() == ["k=1/a.parquet"] * 5 + ["k=2/b.parquet"] * 5
        assert table.column("k").to_pylist() == [1] * 5 + [2] * 5
    first = open_parquet(f"memory:/{memory}")
    assert first.manifest.root == f"memory://{memory}"
    assert read_all(open_parquet(None, manifest=first.manifest)).num_rows == 10
    with pytest.raises(SourceError, match=rf"memory://{memory}/x matches nothing"):
        open_parquet(f"memory:/{memory}/x")


def test_explicit_filesystems_read_the_same(tree: Path) -> None:
    expected = open_parquet(tree)
    sub = pa_fs.SubTreeFileSystem(str(tree), pa_fs.LocalFileSystem())
    for source in (
        open_parquet(tree, filesystem=pa_fs.LocalFileSystem()),
        open_parquet(tree, filesystem=fsspec.filesystem("file")),
        open_parquet("/", filesystem=sub),
        open_parquet("/**", filesystem=sub),
    ):
        assert source.fingerprint == expected.fingerprint
        assert read_all(source).equals(read_all(expected))
    assert read_all(open_parquet("a", filesystem=sub)).num_rows == 2


def test_mixed_or_unknown_filesystems_raise(tree: Path) -> None:
    with pytest.raises(PlanError, match=r"are on different filesystems"):
        list_files([str(tree), "memory://x"])
    with pytest.raises(SourceError, match=r"(?s)nosuch://x.*scheme's package"):
        list_files("nosuch://x")


def test_a_symbolic_link_is_followed(tree: Path) -> None:
    os.symlink(tree / "a", tree / "link")
    assert listed(tree / "link")[1] == ["1.parquet", "2.parquet"]


# --- drives of Windows -------------------------------------------------------------------


@pytest.fixture
def _paths_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fsspec resolve local paths as on Windows."""
    system = types.SimpleNamespace(sep="\\", path=ntpath, getcwd=lambda: "D:\\here", fspath=os.fspath)
    monkeypatch.setattr("fsspec.implementations.local.os", system)


@pytest.mark.skipif(
    FSSPEC <= (2024, 2), reason="fsspec 2024.2 takes drives for names of files, on other systems"
)
@pytest.mark.usefixtures("_paths_of_windows")
@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("C:\\data\\*.parquet", "C:/data/*.parquet"),
        ("c:/data/x.parquet", "c:/data/x.parquet"),
        ("C:\\", "C:/"),
        ("file:///C:/data/x.parquet", "C:/data/x.parquet"),
        ("\\\\server\\share\\x.parquet", "//server/share/x.parquet"),
        ("data\\x.parquet", "D:/here/data/x.parquet"),
    ],
)
def test_drives_are_no_schemes_of_urls(given: str, path: str) -> None:
    connection = connect(given, None, None)
    assert connection.paths == (path,)
    assert connection.opener is None


class _Drives:
    """A filesystem with files on drives."""

    def __init__(self, *paths: str) -> None:
        self._infos = {path: {"name": path, "type": "file", "size": 1} for path in paths}

    def invalidate_cache(self) -> None: ...

    def info(self, path: str) -> Any:
        below = [name for name in self._infos if name.startswith(path.rstrip("/") + "/")]
        return {"name": path, "type": "directory"} if below else self._infos[path]

    def find(self, path: str, **_: Any) -> Any:
        return {name: info for name, info in self._infos.items() if name.startswith(path.rstrip("/") + "/")}

    def glob(self, pattern: str, **_: Any) -> Any:
        return {name: info for name, info in self._infos.items() if fnmatch.fnmatchcase(name, pattern)}


@pytest.mark.parametrize(
    ("paths", "root", "found"),
    [
        (["C:/data"], "C:/data", ["a.parquet", "b.parquet"]),
        (["C:/data/*.parquet"], "C:/data", ["a.parquet", "b.parquet"]),
        (["C:/*.parquet"], "C:/", ["data/a.parquet", "data/b.parquet", "x.parquet"]),
        (["C:/"], "C:/", ["data/a.parquet", "data/b.parquet", "x.parquet"]),
        (["C:/x.parquet"], "C:/", ["x.parquet"]),
        (["C:/x.parquet", "C:/data/a.parquet"], "C:/", ["x.parquet", "data/a.parquet"]),
        (["C:/x.parquet", "D:/y.parquet"], "", ["C:/x.parquet", "D:/y.parquet"]),
    ],
)
def test_files_on_drives(
    paths: list[str], root: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drives = _Drives("C:/data/a.parquet", "C:/data/b.parquet", "C:/x.parquet", "D:/y.parquet")
    monkeypatch.setattr(listing, "connect", lambda given, *_: Connection(drives, None, tuple(given), ()))
    files, names, _ = list_files(paths)
    assert (files.root, names) == (root, found)
    # the same files by their full paths, and by the paths that were given
    assert [files.path(name) in drives._infos for name in names] == [True] * len(names)
    assert locate_root(paths, names).root == root or len(names) == 1


def test_a_drive_and_a_share_are_read_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    drives = _Drives("C:/x.parquet", "//server/share/x.parquet")
    monkeypatch.setattr(listing, "connect", lambda given, *_: Connection(drives, None, tuple(given), ()))
    with pytest.raises(PlanError, match=r"server/share and C:/ have no folder in common.*union"):
        list_files(["C:/x.parquet", "//server/share/x.parquet"])
