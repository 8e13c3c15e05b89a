"""read_avro of files that are truncated, corrupt or no Avro."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.lines_of import all_rows
from tests.io.formats.stored import read_blocks
from tests.io.formats.test_avro_format import _RECORD, NUMBERS, fastavro, numbers, write
from tests.laws.examples import examples
from windrow.core.source import CorruptBlockError


def test_values_that_their_type_does_not_hold_are_not_corrupt(tmp_path: Path) -> None:
    fields = [{"name": "x", "type": ["double", "long"]}, {"name": "y", "type": "int"}]
    rows = [{"x": 0.5, "y": 1}, {"x": ("long", 2**53 + 1), "y": 2}]
    path = write(tmp_path / "x.avro", {"type": "record", "name": "R", "fields": fields}, rows)
    assert windrow.read_avro(path, columns=["y"]).take() == [{"y": 1}, {"y": 2}]
    with pytest.raises(
        windrow.SourceError, match=rf"{path}.*'x' is read as double.*exclude it with columns="
    ):
        windrow.read_avro(path).options(on_error="skip").take()


def test_every_truncation_is_told_or_ends_between_blocks(tmp_path: Path) -> None:
    path = write(tmp_path / "x.avro", NUMBERS, numbers(20), block_bytes=30)
    content, whole = path.read_bytes(), 0
    for size in range(len(content)):
        path.write_bytes(content[:size])
        error = find_error(path)
        assert "corrupt" not in error, (size, error)
        if not error:
            rows = windrow.read_avro(path).take(20)
            assert rows == numbers(len(rows))
            whole += 1
    assert whole >= 3


def test_other_files_than_avro_raise(tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    content = write(path, NUMBERS, numbers(20), block_bytes=30).read_bytes()
    cases = {
        b"": "is not an Avro file",
        b"PAR1" * 20: "is not an Avro file",
        content[:-16] + bytes(16): "is corrupt: no sync marker follows the block from byte",
        content.replace(b'"long"', b'"gnol"'): "has no valid schema",
        content.replace(
            b"avro.codec\x08null", b"avro.codec\x08lzma"
        ): "codec 'lzma'; supported are null, deflate",
    }
    for changed, message in cases.items():
        path.write_bytes(changed)
        with pytest.raises(windrow.SourceError, match=f"{path}.*{message}"):
            windrow.read_avro(path)
    write(path, "string", ["a"])
    with pytest.raises(windrow.SourceError, match="single values, and no records"):
        windrow.read_avro(path)


def test_corrupt_records_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.avro", NUMBERS, numbers(100), block_bytes=1000)
    content = path.read_bytes()
    ds = windrow.read_avro(path)
    # the number of records in the last block: one fewer leaves bytes over
    blocks = [(block.offset, block.num_records) for block in fastavro.block_reader(io.BytesIO(content))]
    offset, records = blocks[-1]
    fewer = io.BytesIO()
    fastavro.schemaless_writer(fewer, "long", records - 1)
    path.write_bytes(content[:offset] + fewer.getvalue() + content[offset + len(fewer.getvalue()) :])
    with pytest.raises(CorruptBlockError, match=f"{path}.*holds more than its {records - 1} records"):
        all_rows(windrow.read_avro(path))
    with pytest.raises(windrow.SourceError, match="has changed since it was listed"):
        ds.take(100)


@examples(60)
@given(
    st.sampled_from(["null", "deflate"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_corruption_raises_or_is_harmless(
    tmp_path_factory: pytest.TempPathFactory, codec: str, flips: list[tuple[float, int]]
) -> None:
    path = tmp_path_factory.mktemp("corruption") / "x.avro"
    schema = {"type": "record", "name": "R", "fields": [{"name": "p", "type": _RECORD}, *NUMBERS["fields"]]}
    rows = [{**row, "p": {"a": 1, "b": {"k": 2}}} for row in numbers(20)]
    content = bytearray(write(path, schema, rows, codec, block_bytes=100).read_bytes())
    for place, value in flips:
        content[int(place * (len(content) - 1))] = value
    path.write_bytes(content)
    find_error(path)


def find_error(path: Path) -> str:
    """The error of reading a file, which names it; empty if there is none."""
    raised: windrow.WindrowError | None = None
    try:
        read_blocks(windrow.read_avro(path))
    except windrow.WindrowError as error:
        raised = error
    # a schema can lose its columns
    assert raised is None or str(path) in str(raised) or isinstance(raised, windrow.PlanError)
    return str(raised or "")
