"""Files whose schemas differ: each row is delivered once, where a dataset of one schema has it, with its values."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
# the types that a column can have in a file; None: the file lacks it
LADDERS: dict[str, tuple[pa.DataType | None, ...]] = {
    "number": (None, pa.null(), pa.int8(), pa.int32(), pa.float32(), pa.float64()),
    "text": (None, pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())),
    "amount": (None, pa.decimal128(5, 1), pa.decimal128(9, 3)),
    "time": (None, pa.timestamp("ms"), pa.timestamp("us")),
    "record": (None, pa.struct([("b", pa.string())]), STRUCT, pa.struct([("a", pa.int8())])),
    "list": (None, pa.list_(pa.int8()), pa.list_(pa.float32()), pa.large_list(pa.int16())),
}
FILES = st.lists(
    st.tuples(
        st.integers(0, 7), st.fixed_dictionaries({name: st.sampled_from(of) for name, of in LADDERS.items()})
    ),
    min_size=1,
    max_size=5,
)


def make_row(n: int) -> dict[str, Any]:
    record = None if n % 5 == 0 else {"a": n, "b": f"b{n}"}
    values = [None if n % 3 == 0 else n, f"t{n}", n, n, record, [n] * (n % 3)]
    return {name: value if n % 4 else None for name, value in zip(LADDERS, values, strict=True)}


def make_column(rows: list[dict[str, Any]], name: str, kind: pa.DataType) -> pa.Array:
    values = [row[name] for row in rows]
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if name == "amount":
        return pa.array(values, pa.int64()).cast(pa.decimal128(19, 0)).cast(kind)
    return (
        pa.array(values, pa.string()).dictionary_encode()
        if pa.types.is_dictionary(kind)
        else pa.array(values, kind)
    )


@examples(60)
@given(FILES, st.integers(0, 2**16), st.sampled_from([1, 3, 99]), st.integers(0, 30))
def test_rows_of_grown_files(files: list[Any], seed: int, window_blocks: int, resume_at: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _check(Path(folder), files, seed, window_blocks, resume_at)


def _check(folder: Path, files: list[Any], seed: int, window_blocks: int, resume_at: int) -> None:
    expected: dict[int, dict[str, Any]] = {}
    known = {name for _, kinds in files for name, kind in kinds.items() if kind is not None}
    for number, (rows, kinds) in enumerate(files):
        numbers = range(len(expected), len(expected) + rows)
        values = [make_row(n) for n in numbers]
        stored = {name: kind for name, kind in kinds.items() if kind is not None}
        columns = {name: make_column(values, name, kind) for name, kind in stored.items()}
        table = pa.table({"n": pa.array(numbers, pa.int64()), **columns})
        for kind, content in (("grown", table), ("same", table.select(["n"]))):
            (folder / kind).mkdir(exist_ok=True)
            pq.write_table(content, folder / kind / f"{number}.parquet", row_group_size=3)
        for n, row in zip(numbers, table.to_pylist(), strict=True):
            expected[n] = {name: row.get(name) for name in known}
    pipelines = {
        kind: windrow.read_parquet(folder / kind, target_block_bytes=1)
        .window(blocks_per_window=window_blocks)
        .random_shuffle_each_window(seed=seed)
        for kind in ("grown", "same")
    }
    with pipelines["same"].iterator() as shard:
        order = [row["n"] for row in shard.iter_rows()]
    assert sorted(order) == sorted(expected)
    with pipelines["grown"].iterator() as shard:
        found = list(islice(shard.iter_rows(), resume_at))
        state = shard.state_dict()
    if resume_at < len(order):
        with pipelines["grown"].iterator(state_dict=state) as shard:
            found += shard.iter_rows()
    assert [row["n"] for row in found] == order
    schema = pipelines["grown"].schema()
    for row in found:
        assert _plain(row, known) == _fill(expected[row["n"]], schema)


def _plain(row: dict[str, Any], known: set[str]) -> dict[str, Any]:
    return {name: row[name] for name in known}


def _fill(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """The values as the unified type has them: structs with all fields."""
    return {name: pa.scalar(value, schema.field(name).type).as_py() for name, value in row.items()}
