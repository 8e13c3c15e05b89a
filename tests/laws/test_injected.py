"""An exception at every call of the driver and of the threads that prefetch: an error that names it, never a hang."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.laws.cases import Case, take_rows
from tests.laws.injection import Site, injecting, names_injected, recording
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.shard import Shard, open_shards
from windrow.shuffle.plan import WindowCut

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("small_and_impatient", "leaves_no_thread"),
    # threads that nobody waits for may be where a call fails
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

PACKAGE = Path(windrow.__file__).parent
CALLERS = [PACKAGE / "pipeline" / name for name in ("driver.py", "walk.py", "epoch_runs.py", "prefetch.py")]
JOIN_SECONDS = 20.0
TRIES = 3

_CUT = WindowCut(blocks_per_window=2)
CASES = {
    "known": Case((9, 14, 3, 8), _CUT, epochs=2, shards=2, batch_rows=4, equal="pad", change="negated"),
    "counted": Case((9, 14, 30, 8), _CUT, epochs=2, shards=2, batch_rows=3, change="dropped", cache="memory"),
    "damaged": Case(
        (9, 14, 3, 8), _CUT, epochs=2, shards=2, batch_rows=4, damaged=frozenset({1}), cache="disk"
    ),
}


class _Consumer:
    """Reads a shard to its end, and goes on after errors."""

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
        # one epoch by the thread that converts batches, one without it
        batch_format: Any = "pandas" if epoch.number else "numpy"
        return epoch.iter_batches(self._case.batch_rows, batch_format=batch_format)


def _read(case: Case) -> list[_Consumer]:
    shards = open_shards(case.job(ThreadsExecutor(2)), case.shards, equal=case.equal)
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


def _sites(case: Case) -> dict[Site, int]:
    with recording(CALLERS, [PACKAGE]) as seen:
        _read(case)
    return dict(seen)


@pytest.mark.parametrize("name", CASES)
def test_every_call(name: str) -> None:
    case = CASES[name]
    expected = [
        [batch for epoch in range(case.epochs) for batch in case.dealt(epoch).batches[shard]]
        for shard in range(case.shards)
    ]
    problems: list[str] = []
    sites = _sites(case)
    assert len(sites) > 80
    for site, calls in sorted(sites.items()):
        for number in sorted({0, calls // 2}):
            with injecting(CALLERS, [PACKAGE], site, number):
                consumers = _read(case)
            told = f"{' '.join(site)}, call {number}"
            for consumer, rows in zip(consumers, expected, strict=True):
                if consumer.rows != rows:
                    problems.append(f"{told}: rows were lost or repeated, errors {consumer.errors}")
                if len(consumer.errors) > 1 or not all(map(names_injected, consumer.errors)):
                    problems.append(f"{told}: {consumer.errors}")
    assert not problems, "\n".join(problems)
