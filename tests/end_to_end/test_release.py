"""However reading ends, all resources are released and the next run starts clean."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from tests.end_to_end.data import write_numbers
from tests.end_to_end.reading import at_once, column, eventually, read_pass, windrow_threads
from windrow import Shard

pytestmark = pytest.mark.timeout(90)

ROWS = 40_000
Fail = Callable[[Any], Any]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40,000 rows in 40 row groups."""
    return write_numbers(tmp_path_factory.mktemp("numbers") / "x.parquet", ROWS, row_group_size=1_000)


@pytest.fixture
def pipe(numbers: Path, executor: str) -> windrow.DatasetPipeline:
    """Eight windows per epoch, three epochs."""
    ds = windrow.read_parquet(str(numbers), target_block_bytes=1)
    windows = ds.window(blocks_per_window=5).repeat(3).random_shuffle_each_window(seed=11)
    return windows.options(executor=executor)


@pytest.fixture
def nothing_left(executor: str) -> Any:
    """Check after the test that no threads, memory, actors or objects of the run remain."""
    if executor == "threads":
        yield
        gc.collect()
        assert eventually(lambda: not windrow_threads()), windrow_threads()
        return
    gc.collect()
    actors, stored = _coordinators(), _stored_bytes()
    yield
    gc.collect()
    assert eventually(lambda: not windrow_threads()), windrow_threads()
    assert eventually(lambda: _coordinators() <= actors), "the coordinator is still alive"
    assert eventually(lambda: _stored_bytes() <= stored), f"{_stored_bytes()} bytes are still stored"


def _coordinators() -> set[str]:
    from ray._private.state import actors

    return {
        key
        for key, actor in actors().items()
        if actor["State"] != "DEAD" and actor["ActorClassName"] == "Coordinator"
    }


def _stored_bytes() -> int:
    """Bytes in the object store, as reported by the raylet."""
    import ray

    name = "object_store_memory"
    return int(ray.cluster_resources()[name] - ray.available_resources().get(name, 0))


def _check_new_run(pipe: windrow.DatasetPipeline) -> None:
    """Check that a new run of the same pipeline delivers every row once."""
    with pipe.iterator() as shard:
        assert sorted(column(read_pass(shard, 700))) == list(range(ROWS))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.ray_at_night
def test_epochs_ended_early(pipe: windrow.DatasetPipeline) -> None:
    shard = pipe.iterator()
    for epoch in shard.iter_epochs():
        for batch in epoch.iter_batches(100):
            assert len(batch["x"]) == 100
            break
    assert shard.stats().batches == 3
    assert shard.stats().epochs == 0
    del epoch, batch, shard
    _check_new_run(pipe)


@pytest.mark.ray_at_night
@pytest.mark.usefixtures("nothing_left")
def test_epoch_after_an_early_stop_is_complete(pipe: windrow.DatasetPipeline) -> None:
    def read_second(shard: Shard) -> list[int]:
        with shard:
            next(shard.iter_batches(64))
            return column(read_pass(shard))

    def read_both(shard: Shard) -> tuple[list[int], list[int]]:
        with shard:
            return column(read_pass(shard)), column(read_pass(shard))

    whole = at_once(pipe.split(2), read_both)
    assert at_once(pipe.split(2), read_second) == [second for _, second in whole]
    assert sorted(value for _, second in whole for value in second) == list(range(ROWS))


@pytest.mark.ray_at_night
@pytest.mark.usefixtures("nothing_left")
def test_iterator_is_dropped_while_the_shard_is_kept(pipe: windrow.DatasetPipeline) -> None:
    shard = pipe.iterator()
    batches = shard.iter_batches(100)
    next(batches)
    del batches
    gc.collect()
    assert eventually(lambda: not [name for name in windrow_threads() if name.startswith("windrow-shard")])
    assert sorted(column(read_pass(shard))) == list(range(ROWS))


@pytest.mark.ray_at_night
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("executor", "how"),
    [
        *(("threads", how) for how in ("del", "exception", "close", "epochs")),
        *(pytest.param("ray", how, marks=pytest.mark.ray) for how in ("del", "close")),
        *(
            pytest.param("ray", how, marks=[pytest.mark.ray, pytest.mark.nightly])
            for how in ("exception", "epochs")
        ),
    ],
    indirect=["executor"],
)
def test_shard_is_dropped_during_an_epoch(pipe: windrow.DatasetPipeline, how: str) -> None:
    def read() -> None:
        shard = pipe.iterator()
        if how == "epochs":
            next(iter(shard.iter_epochs())).iter_rows()
            return
        batches = shard.iter_torch_batches(100) if how == "del" else shard.iter_batches(100)
        next(batches)
        if how == "exception":
            raise ZeroDivisionError("raised by the trainer")
        if how == "close":
            shard.close()
            with pytest.raises(windrow.PlanError, match="closed"):
                shard.iter_batches(100)

    with contextlib.suppress(ZeroDivisionError):
        read()
    gc.collect()
    _check_new_run(pipe)


@pytest.mark.ray_at_night
@pytest.mark.usefixtures("nothing_left")
def test_unread_shards(pipe: windrow.DatasetPipeline) -> None:
    shards = pipe.split(3)
    next(shards[1].iter_batches(10))


