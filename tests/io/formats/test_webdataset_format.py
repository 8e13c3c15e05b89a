"""read_webdataset reads archives as the webdataset library does."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.lines_of import COMPRESS, all_rows, write_files
from tests.laws.examples import examples
from windrow.io.formats import row_group_format


def _tar(members: list[tuple[str, bytes]]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def _npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


SAMPLES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "txt": st.text(max_size=5),
            "cls": st.integers(-(2**63), 2**63 - 1),
            "json": st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.none() | st.text(max_size=3)}),
            "npy": st.lists(st.integers(-9, 9), min_size=2, max_size=2),
            "left.bin": st.binary(max_size=700),
        },
    ).filter(len),
    max_size=8,
)
DTYPES = {
    "txt": pa.string(),
    "cls": pa.int64(),
    "json": pa.struct([("a", pa.int64()), ("b", pa.string())]),
    "npy": pa.list_(pa.int16()),
    "left.bin": pa.binary(),
}


def _encode(extension: str, value: Any) -> bytes:
    if extension == "npy":
        return _npy(np.array(value, ">i2"))
    if extension == "json":
        return json.dumps(value, indent=1).encode()
    return value if isinstance(value, bytes) else str(value).encode()


@examples(30)
@given(SAMPLES, st.sampled_from(["", *COMPRESS]), st.integers(1, 3000))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, Any]], suffix: str, part_bytes: int
) -> None:
    members = [
        (f"some.folder/{at:04}.{extension}", _encode(extension, value))
        for at, sample in enumerate(samples)
        for extension, value in sample.items()
    ]
    content = _tar(members)
    path = tmp_path_factory.mktemp("tar") / f"a.tar{suffix}"
    path.write_bytes(COMPRESS[suffix](content) if suffix else content)
    if not samples:
        with pytest.raises(windrow.SourceError, match="is empty, as all files are"):
            windrow.read_webdataset(path)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_group_format, "PART_BYTES", part_bytes)
        ds = windrow.read_webdataset(path, dtypes=DTYPES, columns=["__key__", *DTYPES])
        expected = [
            {"__key__": f"some.folder/{at:04}", **{name: sample.get(name) for name in DTYPES}}
            for at, sample in enumerate(samples)
        ]
        assert all_rows(ds) == expected
        assert ds.count() == len(samples)


# the library does not close its files
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_archives_are_read_as_by_the_webdataset_library(tmp_path: Path) -> None:
    library = pytest.importorskip("webdataset")
    with library.TarWriter(str(tmp_path / "a.tar")) as writer:
        for at in range(20):
            writer.write(
                {
                    "__key__": f"sample{at:03}",
                    "txt": f"text {at}",
                    "cls": at,
                    "json": {"a": [at]},
                    "npy": np.full((2, 3), at, np.float32),
                    "seg.bin": bytes([at]),
                }
            )
    ds = windrow.read_webdataset(tmp_path)
    theirs = list(library.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode())
    batch = ds.take_batch(100)
    assert batch["npy"].shape == (20, 2, 3)
    assert batch["npy"].dtype == np.float32
    for at, (row, other) in enumerate(zip(ds.take(100), theirs, strict=True)):
        assert row["__key__"] == other["__key__"]
        assert (row["txt"], row["cls"], row["json"], row["seg.bin"]) == (
            other["txt"],
            other["cls"],
            other["json"],
            other["seg.bin"],
        )
        assert np.array_equal(batch["npy"][at], other["npy"])


def test_images(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")

    def png(value: int, size: tuple[int, int] = (4, 3)) -> bytes:
        sink = io.BytesIO()
        pillow.new("RGB", size, (value, 0, 1)).save(sink, "PNG")
        return sink.getvalue()

    write_files(tmp_path, {"a.tar": _tar([("0.PNG", png(7)), ("1.png", png(9))])})
    assert [row["png"] for row in all_rows(windrow.read_webdataset(tmp_path))] == [png(7), png(9)]
    batch = windrow.read_webdataset(tmp_path, decode="RGB").take_batch()
    assert batch["png"].shape == (2, 3, 4, 3)
    assert batch["png"][1, 0, 0].tolist() == [9, 0, 1]
    write_files(tmp_path, {"a.tar": _tar([("0.png", png(7)), ("1.png", png(9, (5, 5)))])})
    batch = windrow.read_webdataset(tmp_path, decode="RGB").take_batch()
    assert [image.shape for image in batch["png"]] == [(3, 4, 3), (5, 5, 3)]
    assert batch["png"][1][0, 0].tolist() == [9, 0, 1]
    # archives of one shape each
    write_files(tmp_path, {"a.tar": _tar([("0.png", png(7))]), "b.tar": _tar([("1.png", png(9, (5, 5)))])})
    ds = windrow.read_webdataset(tmp_path, decode="RGB")
    assert ds.schema().field("png").type == windrow.VariableShapeTensorType(pa.uint8(), 3)
    assert [row["png"].shape for row in ds.take(9)] == [(3, 4, 3), (5, 5, 3)]
    members = [("0.npy", _npy(np.zeros((2, 2)))), ("1.npy", _npy(np.zeros(2)))]
    write_files(tmp_path, {"a.tar": _tar(members), "b.tar": b""})
    with pytest.raises(windrow.SourceError, match=r"a\.tar.*'npy' have shapes .*pa\.binary\(\)"):
        windrow.read_webdataset(tmp_path)


def test_image_beyond_the_limit_of_pillow_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pillow = pytest.importorskip("PIL.Image")
    members = []
    for number in range(3):
        sink = io.BytesIO()
        pillow.new("RGB", (30, 20) if number == 2 else (3, 3)).save(sink, "PNG")
        members.append((f"{number}.png", sink.getvalue()))
    write_files(tmp_path, {"a.tar": _tar(members)})
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(
        windrow.SourceError, match=r"a\.tar: an image has 600 pixels, more than .*raise"
    ) as raised:
        windrow.read_webdataset(tmp_path, decode="RGB")
    assert "corrupt" not in str(raised.value)


@pytest.mark.parametrize(
    ("late", "message"),
    [
        ([("z.cls", b"many")], "'cls' cannot be decoded"),
        ([("z.cls", b"1"), ("z.new", b"")], "sample 'z' has a member 'new'"),
        ([("z.json", b'{"a": 1, "b": 2}')], "the key 'b', which is missing from every archive's"),
        ([("z.json", b'{"a": "x"}')], "'json' do not fit one type"),
        (
            [("z.npy", _npy(np.zeros((3, 3))))],
            r"'npy' has the shape \(3, 3\), but the column has \(2, 2\): give .*Type\(pa\.float64\(\), 2",
        ),
        ([("z.npy", _npy(np.array([{}])))], "'npy' cannot be decoded"),
        ([("z.cls", b"1"), ("z.cls", b"1")], "sample 'z' has two members 'cls'"),
    ],
)
def test_later_sample_that_does_not_match_raises(
    tmp_path: Path, late: list[tuple[str, bytes]], message: str
) -> None:
    early = {"cls": b"1", "json": b'{"a": 1}', "npy": _npy(np.zeros((2, 2)))}
    members = [(f"{at}.{name}", content) for at in range(100) for name, content in early.items()]
    write_files(tmp_path, {"a.tar": _tar(members + late)})
    ds = windrow.read_webdataset(tmp_path)
    with pytest.raises(windrow.SourceError, match=rf"a\.tar.*{message}"):
        all_rows(ds)


@pytest.mark.parametrize("content", [b"{", b"\xff"])
def test_invalid_json_in_the_first_sample_raises(tmp_path: Path, content: bytes) -> None:
    write_files(tmp_path, {"a.tar": _tar([("a.json", content)])})
    with pytest.raises(windrow.SourceError, match=r"a\.tar.*'json' cannot be decoded"):
        windrow.read_webdataset(tmp_path)


def test_members_that_are_not_samples_are_ignored(tmp_path: Path) -> None:
    members = [("readme", b""), ("__meta__.json__", b"{}"), (".hidden", b""), ("folder/a.txt", b"x")]
    write_files(tmp_path, {"a.tar": _tar(members)})
    assert all_rows(windrow.read_webdataset(tmp_path)) == [{"__key__": "folder/a", "txt": "x"}]


def test_extensions_missing_in_some_archives_are_null(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.tar": _tar([("0.txt", b"x")]), "b.tar": _tar([("1.cls", b"5")])})
    assert all_rows(windrow.read_webdataset(tmp_path)) == [
        {"__key__": "0", "txt": "x", "cls": None},
        {"__key__": "1", "txt": None, "cls": 5},
    ]
    assert all_rows(windrow.read_webdataset(tmp_path, columns=["cls"])) == [{"cls": None}, {"cls": 5}]


def test_sparse_members_raise(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("0.bin")
        # one extent of three bytes, at offset six of nine
        content = b"1\n6\n3\n".ljust(512, b"\0") + b"abc"
        sparse = {"major": "1", "minor": "0", "name": "0.bin", "realsize": "9"}
        info.size, info.pax_headers = len(content), {f"GNU.sparse.{name}": sparse[name] for name in sparse}
        archive.addfile(info, io.BytesIO(content))
    write_files(tmp_path, {"a.tar": sink.getvalue()})
    with pytest.raises(windrow.SourceError, match=r"a\.tar.*'0\.bin' is a sparse member.*without -S"):
        all_rows(windrow.read_webdataset(tmp_path))


@pytest.mark.parametrize("corruption", ["cut", "cut at a member", "header", "two", "compressed", "empty"])
def test_corrupt_archives_raise(tmp_path: Path, corruption: str) -> None:
    whole = _tar([(f"{at:03}.txt", b"x" * 600) for at in range(300)])
    header = 200 * 1536 + 20
    content = {
        "cut": whole[:250_000],
        "cut at a member": whole[: 1536 * 200],
        "header": whole[:header] + b"?" + whole[header + 1 :],
        "two": whole + whole,
        "compressed": gzip.compress(whole)[:-30],
        "empty": b"",
    }[corruption]
    name = "a.tar.gz" if corruption == "compressed" else "a.tar"
    write_files(tmp_path, {name: content})
    with pytest.raises(windrow.SourceError, match=r"a\.tar"):
        all_rows(windrow.read_webdataset(tmp_path))


def test_npy_scalars_and_json_text_keep_their_types(tmp_path: Path) -> None:
    rows = [{"npy": 1.0, "json": "x"}, {"npy": 2.0, "json": "y"}]
    windrow.from_items(rows).write_webdataset(tmp_path)
    found = windrow.read_webdataset(tmp_path)
    assert found.to_numpy()["npy"].shape == (2,)
    assert [row["json"] for row in found.take()] == ["x", "y"]
    as_stored = windrow.read_webdataset(tmp_path, dtypes={"json": pa.string()})
    assert [row["json"] for row in as_stored.take()] == ['"x"', '"y"']


def test_archive_without_samples_has_the_columns_of_dtypes(tmp_path: Path) -> None:
    tarfile.open(tmp_path / "empty.tar", "w").close()
    with pytest.raises(windrow.SourceError, match="give dtypes="):
        windrow.read_webdataset(tmp_path)
    ds = windrow.read_webdataset(tmp_path, dtypes={"cls": pa.int64()})
    assert (ds.count(), ds.schema().field("cls").type) == (0, pa.int64())


def test_later_shapes_fit_a_given_type(tmp_path: Path) -> None:
    arrays = [*[np.zeros((2, 2))] * 100, np.ones((3, 1))]
    write_files(tmp_path, {"a.tar": _tar([(f"{at}.npy", _npy(array)) for at, array in enumerate(arrays)])})
    kind = windrow.VariableShapeTensorType(pa.float64(), 2)
    found = windrow.read_webdataset(tmp_path, dtypes={"npy": kind}).take_batch(101)["npy"]
    assert [array.shape for array in found] == [array.shape for array in arrays]
