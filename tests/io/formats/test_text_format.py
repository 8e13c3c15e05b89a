"""read_text returns one row per line, for any split of the file into ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.lines_of import COMPRESS, all_rows, write_files
from tests.laws.examples import examples
from windrow.io.formats import file_encodings, line_formats


@examples(60)
@given(
    st.lists(st.text(st.sampled_from("ab \t\réñ漢"), max_size=8), max_size=20),
    st.integers(1, 40),
    st.integers(1, 120),
    st.sampled_from(["", *COMPRESS]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
    st.integers(20, 200),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[str],
    range_bytes: int,
    block_bytes: int,
    suffix: str,
    newline: str,
    drop: bool,
    marked: bool,
    chunk_bytes: int,
) -> None:
    values = [value.rstrip("\r") for value in values]
    content = (b"\xef\xbb\xbf" if marked else b"") + newline.join([*values, ""]).encode()
    folder, name = tmp_path_factory.mktemp("text"), f"rows.txt{suffix}"
    write_files(folder, {name: COMPRESS[suffix](content) if suffix else content})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_formats, "RANGE_BYTES", range_bytes)
        patch.setattr(line_formats, "_CHUNK_BYTES", 30 + chunk_bytes)
        ds = windrow.read_text(folder / name, drop_empty_lines=drop, target_block_bytes=block_bytes)
        expected = [value for value in values if value or not drop]
        assert [row["text"] for row in all_rows(ds)] == expected
        assert ds.count() == len(expected)


def test_every_range_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges end before, at or after a newline, and contain several lines, one or none."""
    values = ["abc", "", "de", "f", "", "", "a longer line", "g"]
    for newline in ("\n", "\r\n"):
        content = newline.join(values).encode()
        write_files(tmp_path, {"a.txt": content})
        for range_bytes in range(1, len(content) + 2):
            monkeypatch.setattr(line_formats, "RANGE_BYTES", range_bytes)
            ds = windrow.read_text(tmp_path, drop_empty_lines=False, target_block_bytes=1)
            assert [row["text"] for row in ds.take(99)] == values, range_bytes


def test_last_line_without_a_newline(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": b"one\ntwo", "b.txt": b"", "c.txt": b"\n"})
    assert windrow.read_text(tmp_path).take() == [{"text": "one"}, {"text": "two"}]
    assert windrow.read_text(tmp_path, drop_empty_lines=False).take()[2:] == [{"text": ""}]


def test_encodings(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "Zoë\nÿ\n".encode("utf-16")})
    assert windrow.read_text(tmp_path, encoding="utf-16").take() == [{"text": "Zoë"}, {"text": "ÿ"}]
    with pytest.raises(windrow.SourceError, match=r"a\.txt.*UTF8"):
        windrow.read_text(tmp_path).take()
    write_files(tmp_path, {"a.txt": b"x\n\x00"})
    with pytest.raises(windrow.SourceError, match=r"a\.txt.*truncated data"):
        windrow.read_text(tmp_path, encoding="utf-16").take()


def test_ebcdic_is_not_split_into_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In EBCDIC, the byte of an ASCII newline is a character, and a newline is another byte."""
    monkeypatch.setattr(line_formats, "RANGE_BYTES", 16)
    values = [f"{at} a\x8eb" for at in range(20)]
    assert b"\n" in values[0].encode("cp037")
    write_files(tmp_path, {"a.txt": "\n".join(values).encode("cp037")})
    ds = windrow.read_text(tmp_path, encoding="cp037", target_block_bytes=1)
    assert [row["text"] for row in all_rows(ds)] == values
    assert ds.num_blocks() == 1


@pytest.mark.parametrize("step_bytes", [5, 2**20])
@pytest.mark.parametrize("suffix", [".xz", ".zlib"])
def test_concatenated_streams(
    tmp_path: Path, suffix: str, step_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_encodings, "_STEP_BYTES", step_bytes)
    values = [f"{at} {at * 7919 % 1009}" for at in range(400)]
    first, second = (
        COMPRESS[suffix]("".join(f"{value}\n" for value in some).encode())
        for some in (values[:200], values[200:])
    )
    write_files(tmp_path, {f"whole.txt{suffix}": first + second})
    assert [row["text"] for row in all_rows(windrow.read_text(tmp_path))] == values
    middle = len(second) // 2
    broken = {
        "corrupt": second[:middle] + bytes([second[middle] ^ 255]) + second[middle + 1 :],
        "cut": second[:-1],
        "barely-begun": second[:1],
        "garbage": b"garbage garbage garbage",
        "padding-of-3": bytes(3),
        "padding-of-7": bytes(7) + second,
    }
    for name, content in broken.items():
        write_files(tmp_path, {f"{name}.txt{suffix}": first + content})
        with pytest.raises(windrow.SourceError, match=rf"{name}\.txt.*cannot be read"):
            all_rows(windrow.read_text(tmp_path / f"{name}.txt{suffix}"))


def test_padding_of_xz(tmp_path: Path) -> None:
    pack = COMPRESS[".xz"]
    write_files(tmp_path, {"a.txt.xz": pack(b"one\n") + bytes(8) + pack(b"two\n") + bytes(4)})
    assert all_rows(windrow.read_text(tmp_path)) == [{"text": "one"}, {"text": "two"}]


def test_filters_and_paths(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": b"one\ntwo\n"})
    ds = windrow.read_text(tmp_path, include_paths=True, filter=pc.starts_with(pc.field("text"), "t"))
    assert ds.take() == [{"text": "two", "path": f"{tmp_path}/a.txt"}]
    assert ds.count() == 1


def test_line_longer_than_a_chunk_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_formats, "_CHUNK_BYTES", 10)
    write_files(tmp_path, {"a.txt": b"x" * 30})
    with pytest.raises(windrow.SourceError, match=r"a\.txt.*a line has more than 10 bytes"):
        windrow.read_text(tmp_path).take()


@pytest.mark.parametrize("read", [windrow.read_text, windrow.read_csv, windrow.read_json])
def test_parquet_files_are_not_taken_for_text(tmp_path: Path, read: Any) -> None:
    pq.write_table(pa.table({"x": range(10_000), "t": ['a "word"'] * 10_000}), tmp_path / "rows.parquet")
    with pytest.raises(
        windrow.SourceError, match=r"rows.parquet is not text but Parquet: read it with read_parquet"
    ):
        read(tmp_path / "rows.parquet").take()


def test_text_may_begin_like_parquet(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes(b"PAR1\tPAR1\n")
    assert windrow.read_text(tmp_path / "rows.txt").take() == [{"text": "PAR1\tPAR1"}]
