"""Calls of a transform that workers elsewhere get together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from windrow.pipeline.tasks.map_batches import Call, MapBatches, Result
from windrow.pipeline.tasks.transforms import FailedRows, apply_maps, call_function


class _Workers:
    """Calls the function in this process, several calls at a time, each once its result is awaited."""

    most = 1

    def __init__(self, stage: MapBatches, together: int) -> None:
        self.stage, self.calls_together, self.started = stage, together, list[int]()

    def start(self, calls: Sequence[Call]) -> list[Callable[[], Result]]:
        self.started.append(len(calls))
        return [functools.partial(call_function, self.stage, self.stage.fn, call) for call in calls]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9), st.sets(st.integers(0, 39)))
def test_calls_that_are_made_together_change_nothing(
    rows: int, size: int, together: int, bad: set[int]
) -> None:
    def fail_for_some(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if bad & set(batch["x"].tolist()):
            raise ValueError(f"bad rows in {batch['x'].tolist()}")
        return {"x": batch["x"] + 1}

    table, stage = pa.table({"x": range(rows)}), MapBatches(fail_for_some, batch_size=size)
    workers = _Workers(stage, together)
    kept: list[pa.Table] = []
    lost: list[list[tuple[list[int], str]]] = []
    for each in (stage, replace(stage, workers=workers)):
        failed: FailedRows = []
        kept.append(apply_maps(table, [each], "a block", failed=failed))
        lost.append([(some["x"].to_pylist(), str(error)) for some, error in failed])
    assert kept[0].equals(kept[1])
    assert lost[0] == lost[1]
    assert sum(workers.started) == (batches := -(-rows // size))
    assert len(workers.started) >= min(batches, 3), "as many are on their way as if each was sent by itself"
    assert max(workers.started) == max(1, min(together, batches // 3))
