"""The tables of ``shapes``: deterministic, each written as such data often is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.data.files import make_once
from bench.data.generators import CARDINALITIES, draw_integers, draw_raw, draw_unit

FLIGHTS = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "data" / "flights-3m.parquet"
_SEED = 7
_NULLS = 0.05
_VOCABULARY = 50_257
_TOKENS = (64, 1_200)
_IMAGE_BYTES = (10_000, 50_000)
_EMBEDDING = 768

# number of rows and of the row group -> its table
MakeGroup = Callable[[int, int], pa.Table]


@dataclass(frozen=True)
class Layout:
    files: int = 8
    groups: int = 2
    # of a row group; None: as many as the size asked for has
    rows: int | None = None
    # tables that a row group is made from, so that not all of it is in memory
    parts: int = 1
    # Hive folders, ``day=0`` and so on
    folders: int = 0

    def path(self, part: int) -> str:
        folder = f"day={part * self.folders // self.files}/" if self.folders else ""
        return f"{folder}part-{part}.parquet"


@dataclass(frozen=True)
class Shape:
    title: str
    # the share of the scan's speed, by CPU time on threads to Arrow, that windrow has to reach
    asked: float
    row_bytes: int
    make: MakeGroup
    write: Mapping[str, Any] = field(default_factory=dict)
    layout: Layout = Layout()
    by_default: bool = True
    window: int | None = None
    memory_limit: int | None = None


def _raw(rows: int, group: int, column: int) -> NDArray[np.uint64]:
    return draw_raw(_SEED, group, column, rows)


def _numbers(rows: int, group: int) -> pa.Table:
    """19 columns of integers with few to many distinct values, and a double."""
    columns: dict[str, NDArray[Any]] = {
        name: draw_integers(_raw(rows, group, number), high)
        for number, (name, high) in enumerate(CARDINALITIES.items())
    }
    return pa.table({**columns, "label": draw_unit(_raw(rows, group, 100))})


def _numbers_with_nulls(rows: int, group: int) -> pa.Table:
    table = _numbers(rows, group)
    arrays = [
        pa.array(column.to_numpy(), mask=draw_unit(_raw(table.num_rows, group, 200 + number)) < _NULLS)
        for number, column in enumerate(table.columns)
    ]
    return pa.table(arrays, names=table.column_names)


def _measures(rows: int, group: int) -> pa.Table:
    first = np.cumsum(draw_integers(_raw(rows, group, 0), 1_000))
    counters = {f"counter{k}": first * (k + 1) + draw_integers(_raw(rows, group, k), 50) for k in range(10)}
    doubles = {f"value{k}": 20 + draw_unit(_raw(rows, group, 50 + k)) for k in range(10)}
    return pa.table({**counters, **doubles})


def _lengths(rows: int, group: int, bounds: tuple[int, int]) -> NDArray[np.int64]:
    return bounds[0] + draw_integers(_raw(rows, group, 300), bounds[1] - bounds[0] + 1)


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])


def _tokens(rows: int, group: int) -> pa.Table:
    offsets = _offsets(_lengths(rows, group, _TOKENS))
    # frequent tokens are frequent: the square of a uniform number
    tokens = (_VOCABULARY * draw_unit(_raw(int(offsets[-1]), group, 0)) ** 2).astype(np.int32)
    return pa.table({"tokens": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))})


def _embeddings(rows: int, group: int) -> pa.Table:
    values = draw_unit(_raw(rows * _EMBEDDING, group, 0)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), _EMBEDDING)
    return pa.table({"id": np.arange(rows) + group * rows, "embedding": lists})


_WORDS = [f"{number * 2_654_435_761 % 2**32:x}"[: 2 + number % 9] for number in range(20_000)]


def make_sentences(rows: int, group: int, column: int, words: int) -> pa.Array:
    """Texts of 1 to ``words`` words."""
    counts = 1 + draw_integers(_raw(rows, group, 2 * column), words)
    offsets = _offsets(counts)
    # frequent words are frequent, as tokens are
    drawn = draw_unit(_raw(int(offsets[-1]), group, 2 * column + 1)) ** 2
    chosen = pa.array(_WORDS).take(pa.array((len(_WORDS) * drawn).astype(np.int32)))
    import pyarrow.compute as pc

    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), chosen)
    return pc.binary_join(lists, " ")


def _text(rows: int, group: int) -> pa.Table:
    languages = pa.array(["en", "de", "fr", "es", "zh", "ja", "pt", "it"])
    return pa.table(
        {
            "body": make_sentences(rows, group, 0, 120),
            "title": make_sentences(rows, group, 1, 12),
            "url": make_sentences(rows, group, 2, 6),
            "language": languages.take(pa.array(draw_integers(_raw(rows, group, 9), 8))),
        }
    )


def _images(rows: int, group: int) -> pa.Table:
    offsets = _offsets(_lengths(rows, group, _IMAGE_BYTES))
    content = _raw(int(offsets[-1]) // 8 + 1, group, 0).view(np.uint8)
    binary = pa.Array.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )
    return pa.table({"image": binary, "label": draw_integers(_raw(rows, group, 1), 1_000)})


def _structs(rows: int, group: int) -> pa.Table:
    """Lists of up to 20 boxes with a class and four corners, and a struct of three."""
    offsets = _offsets(draw_integers(_raw(rows, group, 300), 21))
    count = int(offsets[-1])
    corners = {f"x{k}": draw_unit(_raw(count, group, k)).astype(np.float32) for k in range(4)}
    classes = draw_integers(_raw(count, group, 9), 80).astype(np.int32)
    boxes = pa.StructArray.from_arrays(
        [pa.array(classes), *map(pa.array, corners.values())], names=["class", *corners]
    )
    camera = pa.StructArray.from_arrays(
        [pa.array(draw_integers(_raw(rows, group, 20 + k), 10_000)) for k in range(2)]
        + [pa.array(draw_unit(_raw(rows, group, 22)))],
        names=["camera", "frame", "time"],
    )
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), boxes)
    return pa.table({"boxes": lists, "camera": camera})


def _business(rows: int, group: int) -> pa.Table:
    """Decimals, timestamps, booleans and single-precision numbers, four of each."""
    cents = [pa.array(draw_integers(_raw(rows, group, k), 10**7)) for k in range(4)]
    times = [draw_integers(_raw(rows, group, 10 + k), 2**31) * 1_000_000 for k in range(4)]
    flags = [draw_integers(_raw(rows, group, 20 + k), 2).astype(bool) for k in range(4)]
    ratios = [draw_unit(_raw(rows, group, 30 + k)).astype(np.float32) for k in range(4)]
    return pa.table(
        {
            **{f"amount{k}": _to_decimal(value) for k, value in enumerate(cents)},
            **{f"time{k}": pa.array(value, pa.timestamp("us")) for k, value in enumerate(times)},
            **{f"flag{k}": value for k, value in enumerate(flags)},
            **{f"ratio{k}": value for k, value in enumerate(ratios)},
        }
    )


def _to_decimal(cents: pa.Array) -> pa.Array:
    words = np.zeros((len(cents), 2), np.int64)
    words[:, 0] = cents.to_numpy()
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(cents), [None, pa.py_buffer(words)])


def _wide(rows: int, group: int) -> pa.Table:
    return pa.table({f"x{k}": draw_unit(_raw(rows, group, k)).astype(np.float32) for k in range(1_000)})


def _narrow(rows: int, group: int) -> pa.Table:
    return pa.table(
        {"key": draw_integers(_raw(rows, group, 0), 10**6), "value": draw_unit(_raw(rows, group, 1))}
    )


def _three(rows: int, group: int) -> pa.Table:
    return pa.table(
        {
            "key": np.arange(rows) + group * rows,
            "code": draw_integers(_raw(rows, group, 0), 1_000).astype(np.int32),
            "value": draw_unit(_raw(rows, group, 1)),
        }
    )


def _departures(rows: int, group: int) -> pa.Table:
    """Times, delays with nulls, and codes of carriers, aircraft and airports."""

    def codes(column: int, count: int, pattern: str) -> pa.Array:
        names = pa.array([pattern.format(number) for number in range(count)])
        return names.take(pa.array(draw_integers(_raw(rows, group, column), count)))

    def minutes(column: int) -> pa.Array:
        # most delays are short
        values = np.floor(600 * draw_unit(_raw(rows, group, column)) ** 4 - 20)
        return pa.array(values, mask=draw_unit(_raw(rows, group, column + 100)) < _NULLS)

    return pa.table(
        {
            "month": np.full(rows, 1 + group % 12, np.int8),
            "day": (1 + np.arange(rows) * 28 // rows).astype(np.int8),
            "scheduled": (500 + draw_integers(_raw(rows, group, 0), 1_800)).astype(np.int16),
            "departure_delay": minutes(1),
            "arrival_delay": minutes(2),
            "carrier": codes(3, 16, "C{}"),
            "flight": draw_integers(_raw(rows, group, 4), 8_000).astype(np.int32),
            "tail": codes(5, 4_000, "N{}AB"),
            "origin": codes(6, 3, "A{}R"),
            "destination": codes(7, 105, "D{}"),
            "distance": (80 + draw_integers(_raw(rows, group, 8), 4_900)).astype(np.float32),
        }
    )


_DELTA: Mapping[str, Any] = {
    "data_page_version": "2.0",
    "compression": "zstd",
    "use_dictionary": False,
    "column_encoding": {
        **{f"counter{k}": "DELTA_BINARY_PACKED" for k in range(10)},
        **{f"value{k}": "BYTE_STREAM_SPLIT" for k in range(10)},
    },
}

SHAPES: Mapping[str, Shape] = {
    "plain": Shape("20 numbers, Snappy, dictionaries", 0.80, 160, _numbers),
    "zstd": Shape("the same, zstd", 0.75, 160, _numbers, {"compression": "zstd"}),
    "nulls": Shape("the same, Snappy, 5 % nulls", 0.70, 160, _numbers_with_nulls),
    "delta": Shape("pages v2, zstd, delta, byte-stream-split", 0.70, 160, _measures, _DELTA),
    "tokens": Shape("token lists of 64 to 1,200", 0.70, 4 * 632, _tokens),
    "embeddings": Shape("embeddings, 768 floats", 0.80, 8 + 4 * _EMBEDDING, _embeddings),
    "text": Shape("text, four columns", 0.75, 480, _text),
    "images": Shape("images of 10 to 50 KB", 0.85, 30_008, _images, {"compression": "none"}),
    "structs": Shape("lists of structs, structs", 0.65, 228, _structs),
    "business": Shape("decimals, times, booleans, floats", 0.80, 116, _business),
    "wide": Shape("1,000 columns", 0.75, 4_000, _wide),
    "narrow": Shape("2 columns", 0.65, 16, _narrow),
    "flights": Shape("flights", 0.95, 0, _numbers),
    "small-files": Shape("2,000 files of 1,000 rows", 1.0, 20, _three, layout=Layout(2_000, 1, 1_000)),
    "tiny-files": Shape("2,000 files of 100 rows", 1.0, 20, _three, layout=Layout(2_000, 1, 100)),
    "hive-files": Shape(
        "20,000 files of 100 rows, 100 folders",
        1.0,
        20,
        _three,
        layout=Layout(20_000, 1, 100, folders=100),
        by_default=False,
    ),
    "large-group": Shape(
        "a row group of 2.4 GB",
        0.5,
        160,
        _numbers,
        layout=Layout(1, 1, 15_000_000, parts=60),
        by_default=False,
        window=64 * 2**20,
        memory_limit=256 * 2**20,
    ),
    "small-file": Shape(
        "a file of 13 MB, zstd", 0.7, 60, _departures, {"compression": "zstd"}, layout=Layout(1, 11, 115_000)
    ),
}


def find_files(name: str, folder: Path, size_bytes: int) -> list[str]:
    """Write the files of a shape unless that was done before, and return them in order; flights are not generated."""
    if name == "flights":
        return [str(FLIGHTS)] if FLIGHTS.exists() else []
    shape = SHAPES[name]
    layout = shape.layout
    rows = layout.rows or max(1, size_bytes // (shape.row_bytes * layout.files * layout.groups))

    def make(home: Path) -> None:
        for part in range(layout.files):
            path = home / layout.path(part)
            path.parent.mkdir(parents=True, exist_ok=True)
            if layout.parts > 1:
                _write_in_parts(path, shape, rows)
                continue
            groups = [shape.make(rows, layout.groups * part + number) for number in range(layout.groups)]
            with pq.ParquetWriter(path, groups[0].schema, **shape.write) as writer:
                for group in groups:
                    writer.write_table(group, row_group_size=rows)

    home = make_once(folder / (f"{name}-{size_bytes}" if layout.rows is None else name), make)
    return [str(home / layout.path(part)) for part in range(layout.files)]


def _write_in_parts(path: Path, shape: Shape, rows: int) -> None:
    """Write one row group out of a memory-mapped Arrow file, so that memory does not grow with its size."""
    parts = shape.layout.parts
    spilled = path.with_suffix(".arrow")
    first = shape.make(rows // parts, 0)
    with pa.OSFile(str(spilled), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
        for part in range(parts):
            writer.write_table(shape.make(rows // parts, part))
    with pa.memory_map(str(spilled)) as stored:
        pq.write_table(pa.ipc.open_file(stored).read_all(), path, row_group_size=rows, **shape.write)
    spilled.unlink()
