"""The validators in C and Python find the same problems in footers."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.chunks import needs_library, varint
from tests.library_versions import ARROW
from windrow.io.parquet import decoder_library
from windrow.io.parquet.footer_validation import check_footer, find_problem

ROWS = 20
COLUMNS: dict[str, Any] = {
    "flag": [True, None] * 10,
    "number": range(ROWS),
    "float": pa.array([0.5] * ROWS, pa.float32()),
    "old": pa.array([10**9] * ROWS, pa.timestamp("ns")),
    "text": ["a", None, "bc", "d" * 40] * 5,
    "fixed": pa.array([b"abc"] * ROWS, pa.binary(3)),
    "decimal": [Decimal("1.5")] * ROWS,
    "list": [[1, 2], None, []] * 6 + [[3]] * 2,
    "nested": [{"a": [{"b": "x", "c": 1.0}]}] * ROWS,
    "map": pa.array([[("k", [1])]] * ROWS, pa.map_(pa.string(), pa.list_(pa.int16()))),
}


def footer_of(table: pa.Table, **options: Any) -> tuple[bytes, tuple[int, int]]:
    sink = BytesIO()
    pq.write_table(table, sink, **options)
    content = sink.getvalue()
    metadata = pq.read_metadata(BytesIO(content))
    raw = content[-8 - metadata.serialized_size : -8]
    return raw, (metadata.num_row_groups, metadata.num_columns)


TABLE = pa.table(COLUMNS)
FOOTERS = [
    footer_of(TABLE, row_group_size=7, store_schema=False),
    footer_of(TABLE, row_group_size=20, compression="zstd", use_deprecated_int96_timestamps=True),
    footer_of(TABLE.select(["text", "number"]), row_group_size=1, write_statistics=False, store_schema=False),
    footer_of(pa.table({"x": pa.array([], pa.int32())}), store_schema=False),
]


def find(raw: bytes, shape: tuple[int, int], *, compiled: bool) -> tuple[str, list[int]]:
    texts = np.full(shape, -1, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(decoder_library, "LIBRARY", None)
        return check_footer(raw, texts), texts.reshape(-1).tolist()


def corruption(raw: bytes, chance: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(chance.choice([1, 1, 2, 3])):
        at = chance.randrange(len(changed) + 1)
        stop = at + chance.choice([1, 1, 1, 2, 4, 16])
        how = chance.randrange(5)
        if how == 0:
            changed[at:stop] = chance.randbytes(stop - at)
        elif how == 1 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif how == 2:
            del changed[at:stop]
        elif how == 3:
            start = chance.randrange(len(raw))
            changed[at:at] = raw[start : start + stop - at]
        elif chance.random() < 0.1:
            del changed[at:]
    return bytes(changed)


@needs_library
@pytest.mark.parametrize("compiled", [False, True])
def test_valid_footers_have_no_problem(compiled: bool) -> None:
    for raw, shape in FOOTERS:
        problem, texts = find(raw, shape, compiled=compiled)
        assert problem == ""
        assert texts == find(raw, shape, compiled=True)[1]
    told = find(*FOOTERS[2], compiled=compiled)[1]
    # pyarrow writes the sizes of text from version 20 on
    sizes = [len(text or "") if ARROW >= 20 else -1 for text in COLUMNS["text"]]
    assert told[::2] == sizes


@needs_library
@pytest.mark.parametrize("part", range(4))
def test_validators_agree_on_corrupt_footers(part: int) -> None:
    found = Counter[str]()
    for seed in range(part * 2_500, (part + 1) * 2_500):
        chance = random.Random(seed)
        raw, shape = chance.choice(FOOTERS)
        corrupt = corruption(raw, chance)
        expected = find(corrupt, shape, compiled=True)
        assert find(corrupt, shape, compiled=False) == expected, seed
        found[expected[0]] += 1
    # every problem occurs, and so do valid footers
    assert len(found) == 7


@needs_library
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        # nested lists, deeper than either parser supports
        b"\x19" + b"\x19" * 40,
        # a list whose stated length exceeds the remaining bytes
        b"\x39\xfc" + varint(2**40),
        # a field id that does not fit into 16 bits
        b"\x05" + varint(2 * 70_000) + b"\x02\x00",
        # booleans in lists of the maximum depth
        b"\x19" * 9 + b"\x12\x01\x00",
        b"\xff" * 30,
    ],
    ids=repr,
)
def test_validators_agree_on_bytes_that_are_not_a_footer(raw: bytes) -> None:
    assert find(raw, (1, 1), compiled=False) == find(raw, (1, 1), compiled=True)


def test_work_is_bounded_by_the_footer_size() -> None:
    endless = b"\x39\xfc" + varint(2**62) + b"\x00" * 1_000
    assert find_problem(endless, np.zeros(1, np.int64)) == 1


def test_footer_that_would_crash_arrow_raises_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_library, "LIBRARY", None)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(3)}), path, compression="snappy", store_schema=False)
    content = path.read_bytes()
    size = pq.read_metadata(path).serialized_size
    footer = content[-8 - size : -8]
    # the codec of the only chunk: field 4 of its metadata, after its path
    at = footer.index(b"\x01x\x15") + 3
    assert footer[at] == 2
    changed = footer[:at] + b"\x7e" + footer[at + 1 :]
    path.write_bytes(content[: -8 - size] + changed + content[-8:])
    with pytest.raises(
        windrow.SourceError, match=r"x\.parquet has a corrupt Parquet footer: .* unknown codec"
    ):
        windrow.read_parquet(path).count()
