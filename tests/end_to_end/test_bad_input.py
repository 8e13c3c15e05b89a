"""Bad input raises one clear error, as early as it can be detected, and never hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.data import flip_byte_in_page, write_numbers
from tests.end_to_end.reading import column, read_pass, windrow_threads

pytestmark = pytest.mark.timeout(60)

LogicalPlan = Callable[[], Any]


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A directory with two files of 500 rows and 5 row groups each."""
    for part in range(2):
        write_numbers(tmp_path / f"{part}.parquet", 500, start=500 * part)
    return tmp_path


def _shuffled(path: Path, executor: str, **options: Any) -> windrow.DatasetPipeline:
    ds = windrow.read_parquet(str(path), target_block_bytes=1, **options)
    return ds.window(blocks_per_window=4).random_shuffle_each_window(seed=1).options(executor=executor)


# --- detected at the call


def test_path_without_matches(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path / "*.parquet"):
        with pytest.raises(windrow.SourceError, match=path.name.replace("*", r"\*")):
            windrow.read_parquet(str(path))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"this is text, long enough to be something else" * 3])
def test_file_is_not_parquet(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.parquet").write_bytes(content)
    with pytest.raises(windrow.SourceError, match=r"other\.parquet"):
        windrow.read_parquet(str(tmp_path / "other.parquet"))


def test_truncated_file(numbers: Path) -> None:
    whole = (numbers / "1.parquet").read_bytes()
    (numbers / "1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(windrow.SourceError, match=r"1\.parquet"):
        windrow.read_parquet(str(numbers))


def test_files_with_different_schemas(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": ["a"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "1.parquet")
    with pytest.raises(windrow.SourceError, match=r"'y' is int64 in .*1\.parquet but string in .*0\.parquet"):
        windrow.read_parquet(str(tmp_path))
    pq.write_table(pa.table({"x": [1]}), tmp_path / "1.parquet")
    assert windrow.read_parquet(str(tmp_path)).take() == [{"x": 1, "y": "a"}, {"x": 1, "y": None}]


@pytest.mark.ray_at_night
def test_compatible_schemas_unify(tmp_path: Path, executor: str) -> None:
    pq.write_table(pa.table({"x": pa.array([1, 2], pa.int32()), "y": pa.nulls(2)}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"y": ["a", "b"], "x": pa.array([3, 4], pa.int64())}), tmp_path / "1.parquet")
    rows = pa.concat_tables(read_pass(_shuffled(tmp_path, executor).iterator())).sort_by("x")
    assert rows.to_pydict() == {"x": [1, 2, 3, 4], "y": [None, None, "a", "b"]}
    assert rows.schema.types == [pa.int64(), pa.string()]


def test_unknown_columns(numbers: Path) -> None:
    with pytest.raises(windrow.PlanError, match=r"'xx'.*'x'"):
        windrow.read_parquet(str(numbers), columns=["xx"])
    with pytest.raises(windrow.PlanError, match=r"'yy'.*'y'"):
        windrow.read_parquet(str(numbers), filter=pc.field("yy") > 1)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda ds: ds.window(blocks_per_window=1, bytes_per_window=1), "both"),
        (lambda ds: ds.window().window(), "already has a window"),
        (lambda ds: ds.window(blocks_per_window=0), "blocks_per_window=0"),
        (lambda ds: ds.window(blocks_per_window=-1), "blocks_per_window=-1"),
        (lambda ds: ds.window(bytes_per_window=0), "bytes_per_window=0"),
        (lambda ds: ds.window(bytes_per_window="-1GiB"), "bytes_per_window='-1GiB'"),
        (lambda ds: ds.window(bytes_per_window="8"), "has no unit"),
        (lambda ds: ds.split(0), "n=0"),
        (lambda ds: ds.window().split(0), "n=0"),
        (lambda ds: ds.repeat(0), "times=0"),
        (lambda ds: ds.window().split(2, equal="most"), "equal='most'"),
        (lambda ds: ds.window().split(2, locality_hints=[None]), "1 entries for 2 shards"),
        (lambda ds: ds.window().random_shuffle_each_window().shard(rank=0, world_size=2), r"seed=\.\.\."),
        (lambda ds: ds.window().shard(rank=2, world_size=2), "rank=2"),
        (lambda ds: ds.options(executor="dask"), "dask"),
        (lambda ds: ds.options(memory_limit="4"), "has no unit"),
    ],
)
def test_rejected_at_plan_time(numbers: Path, ask: Callable[[windrow.Dataset], Any], message: str) -> None:
    ds = windrow.read_parquet(str(numbers))
    with pytest.raises(windrow.PlanError, match=message):
        ask(ds)


