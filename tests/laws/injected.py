"""Runs a case with an exception injected at every call of some modules, one at a time, in a separate process."""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import windrow
from tests.laws import ray_double
from tests.laws.cases import Case
from tests.laws.conftest import small_runs_and_short_timeouts
from tests.laws.injection import InjectedError, injecting, names_injected, recording
from tests.laws.ray_double import doubled_ray
from tests.laws.reading import take_rows
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.shard import Shard
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.epoch_plan import WindowCut

__all__ = ["CALLERS", "CASES"]

PACKAGE = Path(windrow.__file__).parent
_RUNS = "pipeline/shard/epoch_runs.py"
# of the queue of runs
_SHARED = (
    "pipeline/coordinator/driver.py",
    "pipeline/shard/prefetch_loop.py",
    f"{_RUNS}:begin",
    f"{_RUNS}:acknowledge",
)
_RAY = "pipeline/executors/ray"
# modules whose calls fail, for each executor; Ray's own functions are those of a test double
CALLERS = {
    "threads": (*_SHARED, "pipeline/shard/prefetcher.py:_fill"),
    "ray": (
        *_SHARED,
        "pipeline/coordinator/core.py",
        f"{_RAY}/coordinator.py",
        f"{_RAY}/task_dispatch.py",
        f"{_RAY}/client.py",
        f"{_RAY}/fetch_thread.py",
    ),
}
# calls that only set an event; threads continue without them
ENDS_A_THREAD = {"fetch_thread.stop", "workers.close"}
INSIDE = [PACKAGE, Path(ray_double.__file__)]
JOIN_SECONDS = 20.0
TRIES = 3


def _same(batch: Any) -> Any:
    return batch


class _MappedCase(Case):
    """A case with a transform after the shuffle too."""

    def job(self, executor: Any) -> Any:
        return replace(super().job(executor), after=(MapBatches(_same),))


_CUT = WindowCut(blocks_per_window=2)
CASES = {
    "known": Case((9, 14, 3, 8), _CUT, epochs=2, shards=2, batch_rows=4, equal="pad", change="negated"),
    "counted": Case((9, 14, 30, 8), _CUT, epochs=2, shards=2, batch_rows=3, change="dropped", cache="memory"),
    "mapped": _MappedCase((9, 14, 3, 8), _CUT, epochs=2, shards=2, batch_rows=4),
    "corrupt": Case(
        (9, 14, 3, 8), _CUT, epochs=2, shards=2, batch_rows=4, corrupt=frozenset({1}), cache="disk"
    ),
}


class _Consumer:
    """Reads a shard to its end, and continues after errors."""

    def __init__(self, shard: Shard, case: Case) -> None:
        self.rows: list[list[int]] = []
        self.errors: list[BaseException] = []
        self._shard, self._case = shard, case
        self.thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        for _ in range(TRIES):
            try:
                for epoch in self._shard.iter_epochs():
                    for batch in self._iterate(epoch):
                        self.rows.append(take_rows(batch))
            except BaseException as error:
                self.errors.append(error)
            else:
                return

    def _iterate(self, epoch: Any) -> Any:
        # one epoch with the thread that converts batches, one without it
        batch_format: Any = "pandas" if epoch.number else "numpy"
        return epoch.iter_batches(
            self._case.batch_rows, batch_format=batch_format, balance=self._case.balance
        )


def _read(case: Case, executor: str) -> list[_Consumer]:
    with doubled_ray() if executor == "ray" else nullcontext(ThreadsExecutor(2)) as made:
        try:
            shards = open_shards(case.job(made), case.shards, equal=case.equal)
        except InjectedError:
            return []
        consumers = [_Consumer(shard, case) for shard in shards]
        for consumer in consumers:
            consumer.thread.start()
        for consumer in consumers:
            consumer.thread.join(JOIN_SECONDS)
            if consumer.thread.is_alive():
                consumer.errors.append(TimeoutError("the shard hangs"))
        for shard, consumer in zip(shards, consumers, strict=True):
            try:
                shard.close()
            except BaseException as error:
                consumer.errors.append(error)
        return consumers


def _list_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("windrow")]


def _threads_left() -> list[threading.Thread]:
    until = time.monotonic() + JOIN_SECONDS
    while True:
        gc.collect()
        left = _list_threads()
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.05)


def find_problems(name: str, executor: str, how_many: str) -> list[str]:
    """Describe each call whose failure loses or repeats rows, hangs a shard, or is missing from the error.

    Of the calls from one place, the first and the middle one fail in turns; with "one", only either of them.
    """
    case, callers = CASES[name], [f"{PACKAGE}/{caller}" for caller in CALLERS[executor]]
    if executor == "ray":
        # on Ray, files are read by tasks in other processes
        case = replace(case, cache="memory" if case.cache else None)
    expected = [
        [batch for epoch in range(case.epochs) for batch in case.assigned(epoch).batches[shard]]
        for shard in range(case.shards)
    ]
    with recording(callers, INSIDE) as seen:
        _read(case, executor)
    sites = dict(seen)
    problems: list[str] = [] if len(sites) > 80 else [f"only {len(sites)} calls were seen"]
    reached = {True: 0, False: 0}
    # for each thread that outlived its job, the call that failed in that job
    failed_calls: weakref.WeakKeyDictionary[threading.Thread, str] = weakref.WeakKeyDictionary()
    for at, (site, calls) in enumerate(sorted(sites.items())):
        if site[-1] in ENDS_A_THREAD:
            continue
        chosen = {0, calls // 2} if how_many == "two" else {calls // 2 if at % 2 else 0}
        for number in sorted(chosen):
            with injecting(callers, INSIDE, site, number) as tracer:
                consumers = _read(case, executor)
            where = f"{' '.join(site)}, call {number}"
            for thread in _list_threads():
                failed_calls.setdefault(thread, where)
            # a failed split returns no shards
            for consumer, rows in zip(consumers, expected if consumers else [], strict=True):
                if consumer.rows != rows:
                    problems.append(f"{where}: rows were lost or repeated, errors {consumer.errors}")
                if len(consumer.errors) > 1 or not all(map(names_injected, consumer.errors)):
                    problems.append(f"{where}: {consumer.errors}")
            reached[tracer.fired] += 1
    if reached[False] * 4 > reached[True]:
        problems.append(
            f"{reached[False]} calls were not made again, which another order of threads explains for few"
        )
    problems += [
        f"{failed_calls.get(thread, 'without an error')}: left behind: {thread.name}"
        for thread in _threads_left()
    ]
    return problems


if __name__ == "__main__":
    # exceptions of finalizers and of threads that nobody joins are only printed
    warnings.simplefilter("ignore")
    with small_runs_and_short_timeouts():
        found = find_problems(*sys.argv[1:])
    print(*found, sep="\n")
    sys.exit(bool(found))
