"""Sizes of tasks, slices and windows within a memory budget, in one process and on clusters."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.plan.test_program import MIB, make_program
from windrow.core.errors import PlanError
from windrow.pipeline.plan.held_windows import largest_window
from windrow.pipeline.plan.job import Options, Resources
from windrow.pipeline.plan.memory_budget import (
    DESTINATION_BYTES,
    budget_program,
    size_parts,
)
from windrow.pipeline.plan.program import TASK_BYTES, Program
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.epoch_plan import WindowCut

BLOCK = (10_000, 20 * MIB)


def on_cluster(nodes: int, *, workers: int = 1, memory: int = 2**40) -> Resources:
    return Resources("simulated", workers, memory, limit_covers_all=False, copies=2 - 1 / nodes, nodes=nodes)


def spread(program: Program, shards: int) -> Program:
    return Program(program.job, shards, False, tuple(range(shards)))


def part_bytes(program: Program, window: int) -> list[int]:
    sizes = program.job.source.blocks.memory_bytes
    return [int(sizes[part].sum()) for part in program.parts(0, window)]


@given(
    st.lists(st.integers(1, 90).map(lambda mib: (100, mib * MIB)), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_all_tasks_but_the_last_of_a_window_output_the_minimum_per_node(
    stated: list[tuple[int, int]], nodes: int, shards: int
) -> None:
    program = spread(make_program(stated, WindowCut()), shards)
    sized = size_parts(program, on_cluster(nodes))
    wanted = DESTINATION_BYTES * min(nodes, shards)
    *all_but_last, _ = part_bytes(sized, 0)
    if wanted > TASK_BYTES:
        assert all(size >= min(wanted, sum(size for _, size in stated)) for size in all_but_last)
    elif min(nodes, shards) > 1:
        assert sized is program


def test_tasks_on_one_node_are_larger_where_every_worker_gets_several() -> None:
    program = make_program([BLOCK] * 64, WindowCut())
    few, many = (size_parts(program, on_cluster(1, workers=workers)) for workers in (2, 16))
    assert part_bytes(few, 0)[0] > 2 * TASK_BYTES
    assert many is program
    assert len(program.parts(0, 0)) > len(few.parts(0, 0)) >= 4 * 2
    # a window that would not fit beside larger tasks keeps its tasks
    tight = on_cluster(1, workers=2, memory=few.job.source.blocks.memory_bytes.sum() // 2)
    windows = make_program([BLOCK] * 64, WindowCut(blocks_per_window=16))
    assert (
        budget_program(size_parts(windows, tight), tight, 1).windows
        == budget_program(windows, tight, 1).windows
    )


def test_few_small_blocks_keep_all_workers_busy() -> None:
    program = make_program([(100, 3 * MIB)] * 8, WindowCut())
    assert len(program.parts(0, 0)) == 1
    assert len(size_parts(program, in_process(2**40, workers=4)).parts(0, 0)) == 4
    tiny = make_program([(100, MIB // 4)] * 4, WindowCut())
    assert len(size_parts(tiny, in_process(2**40, workers=4)).parts(0, 0)) == 1


def test_tasks_with_packed_outputs_read_more_for_the_same_object_size() -> None:
    plain, packed = (
        size_parts(spread(make_program([BLOCK] * 400, WindowCut(), packs_to=times), 16), on_cluster(16))
        for times in (1, 4)
    )
    output = packed.estimate.output_bytes.sum() / packed.job.source.blocks.memory_bytes.sum()
    for program, share in ((plain, 1.0), (packed, output)):
        *all_but_last, _ = part_bytes(program, 0)
        assert min(all_but_last) * share >= 16 * DESTINATION_BYTES
        assert max(all_but_last) * share <= 2 * 16 * DESTINATION_BYTES
    assert packed.task_bytes > 3 * plain.task_bytes


def test_every_worker_gets_a_task() -> None:
    program = spread(make_program([BLOCK] * 64, WindowCut()), 64)
    alone, together = (size_parts(program, on_cluster(64, workers=workers)) for workers in (1, 16))
    assert len(alone.parts(0, 0)) < 16 <= len(together.parts(0, 0))
    assert size_parts(program, on_cluster(64, workers=1_000)).task_bytes == TASK_BYTES


def test_many_nodes_get_larger_objects_and_fewer_tasks_than_workers() -> None:
    program = spread(make_program([BLOCK] * 4_000, WindowCut()), 100)
    few, many = (size_parts(program, on_cluster(100, workers=workers)) for workers in (10, 200))
    assert min(part_bytes(few, 0)[:-1]) >= 2.3 * DESTINATION_BYTES * 100
    # objects of the size for few nodes would allow one task for each worker
    assert 100 <= len(many.parts(0, 0)) <= 120


def test_many_nodes_get_packed_objects_of_the_same_size() -> None:
    program = spread(make_program([BLOCK] * 20_000, WindowCut(), packs_to=4), 100)
    sized = size_parts(program, on_cluster(100, workers=1_000))
    share = sized.estimate.output_bytes.sum() / sized.job.source.blocks.memory_bytes.sum()
    assert share < 0.3
    assert min(part_bytes(sized, 0)[:-1]) * share >= 2.2 * DESTINATION_BYTES * 100
    assert len(sized.parts(0, 0)) >= 100


def test_larger_tasks_do_not_change_the_order() -> None:
    program = spread(make_program([BLOCK] * 64, WindowCut(blocks_per_window=16), seed=5), 16)
    sized = size_parts(program, on_cluster(16))
    assert len(sized.parts(0, 0)) < len(program.parts(0, 0))
    for window in range(4):
        one, other = program.parts(0, window), sized.parts(0, window)
        assert one.blocks.tolist() == other.blocks.tolist()
        rows = program.stored_rows
        assert one.rows_before(rows).tolist() == other.rows_before(rows).tolist()


def test_every_copy_of_a_window_counts() -> None:
    """Rows that cross nodes are held on both, so outputs can take only a share of the limit."""
    program = spread(make_program([BLOCK] * 64, WindowCut(blocks_per_window=16)), 4)
    here, there = (budget_program(program, on_cluster(nodes), 10) for nodes in (1, 4))
    assert there.windows_limit_bytes == pytest.approx(1.75 * here.windows_limit_bytes, rel=0.001)
    assert there.outputs_limit_bytes == pytest.approx(here.outputs_limit_bytes, rel=0.001)


@pytest.mark.parametrize(
    ("blocks", "asked", "epochs", "held"),
    # blocks of 20 MiB; extra windows are held while all take at most 200 MiB
    [
        (1, 1, 2, 4),
        (2, 1, 2, 4),
        (3, 1, 2, 3),
        (5, 1, 2, 2),
        (9, 1, 2, 2),
        (1, 0, 2, 1),
        (1, 4, 2, 7),
        (4, 1, 1, 2),
    ],
)
def test_more_small_windows_are_held_than_requested(blocks: int, asked: int, epochs: int, held: int) -> None:
    program = make_program([BLOCK] * 8 * blocks, WindowCut(blocks_per_window=blocks))
    if epochs == 1:
        program = make_program([BLOCK] * 2 * blocks, WindowCut(blocks_per_window=blocks))
    job = replace(program.job, epochs=epochs, options=Options(prefetch_windows=asked))
    program = replace(program, job=job)
    resources = replace(on_cluster(1), small_windows_bytes=200 * MIB)
    budget, plain = budget_program(program, resources, 10), budget_program(program, on_cluster(1), 10)
    assert budget.windows == held
    assert (plain.windows, plain.extra_windows) == (held - budget.extra_windows, 0)
    assert plain.windows == min(1 + asked, held)


@pytest.mark.parametrize(
    ("options", "spare"),
    [
        ({}, 2),
        ({"packs_to": 2}, 2),
        ({"bytes_exact": False}, 0),
        ({"rows_known": False}, 0),
        ({"before": (MapBatches(lambda batch: batch),)}, 0),
    ],
)
def test_no_spare_windows_if_windows_grow_or_are_counted_first(options: Any, spare: int) -> None:
    program = make_program([BLOCK] * 8, WindowCut(blocks_per_window=1), **options)
    resources = replace(on_cluster(1), small_windows_bytes=200 * MIB)
    assert budget_program(program, resources, 10).extra_windows == spare


def test_cached_blocks_have_priority_over_unrequested_windows() -> None:
    program = make_program([BLOCK] * 16, WindowCut(blocks_per_window=1), options=Options(cache="memory"))
    plain = on_cluster(1, memory=100 * MIB)
    roomy = replace(plain, small_windows_bytes=200 * MIB)
    shares = [budget_program(program, resources, 10) for resources in (plain, roomy)]
    assert shares[0].cache_bytes == shares[1].cache_bytes > 0
    assert shares[1].windows_bytes + shares[1].cache_bytes <= 100 * MIB


@pytest.mark.parametrize("rows", range(1, 20))
def test_accepted_limit_holds_the_largest_window(rows: int) -> None:
    """Despite rounding in the conversion to the limit of all copies and back."""
    program = spread(make_program([(rows, 101)] * 3, WindowCut()), 3)
    least = int(largest_window(program, program.estimate.held_bytes) * (2 - 1 / 3))
    resources = on_cluster(3, memory=least)
    assert budget_program(program, resources, 1).outputs_limit_bytes >= largest_window(
        program, program.estimate.held_bytes
    )


@pytest.mark.parametrize(("nodes", "slices"), [(1, 8), (2, 4), (4, 2), (16, 2)])
def test_sliced_windows_get_fewer_slices_on_more_nodes(nodes: int, slices: int) -> None:
    program = spread(make_program([BLOCK] * 64, WindowCut(blocks_per_window=16)), nodes)
    enough_for_one = int(1.1 * 2 * 16 * 20 * MIB)
    resources = on_cluster(nodes, memory=enough_for_one)
    if nodes == 1:
        resources = on_cluster(nodes, memory=enough_for_one // 2)
    assert budget_program(program, resources, 10).slices == slices


def test_tasks_shrink_so_that_the_largest_window_fits() -> None:
    program = spread(make_program([(100, 2 * MIB)] * 64, WindowCut()), 1)
    window_bytes = int(program.estimate.held_bytes.sum())

    def in_process(overhead: int) -> Resources:
        return Resources("simulated", 2, window_bytes + overhead * MIB, limit_covers_all=True)

    ample, short, shortest = (in_process(overhead) for overhead in (256, 60, 20))
    assert size_parts(program, ample) is program
    sized = size_parts(program, short)
    assert sized.task_bytes < TASK_BYTES
    assert budget_program(sized, short, 1).total_bytes <= short.memory_bytes
    with pytest.raises(PlanError, match="leaves"):
        budget_program(size_parts(program, shortest), shortest, 1)


def in_process(memory: int, *, workers: int = 1, **more: Any) -> Resources:
    return Resources("simulated", workers, memory, limit_covers_all=True, **more)


def test_budget_includes_batches_of_the_requested_size() -> None:
    program = spread(make_program([(1_000, 2 * MIB)] * 64, WindowCut()), 1)
    resources = in_process(int(program.estimate.held_bytes.sum()) + 200 * MIB, workers=2)
    assert size_parts(program, resources, 1) is program
    sized = size_parts(program, resources, 20_000)
    assert budget_program(sized, resources, 20_000).total_bytes <= resources.memory_bytes


def test_every_worker_gets_a_task_of_every_window() -> None:
    program = spread(make_program([BLOCK] * 64, WindowCut(blocks_per_window=16)), 16)
    sized = size_parts(program, on_cluster(16, workers=8))
    assert [len(sized.parts(0, window)) for window in range(4)] == [8] * 4


@pytest.mark.parametrize("in_store", [False, True])
def test_task_holds_the_largest_block_and_its_output(in_store: bool) -> None:
    program = spread(make_program([(100, MIB)] * 50 + [(100, 100 * MIB)], WindowCut()), 1)
    resources = Resources("simulated", 3, 2**40, limit_covers_all=not in_store)
    output = int(program.estimate.held_bytes.max()) if in_store else 0
    assert budget_program(program, resources, 1).tasks_bytes >= 3 * (100 * MIB + output)


def test_every_shard_adds_its_runs_and_its_process() -> None:
    one, three = (
        budget_program(
            spread(make_program([BLOCK] * 8, WindowCut()), shards),
            in_process(2**40, processes_bytes=50, shard_bytes=7),
            10,
        )
        for shards in (1, 3)
    )
    assert three.runs_bytes == 3 * one.runs_bytes
    assert (one.processes_bytes, three.processes_bytes) == (57, 71)


@given(
    st.lists(st.integers(1, 90).map(lambda mib: (100, mib * MIB)), min_size=5, max_size=40),
    st.integers(1, 8),
    st.floats(0.2, 0.9),
)
def test_window_size_named_by_the_error_fits(stated: list[tuple[int, int]], nodes: int, share: float) -> None:
    program = spread(make_program(stated, WindowCut(), seed=3), nodes)
    resources = on_cluster(nodes)
    needed = budget_program(program, resources, 1).window_bytes
    resources = on_cluster(nodes, memory=int(share * needed))
    with pytest.raises(PlanError, match="largest window") as refused:
        budget_program(program, resources, 1)
    named = re.search(r"bytes_per_window=(\d+)", str(refused.value))
    if named:
        cut = WindowCut(bytes_per_window=int(named[1]))
        budget_program(spread(make_program(stated, cut, seed=3), nodes), resources, 1)


@pytest.mark.parametrize("seed", range(5))
def test_largest_window_includes_later_epochs(seed: int) -> None:
    stated = [(100, mib * MIB) for mib in range(1, 41)]
    program = make_program(stated, WindowCut(blocks_per_window=4), seed=seed)
    held = program.estimate.held_bytes
    windows = [program.plan(epoch).window_blocks(window) for epoch in range(3) for window in range(10)]
    assert largest_window(program, program.estimate.held_bytes) == max(
        held[window].sum() for window in windows
    )


def test_blocks_larger_than_a_task_allow_more_slices() -> None:
    program = spread(make_program([(10_000, 128 * MIB)] * 16, WindowCut(blocks_per_window=4)), 4)
    # slightly more than a window of four blocks with its copies
    short = on_cluster(4, memory=int(1.1 * 1.75 * 4 * 128 * MIB))
    assert budget_program(program, short, 1).slices == 8


def test_task_that_decodes_by_column_holds_few_columns() -> None:
    # a million rows of one column of 8 bytes, in a block that is stated to hold more
    stated = [(10**6, 100 * MIB)] * 4
    threads = Resources("simulated", 3, 2**40, limit_covers_all=True)

    def tasks(resources: Resources, **options: Any) -> int:
        program = make_program(stated, WindowCut(), **options)
        return budget_program(program, resources, 1).tasks_bytes

    columns = 3 * 8 * 10**6
    assert tasks(threads) == 3 * (100 + 8) * MIB
    assert tasks(threads, decodes_columns=True) == 3 * (columns + 8 * MIB)
    assert tasks(on_cluster(1, workers=3)) - tasks(on_cluster(1, workers=3), decodes_columns=True) == 3 * (
        100 * MIB - columns
    )
    # narrow columns are decoded together, up to 4 MiB of them
    narrow = make_program([(10**5, 50 * MIB)] * 4, WindowCut(), decodes_columns=True)
    assert budget_program(narrow, threads, 1).tasks_bytes == 3 * (2 * 8 * 10**5 + (4 + 8) * MIB)
    mapped, cached = {"before": (MapBatches(lambda batch: batch),)}, {"options": Options(cache="disk")}
    for options in (mapped, cached, {"rows_known": False}):
        assert tasks(threads, decodes_columns=True, **options) == tasks(threads, **options)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_rows_that_are_narrowed_for_replicas_are_counted_where_they_are_sent_from(nodes: int) -> None:
    program = replace(make_program([BLOCK] * 40, WindowCut(blocks_per_window=10)), replicas=4)
    window_bytes = largest_window(program, program.estimate.held_bytes)

    def tasks_bytes(program: Program, nodes: int) -> int:
        return budget_program(program, on_cluster(4).with_replicas(nodes), 1).tasks_bytes

    assert tasks_bytes(program, nodes) - tasks_bytes(program, 1) == (nodes - 1) * window_bytes
    # with transforms after the shuffle whole rows are sent, of which there is no second copy there
    after = replace(program, job=replace(program.job, after=(MapBatches(lambda batch: batch),)))
    assert tasks_bytes(after, nodes) == tasks_bytes(after, 1)