@pytest.mark.ray_at_night
def test_two_batch_sizes_in_one_epoch(numbers: Path, executor: str) -> None:
    left, right = _shuffled(numbers, executor).repeat(2).split(2)
    batches = left.iter_batches(10)
    with pytest.raises(windrow.PlanError, match=r"(?s)batch_size=10.*batch_size=20"):
        right.iter_batches(20)
    with pytest.raises(windrow.PlanError, match=r"drop_last=False.*drop_last=True"):
        right.iter_batches(10, drop_last=True)
    # the rejected call has lost no rows
    found = column(list(batches)) + column(list(right.iter_batches(10)))
    assert sorted(found) == list(range(1000))
    # the next epoch may have a different batch size
    assert sorted(column(read_pass(left, 25)) + column(read_pass(right, 25))) == list(range(1000))


@pytest.mark.ray_at_night
def test_shard_iterated_twice_at_the_same_time(numbers: Path, executor: str) -> None:
    shard = _shuffled(numbers, executor).repeat(2).iterator()
    batches = shard.iter_batches(10)
    first = next(batches)["x"].tolist()
    with pytest.raises(windrow.PlanError, match="is being iterated"):
        shard.iter_rows()
    assert sorted(first + column(list(batches))) == list(range(1000))


@pytest.mark.ray_at_night
def test_more_epochs_than_configured(numbers: Path, executor: str) -> None:
    shard = _shuffled(numbers, executor).iterator()
    assert len(column(read_pass(shard))) == 1000
    with pytest.raises(windrow.PlanError, match="all 1 epochs"):
        shard.iter_batches(10)
    assert list(shard.iter_epochs()) == []


@pytest.mark.ray_at_night
def test_epoch_is_one_pass(numbers: Path, executor: str) -> None:
    epochs = _shuffled(numbers, executor).repeat(2).iterator().iter_epochs()
    first = next(epochs)
    assert len(column(list(first.iter_batches(100)))) == 1000
    with pytest.raises(windrow.PlanError, match="epoch 0 has been read"):
        first.iter_batches(100)
    second = next(epochs)
    with pytest.raises(windrow.PlanError, match="epoch 0 has been read"):
        first.iter_batches(100)
    assert len(column(list(second.iter_batches(100)))) == 1000


# --- detected while reading


def _fails(pipe: windrow.DatasetPipeline, kind: type[Exception], message: str) -> None:
    with pipe.iterator() as shard, pytest.raises(kind, match=message):
        read_pass(shard)
    assert not windrow_threads()


def test_corrupt_page(numbers: Path, executor: str) -> None:
    pq.write_table(
        pa.table({"x": np.arange(500), "y": np.zeros(500)}),
        numbers / "1.parquet",
        row_group_size=100,
        write_page_checksum=True,
        compression="none",
    )
    flip_byte_in_page(numbers / "1.parquet")
    _fails(_shuffled(numbers, executor), windrow.SourceError, r"1\.parquet, row group 2\b.*corrupt")


def test_deleted_file(numbers: Path, executor: str) -> None:
    pipe = _shuffled(numbers, executor)
    (numbers / "1.parquet").unlink()
    _fails(pipe, windrow.SourceError, r"1\.parquet.*missing")


@pytest.mark.parametrize("rows", [400, 500, 700])
@pytest.mark.ray_at_night
def test_file_replaced_after_planning(numbers: Path, executor: str, rows: int) -> None:
    pipe = _shuffled(numbers, executor)
    write_numbers(numbers / "1.parquet", rows, start=10_000)
    _fails(pipe, windrow.SourceError, r"1\.parquet.*changed since it was listed")


