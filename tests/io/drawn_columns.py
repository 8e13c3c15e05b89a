"""Random columns of every type that the decoder supports, and files of them with any options that Arrow has."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.io.chunks import WRITING

__all__ = ["FLAT", "draw_nested", "write_columns"]


def draw_integers(width: int, rows: int, distinct: int, rng: np.random.Generator) -> NDArray[Any]:
    """Integers of all sizes, with extreme values, whose differences wrap around, or in one narrow range."""
    kind, bits = np.dtype(f"i{width}"), int(rng.integers(0, 8 * width))
    info, base = np.iinfo(kind), int(rng.integers(-(2**31), 2**31))
    values = rng.integers(info.min, info.max, distinct, kind, endpoint=True) >> kind.type(bits)
    if bits > 8:
        # numbers near a base, which map outputs hold in fewer bytes
        values = (values.astype(np.int64) + base).astype(kind) if width == 8 else values
    elif rng.integers(2):
        values[rng.integers(0, distinct, 2)] = info.min, info.max
    return values[rng.integers(0, distinct, rows)]


def as_kind(kind: pa.DataType) -> Callable[..., pa.Array]:
    def draw(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
        words = draw_integers(kind.bit_width // 8, rows, distinct, rng)
        words = words % 86_400_000_000 if pa.types.is_time64(kind) else words
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(words)])

    return draw


def draw_floats(kind: Any) -> Callable[..., pa.Array]:
    def draw(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
        values = rng.standard_normal(distinct).astype(kind)
        values[rng.integers(0, distinct)] = rng.choice([0.0, -0.0, np.inf, np.finfo(kind).tiny])
        return pa.array(values[rng.integers(0, distinct, rows)])

    return draw


def draw_booleans(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
    return pa.array(rng.random(rows) < rng.choice([0.0, 0.1, 0.5, 1.0]))


def draw_decimals(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
    precision = int(rng.integers(1, 39))
    most = 10**precision - 1
    some = [
        int.from_bytes(rng.bytes(20), "little", signed=True) % (2 * most + 1) - most for _ in range(distinct)
    ]
    some[0] = int(rng.integers(-1, 2)) * most
    # from an integer, since arithmetic of decimals rounds to 28 digits
    whole = [Decimal((int(number < 0), tuple(map(int, str(abs(number)))), 0)) for number in some]
    return pa.array([whole[at] for at in rng.integers(0, distinct, rows)], pa.decimal128(precision, 0))


def draw_texts(kind: pa.DataType) -> Callable[..., pa.Array]:
    def draw(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
        longest = int(rng.choice([0, 7, 33, 200]))
        texts = ["é" * int(length) for length in rng.integers(0, longest, distinct, endpoint=True)]
        return pa.array([texts[at] for at in rng.integers(0, distinct, rows)], pa.string()).cast(kind)

    return draw


def draw_valid(rows: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which rows are not null: all, none, most, few, or runs of rows."""
    share = rng.choice([0.0, 0.02, 0.5, 0.98, 1.0, -1.0])
    if share >= 0:
        valid = rng.random(rows) >= share
    else:
        valid = np.repeat(rng.random(rows) < 0.5, rng.integers(1, 90, rows))[:rows]
    return np.asarray(valid)


