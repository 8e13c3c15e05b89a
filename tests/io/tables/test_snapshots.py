"""Behaviour common to tables of every kind."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.files import read_all
from tests.io.tables.conftest import Kind


def numbers(start: int, stop: int, **more: Any) -> pa.Table:
    rows = range(start, stop)
    return pa.table(
        {"x": pa.array(rows, pa.int64()), "s": pa.array([f"s{row}" for row in rows], pa.string()), **more}
    )


def rows(dataset: Any) -> list[int]:
    return [row["x"] for row in dataset.iter_rows()]


def shuffled(dataset: windrow.Dataset) -> windrow.DatasetPipeline:
    return dataset.window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=7)


def test_rows_schema_and_counts(kind: Kind) -> None:
    kind.append(numbers(0, 10))
    kind.append(numbers(10, 25))
    dataset = kind.read()
    assert dataset.schema().equals(pa.schema([("x", pa.int64()), ("s", pa.string())]))
    assert dataset.count() == 25
    source = dataset._plan.source
    assert source.blocks.rows_known
    assert sorted(source.blocks.rows.tolist()) == [10, 15]
    assert read_all(source).sort_by("x").equals(numbers(0, 25).combine_chunks())  # type: ignore[arg-type]
    assert kind.read(columns=["s"]).columns() == ["s"]
    assert kind.read(columns=["s", "x"]).columns() == ["s", "x"]


def test_dataset_keeps_reading_its_version(kind: Kind) -> None:
    kind.append(numbers(0, 10))
    kind.append(numbers(10, 20))
    before, first = kind.read(), kind.read(**kind.version(1))
    kind.append(numbers(20, 30))
    kind.delete("x < 5")
    assert sorted(rows(first)) == list(range(10))
    assert sorted(rows(before)) == list(range(20))
    assert sorted(rows(pickle.loads(pickle.dumps(before)))) == list(range(20))
    assert sorted(rows(kind.read())) == list(range(5, 30))
    assert kind.read().count() == 25


def test_append_during_an_epoch_does_not_change_the_order(kind: Kind) -> None:
    for start in range(0, 40, 10):
        kind.append(numbers(start, start + 10))
    expected = [row["x"] for row in shuffled(kind.read()).iter_rows()]
    shard = shuffled(kind.read()).iterator()
    found = []
    for at, row in enumerate(shard.iter_rows()):
        found.append(row["x"])
        if at == 3:
            kind.append(numbers(100, 110))
    found += [row["x"] for row in shard.iter_rows()]
    assert found == expected
    assert sorted(found[:40]) == list(range(40))


def test_order_equals_that_of_the_same_blocks_in_parquet(kind: Kind, tmp_path: Path) -> None:
    for start in range(0, 40, 10):
        kind.append(numbers(start, start + 10))
    source = kind.read()._plan.source
    for at, address in enumerate(source.addresses(range(4))):
        pq.write_table(source.reader.read(address), tmp_path / f"copy-{at}.parquet")
    copy = windrow.read_parquet(f"{tmp_path}/copy-*.parquet")
    for first, second in ((kind.read(), copy), (shuffled(kind.read()), shuffled(copy))):
        assert rows(first) == rows(second)


def test_state_resumes_only_on_its_own_version(kind: Kind) -> None:
    kind.append(numbers(0, 40))
    shard = shuffled(kind.read()).iterator()
    batches = shard.iter_batches(batch_size=8)
    done = [next(iter(batches))["x"].tolist()]
    state = shard.state_dict()
    rest = [batch["x"].tolist() for batch in batches]
    kind.append(numbers(40, 41))
    old = shuffled(kind.read(**kind.version(1))).iterator(state_dict=state)
    assert [batch["x"].tolist() for batch in old.iter_batches(batch_size=8)] == rest
    assert sorted(done[0] + [x for batch in rest for x in batch]) == list(range(40))
    with pytest.raises(windrow.StateError, match="Read the data as it was"):
        shuffled(kind.read()).iterator(state_dict=state)


def test_fingerprint_differs_between_versions_with_equal_rows(kind: Kind, tmp_path: Path) -> None:
    kind.append(numbers(0, 10))
    first = kind.read()._plan.source
    kind.append(numbers(0, 0))
    second = kind.read()._plan.source
    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == kind.read(**kind.version(1))._plan.source.fingerprint


def test_added_column_is_null_in_older_rows(kind: Kind) -> None:
    kind.append(numbers(0, 4))
    if kind.name == "lance":
        import lance

        lance.dataset(str(kind.data.parent)).add_columns(pa.schema([("z", pa.float64())]))
    kind.append(numbers(4, 6, z=[0.5, 1.5]))
    found = read_all(kind.read()._plan.source).sort_by("x")  # type: ignore[arg-type]
    assert found["z"].to_pylist() == [None] * 4 + [0.5, 1.5]
    assert kind.read(filter=pc.field("z").is_null()).count() == 4
    assert sorted(rows(kind.read(filter=pc.field("z") > 0))) == [4, 5]
    assert kind.read(columns=["z"], filter=pc.field("x") < 2).take() == [{"z": None}, {"z": None}]


@pytest.mark.parametrize(
    "condition",
    [
        pc.field("x") >= 15,
        (pc.field("x") < 3) | (pc.field("s") == "s17"),
        pc.field("x").isin([1, 18]),
        pc.field("x") > 1_000,
        ~(pc.field("x") > 4),
    ],
    ids=str,
)
def test_filters_are_exact(kind: Kind, condition: pc.Expression) -> None:
    kind.append(numbers(0, 10))
    kind.append(numbers(10, 20))
    kind.delete("x = 3 or x = 16")
    everything = numbers(0, 20).filter(~pc.field("x").isin([3, 16]))
    expected = everything.filter(condition)["x"].to_pylist()
    assert sorted(rows(kind.read(filter=condition))) == expected
    assert kind.read(filter=condition).count() == len(expected)
    assert sorted(row["s"] for row in kind.read(filter=condition, columns=["s"]).iter_rows()) == sorted(
        f"s{x}" for x in expected
    )


def test_rows_have_ids(kind: Kind) -> None:
    kind.append(numbers(0, 10))
    kind.append(numbers(10, 20))
    kind.delete("x = 4")
    dataset = kind.read().options(row_id_column="id")
    stored = [(row["id"], row["x"]) for row in dataset.iter_rows()]
    assert [number for number, _ in stored] == list(range(19))
    by_number = dict(stored)
    for row in shuffled(kind.read()).options(row_id_column="id").iter_rows():
        assert by_number[row["id"]] == row["x"]
    assert len({origin[:2] for origin in dataset.row_lineage([0, 18])}) == 2


def test_pickled_readers_and_addresses_are_small(kind: Kind) -> None:
    for start in range(0, 60, 10):
        kind.append(numbers(start, start + 10))
    source = kind.read()._plan.source
    assert len(pickle.dumps(source.reader)) < 3_000
    assert len(pickle.dumps(source.addresses([0]))) < 1_000


def test_missing_file_is_reported(kind: Kind) -> None:
    kind.append(numbers(0, 10))
    dataset = kind.read()
    for path in sorted(kind.data.rglob("*")):
        if path.suffix in (".parquet", ".lance"):
            path.unlink()
    with pytest.raises(windrow.SourceError, match=r"(?i)(missing|not found).*read the table again"):
        rows(dataset)


def test_errors_name_the_problem(kind: Kind) -> None:
    kind.append(numbers(0, 3))
    with pytest.raises(windrow.PlanError, match="no column 'y'"):
        kind.read(columns=["y"])
    with pytest.raises(windrow.PlanError, match="no column 'y'"):
        kind.read(filter=pc.field("y") > 0)
    with pytest.raises(windrow.SourceError, match=r"77"):
        kind.read(**{next(iter(kind.version(1))): 77})
    with pytest.raises(windrow.PlanError, match="time zone"):
        kind.read(**{next(iter(kind.version(1))): datetime.datetime(2026, 1, 1)})
    with pytest.raises(windrow.PlanError, match=r"save|manifest"):
        kind.read().save_manifest("never")


def test_table_without_rows(kind: Kind) -> None:
    kind.append(numbers(0, 0))
    assert kind.read().count() == 0
    assert rows(kind.read()) == []
    assert kind.read().columns() == ["x", "s"]


@pytest.mark.nightly
def test_order_on_ray_equals_order_with_threads(kind: Kind, ray_local: Any) -> None:
    for start in range(0, 40, 10):
        kind.append(numbers(start, start + 10))
    kind.delete("x = 12")
    pipe = shuffled(kind.read())
    expected = rows(pipe.options(executor="threads"))
    assert rows(pipe.options(executor="ray")) == expected


def test_block_boundaries_do_not_depend_on_columns(kind: Kind) -> None:
    kind.append(pa.table({"x": np.arange(4_000), "s": ["abc"] * 4_000}))
    small = kind.read(target_block_bytes=1)._plan.source.blocks
    large = kind.read()._plan.source.blocks
    assert int(small.rows.sum()) == int(large.rows.sum()) == 4_000
    again = kind.read(target_block_bytes=1, columns=["x"])._plan.source.blocks
    assert small.rows.tolist() == again.rows.tolist()
    assert again.bytes_exact
    assert again.memory_bytes.tolist() == [8 * count for count in again.rows]
    if kind.name == "lance":
        assert len(small.rows) == 4_000
    else:
        assert len(small.rows) == len(large.rows) == 1


def test_small_files_share_a_block(kind: Kind) -> None:
    if kind.name == "lance":
        pytest.skip("blocks of Lance are ranges of rows of a fragment")
    for start in range(0, 40, 5):
        kind.append(numbers(start, start + 5))
    kind.delete("x = 12 or x = 31")
    live = [x for x in range(40) if x not in (12, 31)]
    joined, alone = (kind.read(target_block_bytes=size) for size in ("1MiB", 1))
    assert len(joined._plan.source.blocks.rows) == 1 < len(alone._plan.source.blocks.rows)
    assert rows(joined) == rows(alone)
    assert sorted(rows(joined)) == live
    assert sorted(row["x"] for row in shuffled(joined).iter_rows()) == sorted(2 * live)
    assert sorted(rows(kind.read(target_block_bytes="1MiB", filter=pc.field("x") > 29))) == live[29:]
