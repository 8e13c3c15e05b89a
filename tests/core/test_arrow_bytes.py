"""The bytes of Arrow data, with views of text and lists too."""

from __future__ import annotations

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
