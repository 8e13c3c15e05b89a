"""Corrupt row groups: an error by default, or skipped consistently by all shards, before their window is placed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Literal

import pyarrow.compute as pc
import pytest

import windrow
from tests.conftest import REPOSITORY
from tests.end_to_end.reading import at_once, column
from tests.faults.corrupt_files import GROUPS, ROWS, corrupt_row_groups, expected_order, write_files
from windrow import DatasetPipeline, Shard, SourceError, StateError
from windrow.shuffle.order.epoch_plan import plan_epoch

LEFT_OUT = "a corrupt block is skipped"
expects_corruption = pytest.mark.filterwarnings(f"ignore:{LEFT_OUT}:RuntimeWarning")
EXECUTORS = pytest.mark.parametrize("executor", ["threads", "ray"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    write_files(path)
    return path


def make_pipeline(
    folder: Path, on_error: Literal["raise", "skip"] = "skip", *, seed: int | None = 5, **given: Any
) -> DatasetPipeline:
    ds = windrow.read_parquet(str(folder), target_block_bytes=1, **given)
    pipe = ds.window(blocks_per_window=3).repeat(2).options(executor="threads", on_error=on_error)
    return pipe if seed is None else pipe.random_shuffle_each_window(seed=seed)


def read_epochs(shard: Shard, batch_size: int = 7) -> list[list[int]]:
    return [column(list(epoch.iter_batches(batch_size))) for epoch in shard.iter_epochs()]


def read_steps(shards: list[Shard], batch_size: int, steps: int) -> tuple[list[int], dict[str, Any]]:
    """The rows of some steps of an epoch in order, and the state after them."""
    iterators = [shard.iter_batches(batch_size) for shard in shards]
    rows = [x for _ in range(steps) for iterator in iterators for x in next(iterator)["x"].tolist()]
    states = [shard.state_dict() for shard in shards]
    assert all(state == states[0] for state in states)
    return rows, states[0]


def read_rest(shards: list[Shard], batch_size: int) -> list[int]:
    """The rest of an epoch in order, with the shard assignment of ``equal=False``."""
    batches = at_once(shards, lambda shard: [b["x"].tolist() for b in shard.iter_batches(batch_size)])
    return [
        x
        for step in range(max(map(len, batches)))
        for shard in batches
        if step < len(shard)
        for x in shard[step]
    ]


def window_of(pipe: DatasetPipeline, epoch: int, block: int) -> int:
    blocks, cut, seed = pipe._plan.source.blocks, pipe._plan.cut, pipe._plan.seed
    assert cut is not None
    plan = plan_epoch(blocks, cut=cut, seed=seed, epoch=epoch)
    return next(w for w in range(plan.windows) if block in plan.window_blocks(w))


# --- an error by default


def test_corrupt_block_is_by_default_an_error_that_names_it_and_the_fixes(folder: Path) -> None:
    corrupt_row_groups(folder, 4)
    with (
        make_pipeline(folder, "raise").iterator() as shard,
        pytest.raises(
            SourceError, match=r"(?s)1\.parquet, row group 1: cannot be read: .*corrupt.*on_error='skip'"
        ) as raised,
    ):
        read_epochs(shard)
    assert isinstance(raised.value.__cause__, OSError)


# --- skipped


@pytest.mark.ray_at_night
@EXECUTORS
@pytest.mark.parametrize("corrupt", [(4,), (0, 1, 2, 3, 11), (0, 1, 2, 3, 4, 5, 6, 7)])
@expects_corruption
@pytest.mark.ray_at_night
def test_corrupt_block_counts_as_having_no_rows(
    ray_local: Any, folder: Path, executor: str, corrupt: tuple[int, ...]
) -> None:
    corrupt_row_groups(folder, *corrupt)
    pipe = make_pipeline(folder).options(executor=executor)
    shards = pipe.split(2)
    for epoch in range(2):
        assert read_rest(shards, 7) == expected_order(pipe, epoch, corrupt)
    run = shards[0].stats().run
    names = [f"/{block // GROUPS}.parquet, row group {block % GROUPS}" for block in corrupt]
    assert [name.removeprefix(str(folder)) for name in run.corrupt_blocks] == names
    assert run.corrupt_rows == ROWS * len(corrupt)
    states = [shard.state_dict() for shard in shards]
    assert states[0] == states[1]
    assert states[0]["corrupt"] == list(corrupt)
    for shard in shards:
        shard.close()


def test_each_corrupt_block_is_reported_once(folder: Path) -> None:
    corrupt_row_groups(folder, 4, 7)
    with warnings.catch_warnings(record=True) as caught, make_pipeline(folder).iterator() as shard:
        warnings.simplefilter("always")
        read_epochs(shard)
    texts = sorted(str(warning.message) for warning in caught)
    assert len(texts) == 2
    assert re.match(rf"{LEFT_OUT}, 20 stored rows: .*/1\.parquet, row group 1: cannot be read: ", texts[0])
    assert "/2.parquet, row group 1: " in texts[1]


@expects_corruption
def test_steps_are_known_once_an_epoch_has_been_read(folder: Path) -> None:
    corrupt_row_groups(folder, 4)
    pipe = make_pipeline(folder)
    assert "to be counted, corrupt blocks skipped" in str(pipe.explain())
    with pipe.iterator() as shard:
        with pytest.raises(windrow.PlanError, match='on_error="skip" or a format'):
            shard.steps_per_epoch(10)
        column(list(shard.iter_batches(10)))
        assert shard.steps_per_epoch(10) == (12 - 1) * ROWS // 10


@expects_corruption
def test_without_a_shuffle_the_stored_order_lacks_the_block(folder: Path) -> None:
    corrupt_row_groups(folder, 4)
    with make_pipeline(folder, seed=None).iterator() as shard:
        stored = [x for x in range(12 * ROWS) if x // ROWS != 4]
        assert read_epochs(shard) == [stored, stored]


@expects_corruption
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_with_a_filter_a_transform_row_ids_and_a_cache(
    folder: Path, cache: Literal["memory", "disk"]
) -> None:
    corrupt_row_groups(folder, 4, 9)
    pipe = make_pipeline(folder, filter=pc.field("x") >= 30).map_batches(
        lambda batch: {**batch, "x": -batch["x"]}
    )
    pipe = pipe.options(cache=cache, row_id_column="id")
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            rows = list(epoch.iter_rows())
            assert sorted(row["id"] for row in rows) == [
                x for x in range(30, 12 * ROWS) if x // ROWS not in (4, 9)
            ]
            assert all(row["x"] == -row["id"] for row in rows)
        assert shard.stats().run.cache_hits >= 9


@expects_corruption
def test_row_ids_account_for_skipped_blocks(folder: Path) -> None:
    corrupt_row_groups(folder, 2, 4)
    with make_pipeline(folder).iterator() as shard:
        for epoch in shard.iter_epochs():
            batches = [batch["x"].tolist() for batch in epoch.iter_batches(9)]
            for step, batch in enumerate(batches):
                found = [
                    int(Path(path).stem) * ROWS * GROUPS + group * ROWS + row
                    for path, group, row in shard.step_lineage(step)
                ]
                assert found == batch


@expects_corruption
def test_independent_processes_skip_the_same_blocks(folder: Path) -> None:
    corrupt_row_groups(folder, 4, 7)
    pipe = make_pipeline(folder)
    shards = [pipe.shard(rank=rank, world_size=3, equal=False) for rank in range(3)]
    assert read_rest(shards, 5) == expected_order(pipe, 0, (4, 7))
    assert shards[0].state_dict() == shards[1].state_dict() == shards[2].state_dict()
    for shard in shards:
        shard.close()


# --- not skipped


@EXECUTORS
@expects_corruption
def test_more_than_eight_corrupt_blocks_are_an_error_that_names_them(
    ray_local: Any, folder: Path, executor: str
) -> None:
    corrupt_row_groups(folder, *range(9))
    with (
        make_pipeline(folder).options(executor=executor).iterator() as shard,
        pytest.raises(
            SourceError,
            match=r"(?s)9 blocks are corrupt, .* skips 8 at most: .*/0\.parquet, row group 0; .*",
        ) as raised,
    ):
        read_epochs(shard)
    assert len(re.findall(r"row group \d[;.]", str(raised.value))) == 9


def test_deleted_or_changed_file_is_an_error(folder: Path) -> None:
    pipe = make_pipeline(folder)
    (folder / "1.parquet").unlink()
    with pipe.iterator() as shard, pytest.raises(SourceError, match="the file is missing"):
        read_epochs(shard)
    write_files(folder)
    with pipe.iterator() as shard, pytest.raises(SourceError, match="has changed since"):
        read_epochs(shard)


def test_failing_filter_is_an_error(folder: Path) -> None:
    pipe = make_pipeline(folder, filter=pc.divide(pc.scalar(1), pc.field("x") - 90) >= 0)
    with pipe.iterator() as shard, pytest.raises(SourceError, match="divide by zero"):
        read_epochs(shard)


@pytest.mark.parametrize("filtered", [False, True])
def test_block_that_was_read_before_is_not_skipped(folder: Path, filtered: bool) -> None:
    pipe = make_pipeline(folder, seed=2, filter=pc.field("x") >= 0 if filtered else None)
    # a file that is prefetched while it is corrupted counts as changed
    assert min(window_of(pipe, 1, block) for block in range(GROUPS)) == 2
    with pipe.iterator() as shard:
        column(list(shard.iter_batches(7)))
        corrupt_row_groups(folder, 1)
        with pytest.raises(SourceError, match=r"(?s)0\.parquet, row group 1: .* can no longer be skipped"):
            list(shard.iter_batches(7))


# --- states


@expects_corruption
def test_state_with_many_corrupt_blocks_is_small_and_rejected_if_corruption_is_an_error(
    folder: Path,
) -> None:
    corrupt_row_groups(folder, *range(8))
    with make_pipeline(folder).iterator() as shard:
        list(shard.iter_batches(7))
        state = shard.state_dict()
    assert len(json.dumps(state)) < 1024
    with pytest.raises(
        StateError, match=r"skipped corrupt blocks \(.*/0\.parquet, row group 0; .*on_error='skip'"
    ):
        make_pipeline(folder, "raise").iterator(state_dict=state)
    with pytest.raises(StateError, match=r"is corrupt: .*checksum"):
        make_pipeline(folder).iterator(state_dict={**state, "corrupt": [1]})


@expects_corruption
def test_resume_anywhere_in_either_mode(folder: Path) -> None:
    """Including the end of a window, which has a different cursor if rows are counted."""
    skipping, raising = make_pipeline(folder), make_pipeline(folder, "raise")
    order = expected_order(raising, 0, ())
    for saver, loader in ((skipping, raising), (raising, skipping)):
        for steps in (1, 2, 3, 4, 5, 6):
            with saver.iterator() as shard:
                rows, state = read_steps([shard], 2 * ROWS, steps)
            assert rows == order[: 2 * ROWS * steps]
            with loader.iterator(state_dict=state) as shard:
                got = column(list(shard.iter_batches(33)))
            assert got == (order[2 * ROWS * steps :] or expected_order(raising, 1, ()))


@expects_corruption
def test_new_corruption_in_the_window_of_a_state_is_an_error_and_later_is_skipped(folder: Path) -> None:
    pipe = make_pipeline(folder)
    with pipe.iterator() as shard:
        rows, state = read_steps([shard], 10, 7)
    within = next(block for block in range(12) if window_of(pipe, 0, block) == state["window"])
    behind = next(block for block in range(12) if window_of(pipe, 0, block) > state["window"])
    corrupt_row_groups(folder, behind)
    with pipe.iterator(state_dict=state) as shard:
        assert rows + column(list(shard.iter_batches(9))) == expected_order(pipe, 0, (behind,))
    corrupt_row_groups(folder, within)
    with (
        pipe.iterator(state_dict=state) as shard,
        pytest.raises(SourceError, match="can no longer be skipped"),
    ):
        list(shard.iter_batches(9))


@expects_corruption
def test_skipped_block_that_is_readable_again_stays_skipped(folder: Path) -> None:
    corrupt_row_groups(folder, 4)
    pipe = make_pipeline(folder)
    with pipe.iterator() as shard:
        rows, state = read_steps([shard], 10, 21)
    expected = [expected_order(pipe, epoch, (4,)) for epoch in range(2)]
    stat = (folder / "1.parquet").stat()
    content = (folder / "0.parquet").read_bytes()
    write_files(folder.parent)
    content = (folder.parent / "1.parquet").read_bytes()
    with (folder / "1.parquet").open("r+b") as file:
        file.write(content)
    os.utime(folder / "1.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pipe.iterator(state_dict=state) as shard:
        assert rows + column(list(shard.iter_batches(9))) == expected[0]
        assert column(list(shard.iter_batches(9))) == expected[1]


@expects_corruption
def test_states_with_different_skipped_blocks_are_not_merged(folder: Path) -> None:
    pipe = make_pipeline(folder)
    with pipe.iterator() as shard:
        state = shard.state_dict()
        healthy = read_steps([shard], 10, 2)[1]
    corrupt_row_groups(folder, *(block for block in range(12) if window_of(pipe, 0, block) == 0))
    with pipe.iterator(state_dict=state) as shard:
        other = read_steps([shard], 10, 2)[1]
    with pytest.raises(StateError, match=r"blocks \[\] were skipped as corrupt in one, blocks \[\d"):
        windrow.merge_state_dicts([healthy, other])


# --- Ray


@expects_corruption
@pytest.mark.nightly
def test_restarted_coordinator_skips_the_same_blocks(ray_local: Any, folder: Path) -> None:
    corrupt_row_groups(folder, 1, 4, 10)
    pipe = make_pipeline(folder).options(executor="ray")
    shards: list[Any] = pipe.split(2)
    for epoch in range(2):
        iterators = [shard.iter_batches(4) for shard in shards]
        rows: list[int] = []
        step = 0
        while batches := [batch["x"].tolist() for it in iterators if (batch := next(it, None)) is not None]:
            rows += [x for batch in batches for x in batch]
            step += 1
            if step in (2, 12):
                ray_local.kill(shards[0]._session._coordinator, no_restart=False)
        assert rows == expected_order(pipe, epoch, (1, 4, 10))
    for shard in shards:
        shard.close()


_RESUME = """
import json, sys, warnings
import ray, windrow
from tests.end_to_end.reading import at_once