def with_nulls(array: pa.Array, rng: np.random.Generator) -> pa.Array:
    """The same array, where some values are null; what lies below them stays."""
    buffers = array.buffers()
    valid = pa.py_buffer(np.packbits(draw_valid(len(array), rng), bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [valid, *buffers[1:]])


FLAT: dict[str, Callable[..., pa.Array]] = {
    str(kind): as_kind(kind)
    for kind in (
        pa.int32(),
        pa.int64(),
        pa.uint32(),
        pa.uint64(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("ms", "UTC"),
        pa.time64("us"),
    )
}
FLAT |= {"float32": draw_floats(np.float32), "float64": draw_floats(np.float64)}
FLAT |= {"bool": draw_booleans, "decimal": draw_decimals}
FLAT |= {
    str(kind): draw_texts(kind) for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
}
NUMBERS = ("int32", "int64", "uint32", "date32[day]", "float32", "float64")


def draw_items(
    rows: int, distinct: int, nullable: bool, is_struct: bool, rng: np.random.Generator
) -> pa.Array:
    names = rng.choice(NUMBERS, 3 if is_struct else 1)
    drawn = [FLAT[name](rows, distinct, rng) for name in names]
    if not is_struct:
        return drawn[0]
    fields = [pa.field(name, array.type, nullable) for name, array in zip("abc", drawn, strict=False)]
    return pa.StructArray.from_arrays(drawn, fields=fields)


def draw_nested(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
    """Lists of numbers or of structs, some of which are null or empty, or structs."""
    how = rng.choice(["struct", "list", "large", "fixed"])
    nullable, is_struct = bool(rng.integers(2)), bool(rng.integers(2))
    if how == "struct":
        return draw_items(rows, distinct, nullable, True, rng)
    size = int(rng.integers(1, 6))
    lengths = np.full(rows, size) if how == "fixed" else rng.integers(0, size, rows)
    if how != "fixed" and rng.integers(4) == 0:
        lengths[rng.integers(0, rows, 2)] = 400  # spans pages
    valid = draw_valid(rows, rng) if how != "fixed" else np.ones(rows, bool)
    lengths[~valid] = 0
    items = draw_items(int(lengths.sum()), distinct, nullable, is_struct, rng)
    field = pa.field("item", items.type, nullable)
    if how == "fixed":
        return pa.FixedSizeListArray.from_arrays(items, type=pa.list_(field, size))
    kind = pa.large_list(field) if how == "large" else pa.list_(field)
    offsets = np.cumsum([0, *lengths], dtype=np.int64 if how == "large" else np.int32)
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(offsets)], children=[items])


def draw_encoding(kind: pa.DataType, rng: np.random.Generator) -> str | None:
    """An encoding that Arrow writes for a type; None for a dictionary."""
    if pa.types.is_boolean(kind):
        return str(rng.choice(["PLAIN", "RLE"]))
    choices = ["PLAIN", None, None]
    is_text = any(check(kind) for check in (pa.types.is_string, pa.types.is_binary)) or "large" in str(kind)
    if pa.types.is_floating(kind):
        choices += ["BYTE_STREAM_SPLIT"] * 2
    elif not is_text and not pa.types.is_decimal(kind):
        choices += ["BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED", "DELTA_BINARY_PACKED"]
    return choices[rng.integers(len(choices))]


def leaves_of(field: pa.Field, path: str) -> list[tuple[str, pa.DataType]]:
    if pa.types.is_struct(field.type):
        return [leaf for inner in field.type for leaf in leaves_of(inner, f"{path}.{inner.name}")]
    if field.type.num_fields:
        return leaves_of(field.type.value_field, f"{path}.list.element")
    return [(path, field.type)]


def write_columns(path: Path, data: st.DataObject, draws: dict[str, Callable[..., pa.Array]]) -> int:
    """Write one to three columns; returns the seed of their random numbers."""
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    rows = data.draw(st.integers(1, 1_500))
    names = data.draw(st.lists(st.sampled_from(sorted(draws)), min_size=1, max_size=3))
    arrays, fields = [], []
    for at, name in enumerate(names):
        array = draws[name](rows, data.draw(st.sampled_from([1, 3, 100, 2_000])), rng)
        is_flat = not array.type.num_fields
        if is_flat and data.draw(st.booleans()):
            array = with_nulls(array, rng)
        arrays.append(array)
        fields.append(pa.field(f"{at}", array.type, bool(array.null_count or rng.integers(2))))
    table = pa.table(arrays, schema=pa.schema(fields))
    leaves = [leaf for field in table.schema for leaf in leaves_of(field, field.name)]
    encodings = {path: draw_encoding(kind, rng) for path, kind in leaves}
    options = data.draw(WRITING)
    del options["nullable"], options["use_dictionary"]  # each field and leaf has its own
    pq.write_table(
        table,
        path,
        use_dictionary=[name for name, encoding in encodings.items() if encoding is None],
        column_encoding={name: encoding for name, encoding in encodings.items() if encoding},
        **options,
    )
    return seed
