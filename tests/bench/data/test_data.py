from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.data.files import Layout, plan_layout, write_file
from bench.data.generators import draw_integers, draw_raw, draw_unit, make_dlrm


def test_same_parameters_give_the_same_rows() -> None:
    first = make_dlrm(1000, 500, 3, 0)
    assert first.equals(make_dlrm(1000, 500, 3, 0))
    assert not first.drop_columns("key").equals(make_dlrm(1000, 500, 3, 1).drop_columns("key"))
    assert not first.drop_columns("key").equals(make_dlrm(1000, 500, 4, 0).drop_columns("key"))


def test_draws_are_stable() -> None:
    # datasets generated years apart must have the same rows, so they depend on Philox only
    raw = draw_raw(7, 2, 5, 3)
    assert raw.tolist() == PINNED
    assert draw_integers(raw, 1000).tolist() == [(word >> 32) * 1000 >> 32 for word in PINNED]
    assert draw_unit(raw).tolist() == [(word >> 11) / 2**53 for word in PINNED]


PINNED = [9768265065511003490, 6244053782864664058, 17121882707027018269]


def test_dlrm_has_168_bytes_per_row_and_a_learnable_label() -> None:
    table = make_dlrm(0, 20_000, 0, 0)
    assert sum(field.type.bit_width for field in table.schema) == 168 * 8
    labels, hot = table["labels"].to_numpy(), table["one_hot0"].to_numpy()
    means = [labels[hot == value].mean() for value in range(3)]
    assert labels.min() >= 0
    assert labels.max() < 1
    assert max(means) - min(means) > 0.05


def test_keys_are_consecutive_over_all_files(tmp_path: Path) -> None:
    layout = Layout(rows=1003, group_rows=100)
    keys: list[int] = []
    for number, rows in enumerate(layout.files()):
        path = tmp_path / f"{number}.parquet"
        write_file(rows, layout.group_rows, path)
        keys += pq.read_table(path, columns=["key"])["key"].to_pylist()
    assert keys == list(range(1003))
    assert [path.suffix for path in tmp_path.iterdir()] == [".parquet"] * 3


@pytest.mark.parametrize("size", [168, 1000, 168_000, 10**8, 1_400_000_000])
def test_layout_covers_every_row_once(size: int) -> None:
    layout = plan_layout(size)
    files = layout.files()
    assert (files[0].start, files[-1].stop) == (0, layout.rows)
    assert all(one.stop == other.start for one, other in pairwise(files))
    assert abs(layout.rows * 168 - size) <= max(168, layout.group_rows * 168 / 2)
