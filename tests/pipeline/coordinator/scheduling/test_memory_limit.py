"""The memory limit once tasks output more than expected."""

from __future__ import annotations

import pytest

from windrow.pipeline.coordinator.scheduling.events import Finished, Limits
from windrow.pipeline.coordinator.scheduling.memory_limit import MemoryLimit
from windrow.pipeline.plan.epoch_shape import Part
from windrow.pipeline.plan.window_budget import RowOverhead
from windrow.pipeline.tasks.task import Shortfall, Work

WORK = Work(0, 0, 0, 0, 0)


def memory_budget(
    *, memory: int = 1000, overhead: RowOverhead | None = None, row_bytes: int = 0
) -> MemoryLimit:
    return MemoryLimit(
        Limits(
            shards=(0,),
            stop_epoch=None,
            slots=1,
            memory_bytes=memory,
            prefetch_windows=1,
            crosses_epochs=True,
            slices=1,
            heartbeat_timeout_seconds=5.0,
            overhead=overhead,
            row_bytes=row_bytes,
        )
    )


def note(
    limits: MemoryLimit, part: Part, *slice_bytes: int, unpacked: int | None = None, rows: int = 10
) -> None:
    limits.measure(part, Finished(WORK, rows, slice_bytes, unpacked))


def test_what_is_expected_grows_by_the_row() -> None:
    limits = memory_budget()
    assert limits.estimate_bytes(Part(10, 10)) == 10
    note(limits, Part(10, 100), 40, 40)
    assert (limits.sizes.growth, limits.estimate_bytes(Part(10, 10))) == (1.0, 10)
    note(limits, Part(10, 100), 420)
    # 300 more than expected for 20 rows
    assert (limits.sizes.growth, limits.sizes.excess_bytes) == (2.5, 15)
    assert [limits.estimate_bytes(part) for part in (Part(10, 10), Part(1, 10), Part(10, 0))] == [
        160,
        25,
        150,
    ]


def test_a_tiny_estimate_scales_nothing() -> None:
    overhead = RowOverhead(4, 10**6, 10, min_run_bytes=10**6, tasks=2, block_rows=20)
    limits = memory_budget(memory=10**9, overhead=overhead)
    note(limits, Part(10, 1), 100_001)
    # runs in portions of a million bytes, and blocks of two hundred thousand, however little was expected
    assert limits.sizes.growth == 100_001
    assert limits.estimate_bytes(Part(10, 1)) == 100_001
    assert limits.limit_bytes(2) == 10**9 - 4 * 10**6 - 2 * 200_000


def test_rows_of_parts_that_are_to_be_counted_are_those_stored() -> None:
    limits = memory_budget()
    note(limits, Part(None, 0, stored_rows=10), 100, rows=2)
    assert limits.estimate_bytes(Part(None, 0, stored_rows=20)) == 200
    assert (limits.sizes.row_bytes, limits.sizes.stored_row_bytes) == (50, 10)


OVERHEAD = RowOverhead(2, 3, 3, min_run_bytes=10, tasks=2, block_rows=5)


@pytest.mark.parametrize(
    ("unpacked", "excess", "limit"), [(10, 79.0, 1000 - 2 * 10 - 5), (800, 79.0, 1000 - 2 * 240 - 400)]
)
def test_what_is_beside_windows_takes_what_rows_do_unpacked(unpacked: int, excess: float, limit: int) -> None:
    limits = memory_budget(overhead=OVERHEAD, row_bytes=1)
    assert limits.limit_bytes() == 1000 - 2 * 10
    note(limits, Part(10, 10), 800, unpacked=unpacked)
    assert limits.sizes.excess_bytes == excess
    assert limits.limit_bytes() == limit


def test_rows_can_be_smaller_than_estimated() -> None:
    overhead = RowOverhead(2, 3, 3, min_run_bytes=10, tasks=2, block_rows=5, row_bytes=900, block_bytes=9000)
    limits = memory_budget(overhead=overhead, row_bytes=900)
    note(limits, Part(10, 9_000), 10)
    assert limits.limit_bytes(2) == 1000 - 2 * 10 - 2 * 5
    assert limits.sizes.excess_bytes == 0


def test_what_a_block_takes_however_few_its_rows_are_makes_rows_no_larger() -> None:
    limits = memory_budget(overhead=OVERHEAD, row_bytes=2)
    # of a block of 100 rows of 2 bytes, and 400 more, a filter keeps one row
    note(limits, Part(None, 600, stored_rows=100), 350, rows=1)
    assert limits.limit_bytes() == 1000 - 2 * 10


def test_rows_that_a_transform_repeats_are_no_larger() -> None:
    limits = memory_budget(overhead=OVERHEAD, row_bytes=3)
    note(limits, Part(None, 30, stored_rows=10), 90, rows=30)
    assert (limits.sizes.row_bytes, limits.sizes.stored_row_bytes) == (3, 9)


def test_unfinished_split_counts_what_it_has_read() -> None:
    limits = memory_budget()
    limits.measure_share(Part(100, 50), Shortfall(0.1, rows=10, size_bytes=1005, min_bytes=5000))
    assert limits.estimate_bytes(Part(100, 50)) == 50 + 100 * 100
    assert limits.is_measured


def test_what_batches_hold_counts_where_shards_measure_more() -> None:
    limits = memory_budget(memory=10_000, overhead=OVERHEAD)
    note(limits, Part(10, 10), 10)
    limits.note_delivered(100.0)
    assert limits.sizes.row_bytes == 100
    assert limits.limit_bytes(0) == 10_000 - 2 * 300
    limits.note_delivered(50.0)
    note(limits, Part(10, 10), 10)
    assert limits.sizes.row_bytes == 100
