"""Fixtures of the law tests: small runs, short timeouts, no leftover threads."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from windrow.pipeline.coordinator.scheduling import memory_limit
from windrow.pipeline.executors import threads_job
from windrow.pipeline.plan import memory_budget, program
from windrow.pipeline.shard import run_reader


@contextmanager
def small_runs_and_short_timeouts() -> Iterator[None]:
    """Use many runs and tasks of a few rows each, and heartbeats and timeouts of fractions of a second."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (program, memory_budget):
            patch.setattr(module, "RUN_BYTES", 100)
            patch.setattr(module, "TASK_BYTES", 150)
        patch.setattr(memory_limit, "HEARTBEAT_TIMEOUT_SECONDS", 0.3)
        patch.setattr(run_reader, "_HEARTBEAT_SECONDS", 0.05)
        patch.setattr(run_reader, "_LOOK_SECONDS", 0.05)
        # states of all shards are equal where a checkpoint does not give up on a busy machine
        patch.setattr(run_reader, "_MAX_COUNT_WAIT_SECONDS", 60.0)
        patch.setattr(threads_job, "_POLL_SECONDS", 0.05)
        yield


@pytest.fixture(scope="module")
def small_runs() -> Iterator[None]:
    """Apply `small_runs_and_short_timeouts` to a module."""
    with small_runs_and_short_timeouts():
        yield


@pytest.fixture(autouse=True)
def corruption_is_expected() -> None:
    """Ignore warnings about corrupt blocks, which cases contain on purpose."""
    warnings.filterwarnings("ignore", message="a corrupt block is (skipped|left out)")


@pytest.fixture
def leaves_no_thread() -> Iterator[None]:
    """Fail if a thread of windrow outlives the test."""
    yield
    gc.collect()
    until = time.monotonic() + 20
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("windrow")]:
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.01)