@pytest.mark.ray_at_night
@pytest.mark.usefixtures("nothing_left")
def test_pipeline_iterator_is_abandoned(pipe: windrow.DatasetPipeline) -> None:
    for epoch in pipe.iter_epochs():
        next(epoch.iter_batches(100))
        break
    for _ in pipe.iter_rows():
        break
    del epoch
    gc.collect()


@pytest.mark.ray_at_night
def test_memory_is_released(pipe: windrow.DatasetPipeline) -> None:
    shard = pipe.iterator()
    batches = shard.iter_batches(100)
    kept = next(batches)["x"]
    assert shard._connection._resources is not None
    pool = weakref.ref(shard._connection._resources.shard_client.pool)
    del batches
    shard.close()
    assert eventually(lambda: pool() is None or pool().in_use_bytes <= 2**20)  # type: ignore[union-attr]
    del shard
    assert eventually(lambda: pool() is None)
    kept += 1  # the array outlives the pool
    assert len(set(kept.tolist())) == 100


# --- errors in user functions


class OwnError(Exception):
    """An exception type of the user."""


def fail_at_seven(batch: dict[str, Any]) -> dict[str, Any]:
    if (batch["x"] == 7_777).any():
        raise OwnError("seven")
    return batch


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.ray_at_night
def test_exception_before_the_shuffle(numbers: Path, executor: str) -> None:
    ds = windrow.read_parquet(str(numbers), target_block_bytes=1).map_batches(fail_at_seven)
    pipe = ds.window(blocks_per_window=5).repeat(2).random_shuffle_each_window(seed=1)
    _expect_failure(pipe.options(executor=executor), r"x\.parquet, row group 7")


@pytest.mark.ray_at_night
@pytest.mark.usefixtures("nothing_left")
def test_exception_after_the_shuffle(numbers: Path, executor: str) -> None:
    pipe = windrow.read_parquet(str(numbers), target_block_bytes=1).window(blocks_per_window=5)
    shuffled = pipe.random_shuffle_each_window(seed=1).map_batches(fail_at_seven)
    _expect_failure(shuffled.options(executor=executor), r"epoch 0, window \d")


def _expect_failure(pipe: windrow.DatasetPipeline, origin: str) -> None:
    with pipe.iterator() as shard, pytest.raises(windrow.TransformError) as caught:
        read_pass(shard, 500)
    error = caught.value
    assert caught.match(rf"(?s)map_batches\(fail_at_seven\), .*{origin}.*: OwnError: seven")
    assert isinstance(error.__cause__, OwnError)
    assert "in fail_at_seven" in _format_causes(error)
    assert 'raise OwnError("seven")' in _format_causes(error)


def _format_causes(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


@pytest.mark.usefixtures("nothing_left")
def test_every_shard_gets_the_error(numbers: Path, executor: str) -> None:
    ds = windrow.read_parquet(str(numbers), target_block_bytes=1).map_batches(fail_at_seven)
    pipe = ds.window(blocks_per_window=5).random_shuffle_each_window(seed=1).options(executor=executor)

    def read(shard: Shard) -> str:
        with pytest.raises(windrow.TransformError) as caught:
            read_pass(shard, 500)
        shard.close()
        return str(caught.value)

    messages = at_once(pipe.split(3), read)
    assert len(set(messages)) == 1


@pytest.mark.ray_at_night
@pytest.mark.usefixtures("nothing_left")
def test_run_after_a_failed_epoch(numbers: Path, executor: str, tmp_path: Path) -> None:
    flag = tmp_path / "fixed"

    def fail_until_fixed(batch: pa.Table) -> pa.Table:
        if not flag.exists():
            raise OwnError("not yet")
        return batch

    ds = windrow.read_parquet(str(numbers)).map_batches(fail_until_fixed, batch_format="pyarrow")
    pipe = ds.repeat(2).random_shuffle_each_window(seed=1).options(executor=executor)
    with pipe.iterator() as shard:
        with pytest.raises(windrow.TransformError, match="not yet"):
            read_pass(shard)
        flag.touch()
        if executor == "ray":
            return  # the coordinator keeps the failure; a new split() starts clean
        assert sorted(column(read_pass(shard))) == list(range(ROWS))


@pytest.mark.parametrize("executor", [pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.nightly
def test_trainer_fails(pipe: windrow.DatasetPipeline) -> None:
    import ray

    def train(shard: Shard, fails: bool) -> int:
        steps = 0
        for batch in shard.iter_torch_batches(100):
            steps += len(batch["x"]) == 100
            if fails and steps == 30:
                raise OwnError("in the trainer")
        return steps

    trainer = ray.remote(num_cpus=0)(train)
    failing, whole = pipe.split(2)
    refs = [trainer.remote(failing, True), trainer.remote(whole, False)]
    # the other trainer waits in vain, for a bounded time
    assert ray.get(refs[1]) == ROWS // 200
    with pytest.raises(OwnError, match="in the trainer"):
        ray.get(refs[0])
    del failing, whole, refs
    _check_new_run(pipe)
