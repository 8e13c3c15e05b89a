"""The memory budget of a program on an executor's resources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError
from windrow.core.source import DistantReader, decodes_columns
from windrow.io.catalog.value_widths import fixed_bits
from windrow.pipeline.executors.base import Resources
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import RUN_BYTES, TASK_BYTES, Program
from windrow.pipeline.plan.window_budget import MAX_SLICES, Budget, RowOverhead, plan_budget
from windrow.pipeline.tasks.cache.cache_budget import RunBudget, share_memory
from windrow.shuffle.kernels.group_rows import DECODED_TOGETHER_BYTES

__all__ = [
    "DESTINATION_BYTES",
    "RUNS_AHEAD",
    "budget_program",
    "largest_window",
    "largest_window_bytes",
    "overlap_waiting",
    "size_parts",
]

# A task puts out one object for each node with shards; smaller ones cost the coordinator more
# than their bytes cost the network.
DESTINATION_BYTES = 4 * 2**20
# The more nodes, the more objects a second of the same size; one coordinator owns them all.
_DESTINATION_BYTES_A_NODE = 96 * 2**10
# With a single slice nothing of a window could be let go before its last row.
_MIN_SLICES = 2
# Where memory is short, a window is cut into so many where tasks can be large enough for that.
_TARGET_SLICES = 4
# A task's own costs are small beside reading so much.
_MIN_TASK_BYTES = TASK_BYTES // 4

# The decoder's scratch, and the numbers that are computed for each row of a part.
_WORK_BYTES = 8 * 2**20
# Of a block that is decoded column by column, what Arrow holds of one, in two pieces and one.
_COLUMNS_HELD = 2
# One being consumed, one ready, one being placed, and one whose tensors are being let go.
RUNS_AHEAD = 4
# Tasks on a core whose blocks lie in a store: while one waits for it, another decodes.
_OVERLAP = 2
# So many windows may a shard pass before it tells, with a call of its own where it asks nothing meanwhile.
_EXTRA_WINDOWS = 2
# Epochs whose cut into windows is looked at: blocks are permuted, so sizes differ a little.
_EPOCHS_SAMPLED = 3


def overlap_waiting(program: Program, resources: Resources, batch_rows: int = 1) -> Resources:
    """Resources with several tasks on a core where tasks wait for a store.

    They take memory: where windows would be fewer, or sliced finer, it is one on each core.
    """
    reader = program.job.source.reader
    if not (isinstance(reader, DistantReader) and reader.distant):
        return resources
    extra = (_OVERLAP - 1) * resources.workers
    more = replace(
        resources,
        workers=resources.workers + extra,
        processes_bytes=resources.processes_bytes + extra * resources.worker_bytes,
        task_cpus=resources.task_cpus / _OVERLAP,
    )
    try:
        plain, overlapped = (
            budget_program(size_parts(program, each, batch_rows), each, batch_rows)
            for each in (resources, more)
        )
    except PlanError:
        return resources
    return more if (overlapped.windows, overlapped.slices) == (plain.windows, plain.slices) else resources


def size_parts(program: Program, resources: Resources, batch_rows: int = 1) -> Program:
    """The same program with tasks of the size that fits the resources.

    Each of as many nodes as there are, and at most one a shard, gets `DESTINATION_BYTES`
    or more of every task but the last of a window, more where there are over 42 nodes.
    Smaller tasks are kept where a window would not give every worker one; of so many nodes fewer
    workers are enough, the fewer the larger objects are to be and the more words are packed.
    Where tasks share the limit with windows, and the largest window would not fit beside
    them, they are made smaller.
    """
    program = _split_for_workers(program, resources)
    if resources.limit_covers_all:
        return _shrink_splits(program, resources, batch_rows)
    destinations, sizes = _destinations(program, resources), program.job.source.blocks.memory_bytes
    if destinations == 1 or not len(sizes):
        return program
    sliced = budget_program(program, resources, 1).slices > 1
    each, shrinkage = max(DESTINATION_BYTES, _DESTINATION_BYTES_A_NODE * destinations), _shrinkage(program)
    target_bytes = int(each * destinations * (_TARGET_SLICES if sliced else 1) * shrinkage)
    if target_bytes <= TASK_BYTES:
        return program
    # parts are cut at multiples of their size, so that one may lack almost a block of it
    missing_bytes = 0 if int(sizes.min()) >= target_bytes else int(sizes.max())
    windows = max(1, program.plan(0).windows)
    # one coordinator hears of all objects, of which there are more a second the more nodes there are and the
    # less of the network rows take; so many nodes wait for that long before their CPUs are busy
    ratio = each / DESTINATION_BYTES
    workers = int(resources.workers / (ratio * min(shrinkage, ratio**2)))
    most = int(sizes.sum()) // (windows * max(workers, min(resources.workers, destinations)))
    return replace(program, part_bytes=max(TASK_BYTES, min(target_bytes + missing_bytes, most)))


def _shrink_splits(program: Program, resources: Resources, batch_rows: int) -> Program:
    try:
        budget = budget_program(program, resources, batch_rows)
    except PlanError:
        return replace(program, part_bytes=_MIN_TASK_BYTES)
    if budget.window_bytes > budget.windows_limit_bytes:
        return replace(program, part_bytes=min(program.task_bytes, _MIN_TASK_BYTES))
    return program


def _split_for_workers(program: Program, resources: Resources) -> Program:
    """Of rows that transforms make, nobody knows how large they are, or how long they take."""
    if not program.job.before:
        return program
    total = int(program.job.source.blocks.memory_bytes.sum())
    each = total // (max(1, program.plan(0).windows) * resources.workers)
    return replace(program, part_bytes=max(1, min(program.task_bytes, each)))


def _destinations(program: Program, resources: Resources) -> int:
    """The nodes that a task puts out to, at most."""
    return min(resources.nodes, len(program.members))


def _slices(program: Program, resources: Resources) -> int:
    """Into how many slices to cut where memory is short: fewer where objects would get too small."""
    destinations = _destinations(program, resources)
    if destinations == 1:
        return MAX_SLICES
    sizes = program.job.source.blocks.memory_bytes
    part_bytes = max(program.task_bytes, int(sizes.min()) if len(sizes) else 0)
    slices = int(part_bytes / _shrinkage(program)) // (DESTINATION_BYTES * destinations)
    return min(MAX_SLICES, max(_MIN_SLICES, slices))


def _shrinkage(program: Program) -> float:
    """How many decoded bytes make a byte of what a task puts out, where words are packed; 1 or more."""
    decoded, output = program.job.source.blocks.memory_bytes.sum(), program.output_bytes.sum()
    return max(1.0, float(decoded / output)) if output else 1.0


def budget_program(program: Program, resources: Resources, batch_rows: int) -> RunBudget:
    """Decide how a program's windows, runs, tasks and kept blocks share the memory.

    Raises
    ------
    PlanError
        When the largest window does not fit.
    """
    limit_bytes = program.job.options.memory_bytes or resources.memory_bytes
    budget = _plan_windows(program, resources, batch_rows, limit_bytes)
    cache_bytes = 0
    if program.job.cache == "memory":
        # kept blocks go before windows that nobody asked for
        asked = replace(resources, small_windows_bytes=0)
        least = _plan_windows(program, asked, batch_rows, limit_bytes)
        cache_bytes = share_memory(program.job, least, limit_covers_all=resources.limit_covers_all)
    if cache_bytes:
        try:
            budget = _plan_windows(program, resources, batch_rows, limit_bytes - cache_bytes)
        except PlanError as error:
            raise PlanError(
                f"the cache takes {format_bytes(cache_bytes)} of the memory limit of {format_bytes(limit_bytes)}, "
                f"and the largest window does not fit into the rest: lower options(cache_limit=...). {error}"
            ) from error
    return RunBudget(**{**vars(budget), "limit_bytes": limit_bytes}, cache_bytes=cache_bytes)


def _plan_windows(program: Program, resources: Resources, batch_rows: int, limit_bytes: int) -> Budget:
    job = program.job
    is_certain = _is_exact(job) and job.rows_known
    window_bytes = int(largest_window_bytes(program) * resources.copies)
    overhead = _overhead(program, resources, batch_rows)
    options: dict[str, Any] = {
        "windows": min(1 + job.options.prefetch_windows, _windows_of_run(program)),
        "max_windows": _max_windows(program, resources, window_bytes),
        "limit_bytes": max(0, limit_bytes),
        "limit_covers_all": resources.limit_covers_all,
        # how far words can be packed is told by files, and may be wrong
        "exact": _is_exact(job) and not program.packs,
        "size_within": lambda held_bytes: _size_within(program, int(held_bytes / resources.copies)),
        "processes_bytes": resources.processes_bytes + len(program.members) * resources.shard_bytes,
        "copies": resources.copies,
        "slices": _slices(program, resources),
    }
    if not is_certain:
        _check_lower_bound(program, resources, overhead, options)
    return plan_budget(
        window_bytes=window_bytes,
        window_rows=largest_window(program, job.source.blocks.rows),
        runs_bytes=overhead.runs_bytes(overhead.row_bytes),
        tasks_bytes=resources.workers * _task_bytes(program, resources),
        overhead=None if is_certain else overhead,
        must_fit=is_certain,
        **options,
    )


def _check_lower_bound(
    program: Program, resources: Resources, overhead: RowOverhead, options: dict[str, Any]
) -> None:
    """Refuse what cannot fit though sizes are estimates: not even the least that they can be."""
    job, kept = program.job, _task_bytes(program, resources) - overhead.block_bytes
    least = 0
    if job.rows_known and not job.before:
        decoded = np.minimum(program.held_bytes, job.source.blocks.decoded_bytes)
        least = int(largest_window(program, decoded) * resources.copies)
    # no room at all is too little for any row
    least = max(least, int(overhead.block_rows > 0))
    tasks_bytes = resources.workers * kept + overhead.blocks_bytes(0.0, 1)
    plan_budget(window_bytes=least, runs_bytes=overhead.runs_bytes(0.0), tasks_bytes=tasks_bytes, **options)


def _overhead(program: Program, resources: Resources, batch_rows: int) -> RowOverhead:
    blocks = program.job.source.blocks
    # no batch is larger than the dataset, whatever was asked for
    batch_rows = min(batch_rows, int(blocks.rows.sum()))
    block_bytes = _decoded_task_bytes(program, resources)
    return RowOverhead(
        runs=len(program.members) * RUNS_AHEAD,
        # no run is larger than the window either
        run_rows=min(program.run_rows(max(1, batch_rows)), largest_window(program, blocks.rows)),
        batch_rows=batch_rows,
        min_run_bytes=RUN_BYTES,
        tasks=resources.workers,
        block_rows=int(blocks.rows.max(initial=0)),
        min_block_bytes=min(block_bytes, TASK_BYTES),
        row_bytes=program.row_bytes,
        block_bytes=block_bytes,
    )


def _is_exact(job: Job) -> bool:
    return job.source.blocks.bytes_exact and not job.before


def _max_windows(program: Program, resources: Resources, window_bytes: int) -> int:
    """How many windows are held where they are small: as many as are asked for, and some to spare.

    None are where they may turn out larger than is known, or are counted first: the next one would wait for
    memory, or for its rows, until shards have told of what they have passed.
    """
    asked = program.job.options.prefetch_windows
    if not asked or not window_bytes or not (_is_exact(program.job) and program.job.rows_known):
        return 0
    small = resources.small_windows_bytes // window_bytes
    return min(1 + asked + _EXTRA_WINDOWS, small, _windows_of_run(program))


def largest_window_bytes(program: Program) -> int:
    """Bytes of map outputs that the largest window holds, for the members' shards."""
    return largest_window(program, program.held_bytes)


