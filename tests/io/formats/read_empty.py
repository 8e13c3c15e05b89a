"""Reads Arrow data in which one column has no values at some level, by every way; run as a program.

What crashes ends this process, and the test that started it sees that.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

import windrow


def _dense(rows: int) -> pa.Array:
    children = [pa.array(range(rows), pa.int32()), pa.array([], pa.string())]
    return pa.UnionArray.from_dense(
        pa.array([0] * rows, pa.int8()), pa.array(range(rows), pa.int32()), children
    )


def _sparse(rows: int) -> pa.Array:
    children = [pa.array(range(rows), pa.int32()), pa.array(["a"] * rows, pa.string())]
    return pa.UnionArray.from_sparse(pa.array([0] * rows, pa.int8()), children)


def _lists(values: pa.Array, rows: int) -> pa.Array:
    """Lists of one value, or, without values, lists without any."""
    ends = range(rows + 1) if len(values) else [0] * (rows + 1)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


def _typed(kind: pa.DataType, value: Any) -> Any:
    return lambda rows: pa.array([value] * rows, kind)


# the dataset of `_open` without rows
_SLICED = 3

MAKERS: dict[str, Any] = {
    "dense": _dense,
    "sparse": _sparse,
    "lists of dense": lambda rows: _lists(_dense(rows), rows),
    "lists of sparse": lambda rows: _lists(_sparse(rows), rows),
    "lists without dense": lambda rows: _lists(_dense(0), rows),
    "lists without sparse": lambda rows: _lists(_sparse(0), rows),
    "large lists without sparse": lambda rows: _lists(_sparse(0), rows).cast(pa.large_list(_sparse(0).type)),
    "struct of dense": lambda rows: pa.StructArray.from_arrays([_dense(rows)], ["u"]),
    "struct of sparse": lambda rows: pa.StructArray.from_arrays([_sparse(rows)], ["u"]),
    "sparse of lists without dense": lambda rows: pa.UnionArray.from_sparse(
        pa.array([0] * rows, pa.int8()), [_lists(_dense(0), rows)]
    ),
    "runs": lambda rows: pa.RunEndEncodedArray.from_arrays(
        pa.array([rows] if rows else [], pa.int32()), pa.array(["a"] if rows else [], pa.string())
    ),
    "dictionary": lambda rows: pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), ["a"]),
    "null": lambda rows: pa.nulls(rows),
    "map": _typed(pa.map_(pa.string(), pa.int32()), [("a", 1)]),
    "map without entries": _typed(pa.map_(pa.string(), pa.int32()), []),
    "list view": _typed(pa.list_view(pa.int32()), [1]),
    "large list view": _typed(pa.large_list_view(pa.string()), ["a"]),
    "string view": _typed(pa.string_view(), "a"),
    "binary view": _typed(pa.binary_view(), b"longer than twelve bytes"),
    "fixed list": _typed(pa.list_(pa.int32(), 3), [1, 2, 3]),
    "bool": _typed(pa.bool_(), True),
    "decimal": _typed(pa.decimal128(5, 1), None),
    "interval": _typed(pa.month_day_nano_interval(), pa.MonthDayNano([1, 2, 3])),
    "large string": _typed(pa.large_string(), ""),
}


def _store(path: Path, counts: list[int], make: Any) -> list[Any]:
    """Write batches of some rows each as a file and as a stream; returns their values."""
    batches = [pa.record_batch({"x": make(rows), "n": pa.array([7] * rows, pa.int8())}) for rows in counts]
    for name, new in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        with new(path / f"{name}.arrow", batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return [row for batch in batches for row in batch.to_pylist()]


def _open(path: Path) -> list[Any]:
    """All ways to a dataset of the batches."""
    with pa.memory_map(str(path / "file.arrow")) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
    stream = pa.ipc.open_stream((path / "stream.arrow").read_bytes())
    return [
        windrow.read_arrow(path / "file.arrow"),
        windrow.read_arrow(path / "stream.arrow"),
        windrow.from_arrow(table),
        windrow.from_arrow(table.slice(0, 0)),
        windrow.from_arrow(table, target_block_bytes=1),
        windrow.from_arrow(stream),
    ]


def _run(ds: Any) -> None:
    """Iterate in stored order, through a function, and shuffled."""
    same = ds.map_batches(lambda batch: batch, batch_format="pyarrow")
    shuffled = ds.window().random_shuffle_each_window(seed=0).options(executor="threads", cache="memory")
    shuffled.explain()
    for pipe in (same, shuffled):
        try:
            list(pipe.iter_batches(batch_size=2, batch_format="pyarrow"))
        except windrow.WindrowError as error:
            # some types cannot be shuffled
            if "corrupt" in str(error):
                raise


def main() -> None:
    """Read every kind with no rows at all, and with a batch of none between others."""
    for name, make in MAKERS.items():
        for counts in ([0], [2, 0, 1]):
            with tempfile.TemporaryDirectory() as folder:
                print(name, counts, end="", flush=True)
                expected = _store(Path(folder), counts, make)
                for number, ds in enumerate(_open(Path(folder))):
                    rows = ds.take(100)
                    assert rows == ([] if number == _SLICED else expected), (number, rows, expected)
                    if number in (0, _SLICED):
                        _run(ds)
                print(" ok", flush=True)


if __name__ == "__main__":
    main()
