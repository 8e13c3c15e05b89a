"""Laws 1, 2, 3 and 5 on threads: random pipelines compared with the reference implementation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import windrow
from tests.laws.cases import CASES, Case, Rows
from tests.laws.examples import examples
from tests.laws.reading import ScrambledThreads, assert_delivers, read_shards, take_rows
from tests.laws.reference import assign_as_lists, order_epoch
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan import output_bytes
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.shard_assignment import Equal
from windrow.shuffle.order.token_budget import TokenBudget

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")

WORKERS = st.sampled_from([1, 4])
CUT_AND_PADDED = Case(
    (20,) * 5,
    WindowCut(blocks_per_window=2),
    shards=2,
    equal="pad",
    change="listed",
    balance=Balance("items", "length ** 2", microbatches=2).with_budget(
        TokenBudget(70, "truncate", padded=True)
    ),
)


@examples(100)
@given(CASES, WORKERS, st.sampled_from(["together", "alternately"]), st.sampled_from(["batches", "torch"]))
@example(Case(()), 1, "together", "batches")
@example(Case((0, 0)), 1, "together", "batches")
@example(Case((5, 9), shards=3, batch_rows=2**40, equal="pad"), 1, "together", "torch")
@example(Case((20, 0, 9), WindowCut(bytes_per_window=1), shards=3, epochs=2), 2, "together", "batches")
@example(Case((1,), shards=4, batch_rows=3, equal="pad"), 4, "together", "torch")
@example(
    Case((20, 9), WindowCut(blocks_per_window=1), shards=4, batch_rows=2, equal="pad", packed=5),
    2,
    "together",
    "torch",
)
@example(Case((1, 0, 1), WindowCut(blocks_per_window=1), shards=3, equal=True), 1, "alternately", "batches")
@example(CUT_AND_PADDED, 2, "together", "batches")
@example(
    Case((3,) * 6, WindowCut(blocks_per_window=1), shards=4, batch_rows=2, equal="pad", change="filtered"),
    4,
    "together",
    "batches",
)
def test_pipelines(case: Case, workers: int, order: str, how: str) -> None:
    readings = read_shards(case, ThreadsExecutor(workers), order=order, how=how)  # type: ignore[arg-type]
    assert_delivers(case, readings, how)  # type: ignore[arg-type]


@examples(100)
@given(CASES, WORKERS, st.integers(0, 2**16))
def test_scrambled(case: Case, workers: int, scramble: int) -> None:
    assert_delivers(case, read_shards(case, ScrambledThreads(workers, scramble)))


# few rows of a block remain, so that fixed costs per block dominate its bytes
@examples(100)
@given(
    CASES.filter(lambda case: case.change not in ("doubled", "listed") and not case.packed),
    WORKERS,
    st.integers(0, 2**16),
)
@example(
    Case(
        (2, 11),
        WindowCut(blocks_per_window=5),
        3517,
        2,
        3,
        19,
        equal=True,
        change="dropped",
        prefetch_windows=0,
    ),
    2,
    16105,
)
@example(
    Case((9,), epochs=3, shards=3, batch_rows=11, equal=True, change="filtered", prefetch_windows=0), 3, 9891
)
@example(Case((1, 1, 1, 14), seed=None, change="negated", prefetch_windows=0, cache="disk"), 1, 1)
def test_minimum_memory(case: Case, workers: int, scramble: int) -> None:
    case = replace(case, tight=True)
    with pytest.MonkeyPatch.context() as patch:
        # about the size of such small map outputs, so that the limit matters
        patch.setattr(output_bytes, "_BLOCK_BYTES", 400)
        readings = read_shards(case, ScrambledThreads(workers, scramble))
        assert_delivers(case, readings)
    for reading in readings:
        run = reading.shard.stats().run
        # rows that are measured before they are placed take memory that was not known before
        is_known = case.rows_known and case.balance is None
        assert run.peak_held_bytes <= run.memory_bytes or not is_known


@examples(25)
@given(CASES, st.sampled_from([1, 2, 3, 4, 6]))
def test_the_same_global_batches_for_any_number_of_shards(case: Case, shards: int) -> None:
    case = replace(case, shards=shards, batch_rows=12 // shards, equal=False, drop_last=True)
    if case.balance is not None and case.balance.budget is not None:
        # then the number of shards tells which rows a step has
        case = replace(case, balance=None)
    readings = read_shards(case, ThreadsExecutor(2))
    for epoch in range(case.epochs):
        order = case.order(epoch, case.groups())
        for step in range(len(order) // 12):
            batch = [x for reading in readings for x in reading.epochs[epoch][step]]
            expected = order[step * 12 : (step + 1) * 12]
            assert batch == expected if case.balance is None else sorted(batch) == sorted(expected)


@examples(100)
@given(CASES, st.frozensets(st.integers(0, 8), min_size=1, max_size=8), WORKERS, st.integers(0, 2**16))
def test_corrupt_blocks(case: Case, corrupt: frozenset[int], workers: int, scramble: int) -> None:
    case = replace(case, corrupt=corrupt)
    readings = read_shards(case, ScrambledThreads(workers, scramble))
    assert_delivers(case, readings)
    found = [f"block {block}" for block in sorted(corrupt) if block < len(case.sizes)]
    for reading in readings:
        state = reading.shard.state_dict()
        assert [f"block {block}" for block in state["corrupt"]] == found
    assert readings[0].shard.stats().run.corrupt_blocks == tuple(found)


@examples(30)
@given(CASES, st.booleans())
def test_one_shard_after_another(case: Case, tight: bool) -> None:
    case = replace(case, tight=tight and case.change not in ("doubled", "listed") and not case.packed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_bytes, "_BLOCK_BYTES", 400)
        assert_delivers(case, read_shards(case, ThreadsExecutor(2), order="in turn"))


@examples(25)
@given(CASES)
def test_batches_of_one_row(case: Case) -> None:
    case = replace(case, drop_last=False)
    assert_delivers(case, read_shards(case, ThreadsExecutor(2), how="rows"), how="rows")


@examples(30)
@given(CASES, st.integers(1, 7), st.integers(0, 3))
def test_early_stop_and_another_batch_size_in_the_next_epoch(case: Case, other: int, taken: int) -> None:
    case = replace(case, epochs=3)
    shards = open_shards(case.job(ThreadsExecutor(2)), case.shards, equal=case.equal)
    expected = [case.assigned(0), case.assigned(1, other), case.assigned(2, other)]
    for t, shard in enumerate(shards):
        epochs = shard.iter_epochs()
        how: Any = {"drop_last": case.drop_last, "balance": case.balance}
        batches = iter(next(epochs).iter_batches(case.batch_rows, **how))
        first = [take_rows(batch) for _, batch in zip(range(taken), batches, strict=False)]
        assert first == expected[0].batches[t][:taken]
        for number, epoch in enumerate(epochs, 1):
            got = [take_rows(batch) for batch in epoch.iter_batches(other, **how)]
            assert got == expected[number].batches[t]
            assert epoch.number == number
    for shard in shards:
        shard.close()


# --- real Parquet files through the public API


@examples(12)
@given(
    files=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), min_size=1, max_size=4),
    cut=st.sampled_from([{}, {"blocks_per_window": 2}, {"bytes_per_window": 150}]),
    seed=st.integers(0, 9),
    shards=st.integers(1, 3),
    batch_rows=st.integers(1, 9),
    equal=st.sampled_from([False, True, "pad"]),
    filtered=st.booleans(),
)
def test_parquet(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[int]],
    cut: dict[str, Any],
    seed: int,
    shards: int,
    batch_rows: int,
    equal: Equal,
    filtered: bool,
) -> None:
    import pyarrow.compute as pc

    folder = tmp_path_factory.mktemp("laws")
    _write(folder, files)
    # adjacent row groups of up to 100 bytes form a block
    ds = windrow.read_parquet(
        folder, filter=pc.bit_wise_and(pc.field("x"), 1) == 0 if filtered else None, target_block_bytes=100
    )
    pipe = ds.window(**cut).repeat(2).random_shuffle_each_window(seed=seed)
    source = pipe._plan.source
    blocks = [source.reader.read(address) for address in source.addresses(range(ds.num_blocks()))]
    values = [block["x"].to_pylist() for block in blocks]
    # the blocks are the files in their order, whatever is done to them
    stored = [x for x in range(sum(map(sum, files))) if not filtered or x % 2 == 0]
    assert [x for rows in values for x in rows] == stored
    parts = pipe.options(executor=ThreadsExecutor(2)).split(shards, equal=equal)
    epochs: list[list[list[Rows]]] = [[], []]
    for shard in parts:
        for epoch in shard.iter_epochs():
            epochs[epoch.number].append([b["x"].tolist() for b in epoch.iter_batches(batch_rows)])
    for shard in parts:
        shard.close()
    for number, got in enumerate(epochs):
        order = order_epoch(source.blocks, values, cut=WindowCut(**cut), seed=seed, epoch=number)
        assigned = assign_as_lists(len(order), shards, batch_rows, equal)
        assert got == [[[order[row] for row in batch] for batch in shard] for shard in assigned.batches]


def _write(folder: Path, files: list[list[int]]) -> None:
    first = 0
    for number, groups in enumerate(files):
        schema = pa.schema({"x": pa.int64()})
        with pq.ParquetWriter(folder / f"part-{number}.parquet", schema) as writer:
            for rows in groups:
                writer.write_table(pa.table({"x": pa.array(range(first, first + rows), pa.int64())}))
                first += rows


# --- failures


def fail_at_30(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if 30 in batch["x"]:
        raise ArithmeticError("thirty")
    return batch


def test_failing_transform_fails_every_shard_and_the_next_run_starts_clean() -> None:
    case = Case((20,) * 4, WindowCut(blocks_per_window=1), shards=3, batch_rows=4)
    job = case.job(ThreadsExecutor(2))
    failing = replace(job, before=(MapBatches(fail_at_30),))
    parts = open_shards(failing, 3)
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(list, shard.iter_batches(4)) for shard in parts]:
            error = future.exception(60)
            assert isinstance(error, TransformError)
            assert isinstance(error.__cause__, ArithmeticError)
    del error, future
    for shard in parts:
        shard.close()
    assert_delivers(case, read_shards(case, ThreadsExecutor(2)))


# --- rejected calls

CASE = Case((5, 5, 5), WindowCut(blocks_per_window=1), epochs=3, shards=2, batch_rows=2)


def test_two_batch_sizes_in_one_epoch() -> None:
    first, second = open_shards(CASE.job(ThreadsExecutor(1)), 2)
    with first, second:
        epochs = second.iter_epochs()
        one = next(first.iter_epochs()).iter_batches(2)
        epoch = next(epochs)
        with pytest.raises(PlanError, match=r"batch_size=2, drop_last=False; shard 1 asks for batch_size=3"):
            epoch.iter_batches(3)
        with pytest.raises(PlanError, match=r"drop_last=True"):
            epoch.iter_batches(2, drop_last=True)
        # no rows are lost: the epoch can be read with the same batch size
        got = [[batch["x"].tolist() for batch in epoch.iter_batches(2)]]
        got.insert(0, [batch["x"].tolist() for batch in one])
        assert got == CASE.assigned(0).batches
        assert [batch["x"].tolist() for batch in next(epochs).iter_batches(3)] == CASE.assigned(1, 3).batches[
            1
        ]


def test_shard_is_read_once_at_a_time() -> None:
    (shard,) = open_shards(CASE.job(ThreadsExecutor(1)), 1)
    with shard:
        first = shard.iter_batches(4)
        next(first)
        with pytest.raises(PlanError, match="is being iterated"):
            shard.iter_batches(4)
        assert len(list(first)) == 3
        assert len(list(shard.iter_batches(4))) == 4


def test_epoch_is_one_pass() -> None:
    (shard,) = open_shards(CASE.job(ThreadsExecutor(1)), 1)
    with shard:
        epochs = shard.iter_epochs()
        epoch = next(epochs)
        list(epoch.iter_batches(4))
        with pytest.raises(PlanError, match="can be read once"):
            epoch.iter_batches(4)
        left = next(epochs)
        next(epochs)
        with pytest.raises(PlanError, match="can be read once"):
            left.iter_batches(4)


def test_closed_shard_delivers_nothing_and_others_continue() -> None:
    first, second = open_shards(CASE.job(ThreadsExecutor(2)), 2)
    with second:
        next(iter(first.iter_batches(2)))
        first.close()
        with pytest.raises(PlanError, match="closed"):
            first.iter_batches(2)
        got = [batch["x"].tolist() for batch in second.iter_batches(2)]
    assert got == CASE.assigned(0).batches[1]


def test_all_epochs_read() -> None:
    (shard,) = open_shards(replace(CASE, epochs=1).job(ThreadsExecutor(1)), 1)
    with shard:
        list(shard.iter_rows())
        with pytest.raises(PlanError, match="repeat"):
            shard.iter_rows()
        assert list(shard.iter_epochs()) == []