warnings.filterwarnings("ignore", "a corrupt block is skipped")
address, path, state, out = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
ds = windrow.read_parquet(path, target_block_bytes=1)
pipe = ds.window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=5)
shards = pipe.options(executor="ray", on_error="skip").split(3, state_dict=json.loads(state))
found = [at_once(shards, lambda shard: [b["x"].tolist() for b in shard.iter_batches(11)]) for _ in range(2)]
with open(out, "w") as file:
    json.dump(found, file)
"""


@expects_corruption
@pytest.mark.nightly
def test_fresh_process_resumes_with_another_number_of_shards_and_batch_size(
    ray_local: Any, folder: Path, tmp_path: Path
) -> None:
    corrupt_row_groups(folder, 0, 4, 7)
    pipe = make_pipeline(folder).options(executor="ray")
    shards = pipe.split(2)
    rows, state = read_steps(shards, 8, 6)
    for shard in shards:
        shard.close()
    address, out = ray_local.get_runtime_context().gcs_address, tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _RESUME, address, str(folder), json.dumps(state), str(out)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for epoch, batches in enumerate(json.loads(out.read_text())):
        steps = max(map(len, batches))
        rows += [x for step in range(steps) for shard in batches if step < len(shard) for x in shard[step]]
        assert rows == expected_order(pipe, epoch, (0, 4, 7))
        rows = []
