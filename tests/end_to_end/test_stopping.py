"""Early stops of all usual kinds: the state points to the row after the last delivered batch."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import windrow
import windrow.pipeline.shard.epoch
import windrow.pipeline.shard.epoch_reader
from tests.end_to_end.data import write_numbers
from tests.end_to_end.reading import at_once
from windrow.pipeline.shard.prefetcher import Prefetcher
from windrow.pipeline.shard.run_reader import RunReader

STEPS, BATCH_ROWS = 9, 100
Stop = Callable[[windrow.Shard], list[int]]


class _UserError(Exception):
    pass


def _pipe(path: Path, executor: str, *, filtered: bool) -> windrow.DatasetPipeline:
    ds = windrow.read_parquet(
        str(path), columns=["key"], filter=pc.field("distance") > 700 if filtered else None
    )
    pipe = ds.window(blocks_per_window=1).repeat(3).random_shuffle_each_window(seed=5)
    return pipe.options(executor=executor)


def _keys(batches: Any) -> list[int]:
    return [int(key) for batch in batches for key in batch["key"]]


def _read(shards: list[windrow.Shard], read: Stop) -> list[int]:
    return list(itertools.chain.from_iterable(at_once(shards, read)))


# --- kinds of early stops


def _break(shard: windrow.Shard) -> list[int]:
    found = []
    for step, batch in enumerate(shard.iter_batches(BATCH_ROWS), 1):
        found.append(batch)
        if step == STEPS:
            break
    return _keys(found)


def _break_out_of_epoch(shard: windrow.Shard) -> list[int]:
    found = []
    for epoch in shard.iter_epochs():
        for step, batch in enumerate(epoch.iter_batches(BATCH_ROWS), 1):
            found.append(batch)
            if step == STEPS:
                break
        break
    return _keys(found)


def _islice(shard: windrow.Shard) -> list[int]:
    return _keys(itertools.islice(shard.iter_batches(BATCH_ROWS), STEPS))


def _keep_iterator(shard: windrow.Shard) -> list[int]:
    iterator = shard.iter_batches(BATCH_ROWS)
    found = _keys(next(iterator) for _ in range(STEPS))
    iterator.close()
    return found


def _raise_in_loop(shard: windrow.Shard) -> list[int]:
    found: list[Any] = []

    def train() -> None:
        for batch in shard.iter_batches(BATCH_ROWS):
            found.append(batch)
            if len(found) == STEPS:
                raise _UserError

    with pytest.raises(_UserError):
        train()
    return _keys(found)


def _leave_shard(shard: windrow.Shard) -> list[int]:
    with shard:
        return _keys(itertools.islice(shard.iter_batches(BATCH_ROWS), STEPS))


def _close_during_epoch(shard: windrow.Shard) -> list[int]:
    found = []
    for epoch in shard.iter_epochs():
        for batch in epoch.iter_batches(BATCH_ROWS):
            found.append(batch)
            if len(found) == STEPS:
                # like a signal handler; the loops then end on their own
                shard.close()
    return _keys(found)


STOPS: list[Stop] = [
    _break,
    _break_out_of_epoch,
    _islice,
    _keep_iterator,
    _raise_in_loop,
    _leave_shard,
    _close_during_epoch,
]


def _cases() -> Iterator[Any]:
    """Every way to stop on threads; on Ray two of them on every change, and all of them at night."""
    for executor, filtered, stop in itertools.product(("threads", "ray"), (True, False), STOPS):
        by_day = filtered and stop in (_break, _close_during_epoch)
        marks = [] if executor == "threads" else [pytest.mark.ray, *([] if by_day else [pytest.mark.nightly])]
        name = f"{stop.__name__.strip('_')}-{executor}-{'filtered' if filtered else 'whole'}"
        yield pytest.param(executor, filtered, stop, id=name, marks=marks)


@pytest.mark.ray_at_night
@pytest.mark.parametrize(("executor", "filtered", "stop"), list(_cases()), indirect=["executor"])
def test_no_row_is_lost(executor: str, trips_path: Path, stop: Stop, *, filtered: bool) -> None:
    pipe = _pipe(trips_path, executor, filtered=filtered)
    expected = _keys(pipe.options(executor="threads").iter_batches(BATCH_ROWS))
    shards = pipe.split(2)
    found = at_once(shards, stop)
    states = [shard.state_dict() for shard in shards]
    for shard in shards:
        shard.close()
    assert states == [shard.state_dict() for shard in shards]
    assert states[0] == states[1]
    assert (states[0]["epoch"], states[0]["row"]) == (0, 2 * STEPS * BATCH_ROWS)
    ahead = 2 * STEPS * BATCH_ROWS
    assert sorted(found[0] + found[1]) == sorted(expected[:ahead])
    with pipe.iterator(state_dict=states[0]) as shard:
        assert (
            _keys(batch for epoch in shard.iter_epochs() for batch in epoch.iter_batches(500))
            == expected[ahead:]
        )


def test_next_request_decides_which_epoch_follows(executor: str, trips_path: Path) -> None:
    pipe = _pipe(trips_path, executor, filtered=False)

    def place(shard: windrow.Shard) -> tuple[int, int]:
        state = shard.state_dict()
        return state["epoch"], state["row"]

    with pipe.iterator() as shard:
        epochs = shard.iter_epochs()
        _keys(itertools.islice(next(epochs).iter_batches(BATCH_ROWS), STEPS))
        assert place(shard) == (0, STEPS * BATCH_ROWS)
        next(epochs)
        assert place(shard) == (1, 0)
    with pipe.iterator() as shard:
        _keys(itertools.islice(shard.iter_batches(BATCH_ROWS), STEPS))
        shard.iter_batches(BATCH_ROWS)
        assert place(shard) == (1, 0)
    with pipe.iterator() as shard:
        for _ in shard.iter_batches(BATCH_ROWS):
            # the loop over a skipped epoch ends
            shard.skip_epoch()
        assert place(shard) == (1, 0)
        _break(shard)
        shard.skip_epoch()
        assert place(shard) == (2, 0)
        _break(shard)
        assert place(shard) == (2, STEPS * BATCH_ROWS)
        # there is no epoch after it to request
        with pytest.raises(windrow.PlanError, match="all 3 epochs"):
            shard.iter_batches(BATCH_ROWS)
        assert place(shard) == (2, STEPS * BATCH_ROWS)
        shard.skip_epoch()
        assert place(shard) == (3, 0)
        with pytest.raises(windrow.PlanError, match="all 3 epochs"):
            shard.skip_epoch()


def test_shard_continues_after_an_early_stop(executor: str, trips_path: Path) -> None:
    pipe = _pipe(trips_path, executor, filtered=False)
    expected = _keys(pipe.options(executor="threads").iter_batches(BATCH_ROWS))
    shards = pipe.split(2)
    found = _read(shards, _break)
    for shard in shards:
        shard.load_state_dict(shard.state_dict())
    found += _read(shards, _break)
    for shard in shards:
        shard.skip_batches(3)
    assert sorted(found) == sorted(expected[: 4 * STEPS * BATCH_ROWS])
    rest = _read(shards, lambda shard: _keys(shard.iter_batches(BATCH_ROWS)))
    assert sorted(rest) == sorted(expected[(4 * STEPS + 6) * BATCH_ROWS : len(expected) // 3])
    for shard in shards:
        shard.close()


@pytest.mark.ray_at_night
@pytest.mark.parametrize("batch_format", ["numpy", "pandas"])
def test_interrupted_wait_is_an_early_stop(
    executor: str, trips_path: Path, batch_format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = _pipe(trips_path, executor, filtered=False)
    with pipe.iterator() as shard:
        iterator = shard.iter_batches(BATCH_ROWS, batch_format=batch_format, prefetch_batches=1)
        for _ in range(STEPS):
            next(iterator)
        with monkeypatch.context() as patch:
            # pandas batches are converted in a separate thread
            owner: type[Any] = Prefetcher if batch_format == "pandas" else RunReader
            patch.setattr(owner, "__next__" if batch_format == "pandas" else "_next", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                for _ in iterator:
                    pass
        state = shard.state_dict()
        # batches of a placed run are delivered without waiting
        assert state["epoch"] == 0
        assert state["row"] >= STEPS * BATCH_ROWS
        again = shard.iter_batches(BATCH_ROWS)
        assert shard.state_dict()["epoch"] == 1
        assert len(list(again)) == len(again)


def _interrupt(self: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.ray_at_night
@pytest.mark.parametrize("executor", ["threads", "ray"])
@pytest.mark.parametrize("held", [True, False], ids=["iterator held", "iterator dropped"])
def test_epoch_ended_at_its_last_batch_is_skipped_once(
    executor: str, tmp_path: Path, ray_local: Any, *, held: bool
) -> None:
    # with batches of 10 the first of two shards has one more step
    path = write_numbers(tmp_path / "x.parquet", 110, row_group_size=20)
    pipe = windrow.read_parquet(str(path)).repeat(4).options(executor=executor)
    shards = pipe.split(2)
    iterators = [shard.iter_batches(10) for shard in shards]
    for iterator, steps in zip(iterators, (6, 5), strict=True):
        assert len(list(itertools.islice(iterator, steps))) == steps
    if not held:
        del iterator, iterators
    for shard in shards:
        shard.skip_epoch()
    assert [(shard.state_dict()["epoch"], shard.state_dict()["row"]) for shard in shards] == [(1, 0)] * 2
    # an epoch that was not started is skipped completely
    for shard in shards:
        shard.skip_epoch()
        assert shard.state_dict()["epoch"] == 2
        shard.close()


@pytest.mark.parametrize("executor", ["threads", "ray"])
@pytest.mark.ray_at_night
def test_epoch_ended_before_its_first_batch_keeps_the_loaded_state(
    executor: str, trips_path: Path, ray_local: Any
) -> None:
    pipe = _pipe(trips_path, executor, filtered=False)
    saved = [pipe.iterator().state_dict()]
    with pipe.iterator() as shard:
        _break(shard)
        saved.append(shard.state_dict())
        shard.skip_epoch()
        saved.append(shard.state_dict())
    for state in saved:
        with pipe.iterator(state_dict=state) as shard:
            shard.iter_batches(BATCH_ROWS // 2).close()
            assert shard.state_dict() == state


def test_interrupt_at_any_call_loses_no_batch(trips_path: Path) -> None:
    """Exceptions of signal handlers surface at calls, so each call is interrupted once."""
    files = {windrow.pipeline.shard.epoch_reader.__file__, windrow.pipeline.shard.epoch.__file__}
    for calls in itertools.count():
        with _pipe(trips_path, "threads", filtered=False).iterator() as shard:
            found, left = [], calls
            batches = shard.iter_batches(BATCH_ROWS)
            found.append(next(batches))

            def interrupt(frame: Any, event: str, argument: Any) -> None:
                nonlocal left
                caller = frame.f_back if event == "call" else frame
                if event in ("call", "c_call", "c_return") and caller.f_code.co_filename in files:
                    left -= 1
                    if left < 0:
                        sys.setprofile(None)
                        raise KeyboardInterrupt

            sys.setprofile(interrupt)
            try:
                found.append(next(batches))
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            assert shard.state_dict()["row"] == BATCH_ROWS * len(found), calls
        if left >= 0:
            break
    assert calls > 10