def test_file_truncated_after_planning(numbers: Path, executor: str) -> None:
    pipe = _shuffled(numbers, executor)
    whole = (numbers / "1.parquet").read_bytes()
    (numbers / "1.parquet").write_bytes(whole[:1000])
    _fails(pipe, windrow.SourceError, r"1\.parquet")


WRONG_RETURNS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda batch: None, "returned None"),
    "a list": (lambda batch: [1, 2], "returned a list"),
    "a number as a column": (lambda batch: {"x": 3}, "returned an int as column 'x'"),
    "no columns": (lambda batch: {}, "returned no columns"),
    "uneven columns": (lambda batch: {"x": batch["x"], "y": batch["y"][:-1]}, "unequal length"),
    "fewer rows": (lambda batch: {"x": batch["x"][:-1]}, r"returned \d+ rows for \d+"),
    "no row": (lambda batch: {"x": batch["x"][:0]}, r"returned 0 rows for \d+"),
    "more rows": (lambda batch: {"x": np.repeat(batch["x"], 2)}, r"returned \d+ rows for \d+"),
    "another type at times": (
        lambda batch: {"x": batch["x"].astype("f4" if 0 in batch["x"] else "i8")},
        "float",
    ),
    "other columns at times": (
        lambda batch: {"x": batch["x"]} if 0 in batch["x"] else {"x": batch["x"], "z": batch["y"]},
        "z",
    ),
    "written in place": (lambda batch: batch["x"].__setitem__(0, 1) or batch, "assign a new array"),
}


# what one batch shows, and what only several do; the others take the same way
_ON_RAY = ("nothing", "fewer rows", "another type at times", "other columns at times")


@pytest.mark.ray_at_night
@pytest.mark.parametrize(
    ("executor", "after", "case"),
    [
        *(("threads", after, case) for after in (False, True) for case in WRONG_RETURNS),
        *(
            pytest.param(
                "ray",
                False,
                case,
                marks=[pytest.mark.ray, *([] if case in _ON_RAY else [pytest.mark.nightly])],
            )
            for case in WRONG_RETURNS
        ),
    ],
    indirect=["executor"],
)
def test_invalid_return_values(numbers: Path, executor: str, case: str, after: bool) -> None:
    fn, message = WRONG_RETURNS[case]
    pipe = _shuffled(numbers, executor)
    if not after:
        ds = windrow.read_parquet(str(numbers), target_block_bytes=1).map_batches(fn)
        pipe = ds.window(blocks_per_window=4).random_shuffle_each_window(seed=1).options(executor=executor)
    else:
        pipe = pipe.map_batches(fn)
    _fails(pipe, windrow.TransformError, f"(?s){message}")


@pytest.mark.parametrize("case", ["another type at times", "other columns at times"])
@pytest.mark.ray_at_night
def test_changing_schemas_with_unknown_row_counts(numbers: Path, executor: str, case: str) -> None:
    fn, message = WRONG_RETURNS[case]
    ds = windrow.read_parquet(str(numbers), target_block_bytes=1).map_batches(fn, preserves_rows=False)
    pipe = ds.window(blocks_per_window=4).random_shuffle_each_window(seed=1).options(executor=executor)
    _fails(pipe, windrow.TransformError, f"(?s){message}")


def test_row_changes_after_the_shuffle_are_rejected(numbers: Path) -> None:
    pipe = _shuffled(numbers, "threads")
    with pytest.raises(windrow.PlanError, match="before the shuffle"):
        pipe.map_batches(lambda batch: batch, preserves_rows=False)


@pytest.mark.ray_at_night
def test_failing_collate_function(numbers: Path, executor: str) -> None:
    def collate(batch: Any) -> Any:
        raise ZeroDivisionError("mine")

    with _shuffled(numbers, executor).iterator() as shard:
        batches = shard.iter_torch_batches(10, collate_fn=collate)
        with pytest.raises((windrow.TransformError, ZeroDivisionError), match="mine"):
            next(batches)
    assert not windrow_threads()
