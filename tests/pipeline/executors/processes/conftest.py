"""Every test of worker processes leaves none behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.end_to_end.reading import eventually
from tests.pipeline.executors.processes.pools import worker_pids


@pytest.fixture(autouse=True)
def _ends_its_processes() -> Iterator[None]:
    before = set(worker_pids())
    yield
    gc.collect()
    assert eventually(lambda: not set(worker_pids()) - before), "processes are left"
