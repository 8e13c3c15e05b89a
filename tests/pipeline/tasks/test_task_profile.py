"""What a task spends on the columns of a part counts as decoding, whichever method decodes them."""

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
from windrow.core.frame_of_reference import Packing
from windrow.core.phase_clock import PhaseClock, measuring
from windrow.core.source import ScatteringPart
from windrow.pipeline.tasks.task import timed_parts

ROWS = 100
TARGETS = np.arange(ROWS, dtype=np.uint32)
POOL = BufferPool(0)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "select": ([0],),
    "scatter_values": ([0], [Packing(8, 0)], TARGETS, [np.zeros(8 * ROWS, np.uint8)], POOL),
    "scatter_text": (1, TARGETS, [slice(0, ROWS)], POOL),
    "decode_nested": (2, POOL),
}


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
