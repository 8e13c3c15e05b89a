"""Replicas on threads whose hosts get only what is wanted of the rows, as hosts do from other nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from windrow.pipeline.delivery.wanted import EVERYTHING, Wanted
from windrow.pipeline.executors import threads_job
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.shard import replica_sessions
from windrow.pipeline.tasks.narrow_outputs import narrow_outputs
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.step_runs import StepRuns, find_run_places


@contextmanager
def narrowing_hosts() -> Iterator[list[Wanted]]:
    """Narrow what hosts get; yields what was wanted of the windows, in turn."""
    fetched: list[Wanted] = []
    fetch = threads_job.ThreadsClient.window

    def want(client: Any, wanted: Wanted) -> None:
        client.wanted = wanted

    def window(client: Any, epoch: int, window: int, stop: threading.Event) -> WindowData | None:
        data = fetch(client, epoch, window, stop)
        wanted = getattr(client, "wanted", EVERYTHING)
        fetched.append(wanted)
        if data is not None and not wanted.is_everything:
            data.wanted = wanted
            assert isinstance(data.layout, (WindowRuns, StepRuns)) or not any(data.slices)
            places = [] if data.layout is None else find_run_places(data.layout, client._shard)
            data.slices = [
                # every other one as if it had been here
                MapOutputs(
                    narrow_outputs([output], wanted, of_runs, copies=True)[0]
                    if at % 3
                    else narrow_outputs([output], wanted, copies=False)[0]
                    for at, output in enumerate(found)
                )
                if isinstance(found, MapOutputs)
                else found
                for found, of_runs in zip(data.slices, places, strict=True)
            ]
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads_job.ThreadsClient, "want", want)
        patch.setattr(threads_job.ThreadsClient, "window", window)
        patch.setattr(replica_sessions, "make_host", partial(replica_sessions.make_host, narrows=True))
        yield fetched
