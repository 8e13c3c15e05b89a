"""Valid columns of all kinds that the decoder supports, as written by pyarrow: what is mutated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.io.chunks import COMPRESSIONS
from windrow.io.parquet.chunks import Chunk
from windrow.io.parquet.stored_chunks import NestedLeaf, StoredFooter

ROWS = 120
TEXT = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
WORDS = (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.timestamp("us"))
OTHERS = (pa.bool_(), pa.decimal128(7, 2), pa.decimal128(38, 0))
NESTED = (
    pa.list_(pa.int64()),
    pa.large_list(pa.float32()),
    pa.list_(pa.int32(), 3),
    pa.list_(pa.struct({"a": pa.int32(), "b": pa.float64()})),
    pa.struct({"a": pa.int64(), "b": pa.int32()}),
)


@dataclass(frozen=True)
class Base:
    """A valid column: the pages of its leaves, their metadata in the footer, and the complete footer."""

    kind: pa.DataType
    pages: tuple[bytes, ...]
    chunks: tuple[Chunk | NestedLeaf, ...]
    footer: bytes
    leaves: tuple[int, int]


def make_bases() -> list[Base]:
    """Make columns of all kinds that the decoder supports, as written by pyarrow."""
    rng = random.Random(0)
    kinds = (*WORDS, *OTHERS, *TEXT, *NESTED)
    return [
        make_base(kind, encoding, *choice, rng)
        for kind, choice in product(kinds, product(("1.0", "2.0"), COMPRESSIONS))
        for encoding in encodings(kind)
    ]


def encodings(kind: pa.DataType) -> tuple[str, ...]:
    both = ("PLAIN", "PLAIN_DICTIONARY")
    if kind in TEXT or pa.types.is_decimal(kind):
        return both
    if pa.types.is_boolean(kind):
        return ("PLAIN", "RLE")
    inner = kind.field(0).type if kind.num_fields else kind
    inner = inner.field(0).type if inner.num_fields else inner
    more = () if pa.types.is_floating(inner) else ("DELTA_BINARY_PACKED",)
    return (*both, *more, "BYTE_STREAM_SPLIT")


def make_base(kind: pa.DataType, encoding: str, version: str, compression: str, rng: random.Random) -> Base:
    numbers = [rng.randrange(9 if encoding == "PLAIN_DICTIONARY" else 2**20) for _ in range(ROWS)]
    nulls = rng.choice([0, 0, 0.05, 0.6])
    if kind in NESTED:
        column = pa.array([draw_cell(kind, number, nulls, rng) for number in numbers], kind)
    else:
        cells = [None if rng.random() < nulls else as_cell(kind, number) for number in numbers]
        column = pa.array(cells, kind)
    nullable = column.null_count > 0 or rng.random() < 0.5
    fields = [pa.field("x", kind, nullable=nullable), pa.field("n", pa.list_(pa.struct({"a": pa.int8()})))]
    table = pa.table([column, [[{"a": 1}]] * ROWS], schema=pa.schema(fields))
    sink = BytesIO()
    is_dictionary = encoding == "PLAIN_DICTIONARY"
    pq.write_table(
        table,
        sink,
        compression=compression,
        data_page_version=version,
        use_dictionary=is_dictionary,
        column_encoding=None if is_dictionary else encode_leaves(table.schema, encoding),
        data_page_size=rng.choice([64, 2**20]),
        write_batch_size=rng.choice([16, 1024]),
        write_statistics=rng.random() < 0.5,
        store_schema=True,
    )
    content = sink.getvalue()
    metadata = pq.read_metadata(BytesIO(content))
    stored = StoredFooter(metadata)
    flat = stored.chunk(0, "x", kind)
    chunks = stored.nested(0, "x", kind) if flat is None else (flat,)
    assert chunks is not None, (kind, compression, version, encoding)
    pages = tuple(content[chunk.start : chunk.start + chunk.size_bytes] for chunk in chunks)
    footer = content[-8 - metadata.serialized_size : -8]
    return Base(kind, pages, chunks, footer, (metadata.num_row_groups, metadata.num_columns))


def encode_leaves(schema: pa.Schema, encoding: str) -> dict[str, str]:
    """The encoding of each leaf of column x; differences are those of integers."""
    sink = BytesIO()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.read_metadata(BytesIO(sink.getvalue())).schema
    columns = [leaves.column(number) for number in range(len(leaves) - 1)]
    is_delta = encoding == "DELTA_BINARY_PACKED"
    return {
        leaf.path: "BYTE_STREAM_SPLIT" if is_delta and leaf.physical_type == "DOUBLE" else encoding
        for leaf in columns
    }


def as_cell(kind: pa.DataType, number: int) -> Any:
    if kind in TEXT:
        return ("text " * (number % 7) + str(number)).encode()
    if pa.types.is_decimal(kind):
        return Decimal(number % 10_000 - 5_000)
    return bool(number % 2) if pa.types.is_boolean(kind) else number


def draw_cell(kind: pa.DataType, number: int, nulls: float, rng: random.Random) -> Any:
    if pa.types.is_struct(kind):
        return {field.name: number + at for at, field in enumerate(kind)}
    is_fixed = pa.types.is_fixed_size_list(kind)
    if not is_fixed and rng.random() < nulls:
        return None
    item = draw_cell(kind.value_type, number, 0, rng) if pa.types.is_struct(kind.value_type) else number
    return [item] * (kind.list_size if is_fixed else rng.choice([0, 1, 2, 5]))
