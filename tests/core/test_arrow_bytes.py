"""The bytes of Arrow data, with views of text and lists too."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa

from windrow.core.arrow_bytes import arrow_bytes


def test_bytes_are_those_of_the_referenced_rows() -> None:
    table = pa.table({"n": range(1_000), "s": ["four"] * 1_000})
    assert arrow_bytes(table.slice(10, 5)) == table.slice(10, 5).nbytes
    assert arrow_bytes(table.column("n").chunk(0).slice(0, 2)) == 16


def test_a_column_of_views_does_not_change_how_others_are_counted() -> None:
    text = pa.array(["longer than twelve bytes"] * 10, pa.string_view())
    lists = pa.array([[1, 2]] * 10, pa.list_view(pa.int64()))
    batch = pa.record_batch({"text": text, "lists": lists, "n": range(10)})
    for data in (batch, pa.table(batch)):
        views = arrow_bytes(data.slice(0, 2)) - 2 * 8
        assert 2 * (16 + 8) <= views <= text.get_total_buffer_size() + lists.get_total_buffer_size()


def test_bytes_of_unions_are_those_of_arrow_at_every_level() -> None:
    codes = pa.array([0, 1, 0, 0], pa.int8())
    children = [pa.array([1, 2, 3, 4]), pa.array(["a", "b", "c", "d"])]
    dense = pa.UnionArray.from_dense(codes, pa.array([0, 0, 1, 2], pa.int32()), children)
    for union in (dense, pa.UnionArray.from_sparse(codes, children)):
        for array in (
            union,
            pa.ListArray.from_arrays(pa.array([0, 1, 2, 4], pa.int32()), union),
            pa.LargeListArray.from_arrays(pa.array([0, 1, 2, 4], pa.int64()), union),
            pa.FixedSizeListArray.from_arrays(union, 2),
            pa.StructArray.from_arrays([union, pa.array([1, 2, 3, None])], ["u", "n"]),
            pa.MapArray.from_arrays(pa.array([0, 1, 2, 4], pa.int32()), pa.array(list("abcd")), union),
        ):
            for part in (array, array.slice(1), array.slice(1, 1), array.slice(0, 0)):
                batch = pa.record_batch({"u": part, "n": range(len(part))})
                assert arrow_bytes(part) == part.nbytes, part.type
                assert arrow_bytes(batch) == batch.nbytes, part.type


def test_bytes_of_unions_without_values_read_from_a_file_do_not_crash() -> None:
    program = """
import pyarrow as pa
from windrow.core.arrow_bytes import arrow_bytes

union = pa.UnionArray.from_sparse(pa.array([], pa.int8()), [pa.array([], pa.int64())])
lists = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), union)
for array, expected in ((union, 0), (lists, 2 * 4)):
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"x": array})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    table = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert arrow_bytes(table) == arrow_bytes(table.column(0)) == expected
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