def largest_window(program: Program, sizes: NDArray[np.int64]) -> int:
    """The most that any window has of something, given for every block of the dataset."""
    epochs = _EPOCHS_SAMPLED if program.job.seed is not None and program.plan(0).windows > 1 else 1
    largest = 0
    for epoch in range(epochs):
        plan = program.plan(epoch)
        before = np.append(0, np.cumsum(sizes[plan.blocks]))
        largest = max(largest, int(np.diff(before[plan.starts]).max(initial=0)))
    return largest


def _size_within(program: Program, held_bytes: int) -> int:
    """The ``bytes_per_window`` whose windows hold at most ``held_bytes``, wherever blocks fall."""
    decoded = program.job.source.blocks.decoded_bytes
    filled = decoded > 0
    share = (decoded[filled] / program.held_bytes[filled]).min(initial=1.0)
    # a window ends with a whole block
    return int(held_bytes * share) - int(decoded.max(initial=0))


def _windows_of_run(program: Program) -> int:
    windows = program.plan(0).windows
    return windows if program.job.epochs == 1 else max(windows, 1) * 2


def _task_bytes(program: Program, resources: Resources) -> int:
    """What a task takes beside what is counted for its window.

    Decoded blocks, or a few columns of one where no more is held; what is computed on the way; and where
    outputs go to a store, the output before it is there.
    """
    largest = int(program.job.source.blocks.memory_bytes.max(initial=0))
    kept = _cached_task_bytes(program, resources) + min(_WORK_BYTES, largest)
    return kept + _decoded_task_bytes(program, resources)


