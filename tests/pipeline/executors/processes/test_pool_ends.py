"""How worker processes end: killed, forked, with their parent or as a pool closes; what they have made stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.end_to_end.reading import eventually
from tests.pipeline.executors.processes import functions
from tests.pipeline.executors.processes.pools import read, shuffled, worker_pids
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.executors.processes import pool
from windrow.pipeline.tasks.map_batches import Call, MapBatches


def test_a_process_that_dies_is_replaced_and_its_batch_made_again(tmp_path: Path) -> None:
    arguments = (250, tmp_path / "died", False)
    pipe = shuffled().map_batches(
        functions.Dying, fn_constructor_args=arguments, compute=windrow.ActorPool(2)
    )
    assert [batch["id"] for batch in read(pipe)] == [
        [2 * number for number in batch["id"]] for batch in read(shuffled())
    ]
    assert (tmp_path / "died").exists()


def test_processes_killed_at_any_time_lose_nothing() -> None:
    pipe = shuffled(4000, 20, epochs=2).map_batches(
        functions.Counting, fn_constructor_args=(0.01,), compute=windrow.ActorPool(2)
    )
    expected = [batch["id"] for batch in read(shuffled(4000, 20, epochs=2))]
    found, killed = [], 0
    for epoch in pipe.iter_epochs():
        for step, batch in enumerate(epoch.iter_batches(20)):
            found.append(batch["id"].tolist())
            for pid in worker_pids()[: step % 50 == 25]:
                os.kill(pid, signal.SIGKILL)
                killed += 1
    assert found == expected
    assert killed > 4


def test_a_batch_that_kills_every_process_is_an_error(tmp_path: Path) -> None:
    arguments = (250, tmp_path / "died", True)
    pipe = shuffled().map_batches(
        functions.Dying, fn_constructor_args=arguments, compute=windrow.ActorPool(1)
    )
    with pytest.raises(
        TransformError, match=r"Dying.*rows from place .* died 4 times.*exit codes -9, -9, -9, -9"
    ):
        read(pipe)


def test_closing_ends_processes_whose_function_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_END_SECONDS", 0.5)
    shard = shuffled().map_batches(functions.sleep_long, compute="processes").iterator()
    batches = iter(shard.iter_batches(20))
    raised: list[BaseException] = []

    def take() -> None:
        try:
            next(batches)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    assert eventually(lambda: len(worker_pids()) > 0)
    began = time.monotonic()
    shard.close()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(raised[0], PlanError)
    assert time.monotonic() - began < 30


def test_what_a_process_has_lent_stays_however_it_ends() -> None:
    pipe = shuffled(20_000).map_batches(functions.end_on_sigterm, compute=windrow.ActorPool(1))
    held = []
    with pipe.iterator() as shard:
        for step, batch in enumerate(shard.iter_batches(500)):
            held.append(batch["id"])
            if step == 10:
                for pid in worker_pids():
                    os.kill(pid, signal.SIGTERM)
                time.sleep(1.0)
    assert sorted(np.concatenate(held).tolist()) == list(range(1, 20_001))


def test_a_process_whose_child_survives_it_is_missed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pipe = shuffled().map_batches(
        functions.die_with_a_child, fn_kwargs={"pids": pids}, compute=windrow.ActorPool(1)
    )
    began = time.monotonic()
    try:
        with pytest.raises(TransformError, match="died 4 times"):
            read(pipe.options(stall_timeout=40))
    finally:
        for pid in pids.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    assert time.monotonic() - began < 40


def test_a_forked_process_that_closes_a_pool_leaves_its_processes_to_the_parent() -> None:
    workers = pool.ProcessWorkers(MapBatches(functions.count_here), (1, 1))
    call = Call(pa.table({"id": [1]}), "here", None, False)
    try:
        first = workers.start([call])[0]()[0]
        child = os.fork()
        if not child:
            try:
                workers.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert workers.start([call])[0]()[0].equals(first)
    finally:
        workers.close()


def test_a_batch_that_comes_as_the_pool_closes_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = pool.ProcessWorkers(MapBatches(functions.sleep_long), (1, 1))
    start = pool._Process.__init__

    def close_meanwhile(process: Any, of: Any) -> None:
        closing = threading.Thread(target=workers.close)
        closing.start()
        assert workers.closed.wait(10)
        time.sleep(0.2)
        start(process, of)

    monkeypatch.setattr(pool._Process, "__init__", close_meanwhile)
    (wait,) = workers.start([Call(pa.table({"id": [1]}), "here", None, False)])
    began = time.monotonic()
    with pytest.raises(CancelledError):
        wait()
    assert time.monotonic() - began < 30


def test_processes_end_with_a_parent_that_is_killed() -> None:
    """A function that never returns does not keep its process."""
    code = (
        "import windrow; from tests.pipeline.executors.processes.functions import sleep_long\n"
        "pipe = windrow.range(100).repeat(1).random_shuffle_each_window(seed=1).options(executor='threads')\n"
        "next(iter(pipe.map_batches(sleep_long, compute='processes').iter_batches()))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[4])
    children = Path(f"/proc/{parent.pid}/task")
    found: list[int] = []

    def has_started() -> bool:
        for task in children.iterdir():
            found.extend(int(pid) for pid in (task / "children").read_text().split())
        return bool(found)

    assert eventually(has_started, 60)
    parent.kill()
    parent.wait(20)
    assert eventually(lambda: not any(map(_is_worker, found)))


def _is_worker(pid: int) -> bool:
    try:
        return b"processes.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
