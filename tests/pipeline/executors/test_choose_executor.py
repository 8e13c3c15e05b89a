"""Which executor runs a job, and what is said of it."""

from __future__ import annotations

import pytest

from tests.dataset.example_sources import make_source
from windrow.pipeline.executors.choose_executor import find_resources
from windrow.pipeline.plan.job import Job, Options


def test_auto_executor_states_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.pipeline.executors.choose_executor.ray_is_initialized", lambda: False)
    named = Job(make_source(10), options=Options(executor="threads"))
    assert find_resources(named).executor == "threads"
    assert find_resources(Job(make_source(10))).executor == "threads (auto: Ray is not initialised)"