def _decoded_task_bytes(program: Program, resources: Resources) -> int:
    decoded = program.job.source.blocks.memory_bytes
    columns = _columns_bytes(program)
    if columns is not None:
        decoded = np.minimum(decoded, columns)
        if resources.limit_covers_all:
            return int(decoded.max(initial=0))
    if resources.limit_covers_all:
        return int(min(decoded.sum(), max(decoded.max(initial=0), program.task_bytes)))
    held = program.held_bytes
    output = max(held.max(initial=0), program.task_bytes)
    return int(min(decoded.sum() + held.sum(), decoded.max(initial=0) + output))


def _columns_bytes(program: Program) -> int | None:
    """What a task holds of its blocks where it decodes them column by column; None where it holds them whole."""
    job = program.job
    whole = bool(job.before) or job.cache is not None or not job.rows_known
    if whole or not decodes_columns(job.source.reader):
        return None
    widths = [fixed_bits(kind) for kind in job.source.schema.types]
    known = [bits for bits in widths if bits is not None]
    if len(known) < len(widths):
        return None
    column = int(job.source.blocks.rows.max(initial=0)) * -(-max(known, default=0) // 8)
    # and where its rows, or those of several, are put in order
    return _COLUMNS_HELD * column + max(column, DECODED_TOGETHER_BYTES)


def _cached_task_bytes(program: Program, resources: Resources) -> int:
    """What a task holds of blocks that are to be kept until they are where they are kept."""
    decoded = program.job.source.blocks.memory_bytes
    if program.job.cache is None or (program.job.cache == "memory" and resources.limit_covers_all):
        return 0
    return int(min(decoded.sum(), max(decoded.max(initial=0), program.task_bytes)))
