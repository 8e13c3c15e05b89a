"""A block counts as corrupt after two failed reads; and all that a task spends on the columns of a part is decoding."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.io.files import open_parquet
from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.errors import SourceError
from windrow.core.frame_of_reference import Packing
from windrow.core.phase_clock import PhaseClock, measuring
from windrow.core.source import CorruptBlockError, ScatteringPart
from windrow.pipeline.tasks.task import Corruption, find_corruption, late_corruption, timed_parts

ROWS = 100
TARGETS = np.arange(ROWS, dtype=np.uint32)
POOL = BufferPool(0)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "select": ([0],),
    "scatter_values": (
        [0],
        np.array([Packing(8, 0)]),
        TARGETS,
        ColumnMemory.take(POOL, np.array([8 * ROWS])),
        POOL,
    ),
    "scatter_text": (1, TARGETS, [slice(0, ROWS)], POOL),
    "decode_nested": (2, POOL),
}


class Reads:
    """A read that fails a given number of times."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures, self.error, self.count = failures, error, 0

    def __call__(self) -> str:
        self.count += 1
        if self.count <= self.failures:
            raise self.error
        return "rows"


TORN = CorruptBlockError("part-3.parquet, row group 1: torn")


@pytest.mark.parametrize(
    ("failures", "found", "reads"),
    [(0, "rows", 1), (1, "rows", 2), (2, Corruption(7, str(TORN)), 2)],
)
def test_corrupt_block_can_become_readable(failures: int, found: object, reads: int) -> None:
    read = Reads(failures, TORN)
    assert find_corruption(read, 7) == found
    assert read.count == reads


def test_other_errors_are_not_corruption() -> None:
    read = Reads(1, SourceError("gone"))
    with pytest.raises(SourceError, match="gone"):
        find_corruption(read, 7)
    with pytest.raises(SourceError, match=r"^gone$"), late_corruption():
        raise SourceError("gone")


def test_late_corruption_cannot_be_skipped() -> None:
    with (
        pytest.raises(SourceError, match=r"row group 1: torn\. It can no longer be skipped") as raised,
        late_corruption(),
    ):
        raise TORN
    assert type(raised.value) is SourceError


def test_all_ways_to_decode_are_known() -> None:
    methods = {name for name, _ in inspect.getmembers(ScatteringPart, inspect.isfunction) if name[0] != "_"}
    assert set(ARGUMENTS) == methods


@pytest.mark.parametrize("method", ARGUMENTS)
def test_every_way_to_decode_counts_as_decoding(method: str, tmp_path: Path) -> None:
    numbers = range(ROWS)
    table = pa.table(
        {"x": numbers, "text": [f"row {n}" for n in numbers], "list": [[n, n + 1] for n in numbers]}
    )
    pq.write_table(table, tmp_path / "0.parquet")
    source = open_parquet(tmp_path)
    clock = PhaseClock()
    with measuring(clock, "shuffle"):
        parts = timed_parts(source.reader.parts(source.addresses([0])[0]))
        part = next(parts)
        opening = clock.seconds.pop("decode")
        getattr(part, method)(*ARGUMENTS[method])
        decoding = clock.seconds["decode"]
        assert list(parts) == []
    assert opening > 0
    assert decoding > 0
    assert sorted(clock.seconds) == ["decode", "shuffle"]
