"""The output limit of a task, and the estimate from a sample of a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.output_limit import OutputLimit, OutputLimitError
from windrow.pipeline.tasks.transforms import apply_maps


def _by(stage: MapBatches) -> Callable[[pa.Table], pa.Table]:
    return lambda table: apply_maps(table, (stage,), "here")


def test_no_limit_accepts_any_output() -> None:
    limit = OutputLimit(None, (10, 10), samples=True)
    limit.check_sample(0, pa.table({"x": np.arange(1000)}), _by(MapBatches(lambda batch: 1 / 0)))
    limit.add(0, 10, 2**60)


@pytest.mark.parametrize(("after", "share"), [(0, 0.25), (1, 0.75), (2, 1.0)])
def test_output_is_checked_after_each_block(after: int, share: float) -> None:
    rows = (10, 20, 10)
    limit = OutputLimit(100, rows, samples=False)
    for at in range(after):
        limit.add(at, rows[at], 100)
    with pytest.raises(OutputLimitError) as caught:
        limit.add(after, rows[after], 101)
    found = caught.value.shortfall
    assert (found.share, found.rows) == (share, sum(rows[: after + 1]))
    assert (found.size_bytes, found.min_bytes) == (101, 101)


def test_blocks_of_unknown_rows_count_equally() -> None:
    limit = OutputLimit(100, (None, None), samples=False)
    with pytest.raises(OutputLimitError) as caught:
        limit.add(0, 1, 101)
    assert caught.value.shortfall.share == 0.5


class Wide:
    """Returns rows of 1,000 bytes, and records the size of each batch."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(len(batch["x"]))
        return {"image": np.zeros((len(batch["x"]), 1000), np.uint8)}


TABLE = pa.table({"x": np.arange(2000)})


@pytest.mark.parametrize(("most", "calls"), [(2_100_000, [16]), (1_900_000, [16, 256]), (0, [16, 256])])
def test_sample_of_rows_estimates_the_block(most: int, calls: list[int]) -> None:
    wide, limit = Wide(), OutputLimit(most, (1000, 2000), samples=True)
    if len(calls) == 1:
        limit.check_sample(1, TABLE, _by(MapBatches(wide)))
    else:
        with pytest.raises(OutputLimitError) as caught:
            limit.check_sample(1, TABLE, _by(MapBatches(wide)))
        found = caught.value.shortfall
        assert (found.share, found.rows) == ((1000 + 256) / 3000, 256)
        assert found.size_bytes == pytest.approx(256_000, rel=0.01)
        assert found.min_bytes == pytest.approx(2_000_000, rel=0.01)
    assert wide.calls == calls


def test_sample_is_spread_over_the_block() -> None:
    seen: list[int] = []

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        seen.extend(batch["x"].tolist())
        return batch

    OutputLimit(10**9, (2000,), samples=True).check_sample(0, TABLE, _by(MapBatches(note)))
    assert seen == list(range(0, 2000, 125))


def test_small_block_is_not_sampled() -> None:
    wide = Wide()
    OutputLimit(0, (63,), samples=True).check_sample(0, TABLE.slice(0, 63), _by(MapBatches(wide)))
    assert wide.calls == []
