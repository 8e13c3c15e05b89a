"""Computes a run's peak memory before it starts: how windows, runs, tasks and cached blocks share it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError
from windrow.core.source import decodes_columns, is_remote
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.pipeline.plan.cache_budget import share_memory
from windrow.pipeline.plan.held_windows import largest_window
from windrow.pipeline.plan.job import Job, Resources
from windrow.pipeline.plan.process_budget import extra_runs, processes_bytes
from windrow.pipeline.plan.program import RUN_BYTES, TASK_BYTES, Program
from windrow.pipeline.plan.window_budget import MAX_SLICES, Budget, RowOverhead, plan_budget
from windrow.pipeline.tasks.task import PLACED_TOKENS
from windrow.shuffle.kernels.group_rows import DECODED_TOGETHER_BYTES

# Minimum size of an object, one a task and node with shards: coordinating a smaller one costs more than its bytes.
DESTINATION_BYTES = 4 * 2**20
# More nodes mean more objects per second at the same size, and a single coordinator owns them all.
_DESTINATION_BYTES_PER_NODE = 96 * 2**10
# With a single slice nothing of a window could be released before its last row.
_MIN_SLICES = 2
# Slices per window where memory is short, if tasks can be large enough for that.
_TARGET_SLICES = 4
# Reading this much outweighs the overhead of a task.
_MIN_TASK_BYTES = TASK_BYTES // 4

# Rows are gathered faster from fewer outputs. Where those are objects of a store, each task costs more: several
# times as long to start, and its objects.
_LARGE_TASK_BYTES, _STORED_TASK_BYTES = 2 * TASK_BYTES, 3 * TASK_BYTES
# Every worker still gets this many tasks of a window, so that it ends with all of them busy.
_TASKS_PER_WORKER = 4

# Decoding less in a task gains less than the task costs.
_MIN_SPLIT_BYTES = 2 * 2**20

# Scratch memory of the decoder, and the positions computed for each row of a part.
_WORK_BYTES = 8 * 2**20
# of a token that is being placed, if it is a piece of its own: its row, twice, its run and its place
_PLACED_TOKEN_BYTES = 32
# Copies of a column that Arrow holds while a block is decoded column by column: in chunks, and combined.
_COLUMNS_HELD = 2
# Runs per shard: one being consumed, one ready, one being placed, one whose tensors are being released.
RUNS_AHEAD = 4
# Tasks per core where blocks are in object storage: while one waits for a read, another decodes.
_OVERLAP = 2
# of a mixture's window, where memory allows it: each slice of a block is an object, whose making and placing take time
_FEWEST_SLICES = 1
# Windows that a shard can pass before it must acknowledge them with a call of their own.
_EXTRA_WINDOWS = 2


def overlap_waiting(program: Program, resources: Resources, batch_rows: int = 1) -> Resources:
    """Resources with several tasks per core where tasks wait for object storage.

    Additional tasks take memory, so it stays one per core where fewer windows would fit or
    slices would get finer.
    """
    reader = program.job.source.reader
    if not is_remote(reader):
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
    """The same program with sizes of tasks, and of a mixture's slices, that fit the resources; see `_size_tasks`.

    A mixture's windows are held whole where memory is not short for as many of them.
    """
    sized = _size_tasks(program, resources, batch_rows)
    if program.job.mixture is None:
        return sized
    return _prefer(replace(sized, most_slices=_FEWEST_SLICES), sized, resources, batch_rows, most_slices=1)


def _prefer(
    wanted: Program, plain: Program, resources: Resources, batch_rows: int, most_slices: int = MAX_SLICES
) -> Program:
    """A program that may take more memory, where as many windows fit as with another one, in as few slices.

    Memory is short where its budget has more than ``most_slices``.
    """
    try:
        more, less = (budget_program(each, resources, batch_rows) for each in (wanted, plain))
    except PlanError:
        return plain
    fits = (more.windows, more.slices) == (less.windows, less.slices) and more.slices <= most_slices
    return wanted if fits else plain


def _size_tasks(program: Program, resources: Resources, batch_rows: int) -> Program:
    """The same program with a task size that fits the resources.

    For every task but the last of a window, each destination gets an object of at least
    `DESTINATION_BYTES`; above 42 destinations the minimum grows with their number.
    Destinations are nodes, at most one per shard.
    Where outputs stay on a single node, tasks are larger if memory allows. Tasks stay smaller where a window would
    otherwise have fewer tasks than workers. With many nodes, fewer workers suffice: the larger the objects and the
    better rows pack, the fewer. Where tasks share the memory limit with windows and the largest window would not
    fit beside them, tasks are made smaller.
    """
    program = _split_for_workers(program, resources)
    if resources.limit_covers_all:
        return _resize_tasks(program, resources, batch_rows)
    destinations, sizes = _destinations(program, resources), program.job.source.blocks.memory_bytes
    if destinations == 1 or not len(sizes):
        return _enlarge_tasks(program, resources, batch_rows, _STORED_TASK_BYTES)
    sliced = budget_program(program, resources, 1).slices > 1
    each = max(DESTINATION_BYTES, _DESTINATION_BYTES_PER_NODE * destinations)
    packing_ratio = _packing_ratio(program)
    target_bytes = int(each * destinations * (_TARGET_SLICES if sliced else 1) * packing_ratio)
    if target_bytes <= TASK_BYTES:
        return program
    # parts are cut at multiples of their size, so one can fall short by almost a block
    missing_bytes = 0 if int(sizes.min()) >= target_bytes else int(sizes.max())
    # A single coordinator handles all objects. Their rate grows with the number of nodes, and as rows take less
    # of the network; on so many nodes it is the bottleneck long before the CPUs are.
    ratio = each / DESTINATION_BYTES
    workers = int(resources.workers / (ratio * min(packing_ratio, ratio**2)))
    max_part_bytes = _mean_window_bytes(program) // max(workers, min(resources.workers, destinations))
    return replace(program, part_bytes=max(TASK_BYTES, min(target_bytes + missing_bytes, max_part_bytes)))


def _enlarge_tasks(program: Program, resources: Resources, batch_rows: int, most_bytes: int) -> Program:
    """Fewer and larger tasks, where that takes no window and no slice."""
    if program.job.before:
        return program
    each = _mean_window_bytes(program) // (resources.workers * _TASKS_PER_WORKER)
    larger = replace(program, part_bytes=min(most_bytes, each))
    if larger.task_bytes <= program.task_bytes:
        return program
    return _prefer(larger, program, resources, batch_rows)


def _resize_tasks(program: Program, resources: Resources, batch_rows: int) -> Program:
    """Smaller tasks where the largest window does not fit beside them, larger ones where memory allows."""
    try:
        budget = budget_program(program, resources, batch_rows)
    except PlanError:
        return replace(program, part_bytes=_MIN_TASK_BYTES)
    if budget.window_bytes > budget.windows_limit_bytes:
        return replace(program, part_bytes=min(program.task_bytes, _MIN_TASK_BYTES))
    return _enlarge_tasks(program, resources, batch_rows, _LARGE_TASK_BYTES)


def _split_for_workers(program: Program, resources: Resources) -> Program:
    """Make tasks small enough that every worker gets one.

    Without transforms no smaller than `_MIN_SPLIT_BYTES`, and not where objects for several nodes would get smaller:
    the size of rows that transforms make, and the time that they take, are unknown.
    """
    if not program.job.before and _destinations(program, resources) > 1:
        return program
    each = _mean_window_bytes(program) // resources.workers
    size = max(1 if program.job.before else _MIN_SPLIT_BYTES, each)
    return replace(program, part_bytes=size) if size < program.task_bytes else program


def _mean_window_bytes(program: Program) -> int:
    """Bytes of the blocks that are prepared together: those of a window, or what a mixture's round needs."""
    sizes = program.job.source.blocks.memory_bytes
    if program.job.mixture is not None:
        return largest_window(program, sizes)
    return int(sizes.sum()) // max(1, program.plan(0).windows)


def _destinations(program: Program, resources: Resources) -> int:
    """The maximum number of nodes that a task outputs to."""
    return min(resources.nodes, len(program.members))


def _slices(program: Program, resources: Resources) -> int:
    """The number of slices per window where memory is short: fewer where objects would get too small."""
    destinations = _destinations(program, resources)
    if destinations == 1:
        return MAX_SLICES
    sizes = program.job.source.blocks.memory_bytes
    part_bytes = max(program.task_bytes, int(sizes.min()) if len(sizes) else 0)
    slices = int(part_bytes / _packing_ratio(program)) // (DESTINATION_BYTES * destinations)
    return min(MAX_SLICES, max(_MIN_SLICES, slices))


def _packing_ratio(program: Program) -> float:
    """Decoded bytes per byte of packed map output; 1 or more."""
    decoded, output = program.job.source.blocks.memory_bytes.sum(), program.estimate.output_bytes.sum()
    return max(1.0, float(decoded / output)) if output else 1.0


def budget_program(program: Program, resources: Resources, batch_rows: int) -> Budget:
    """Divide the memory between a program's windows, runs, tasks and cached blocks."""
    limit_bytes = program.job.options.memory_bytes or resources.memory_bytes
    budget = _plan_windows(program, resources, batch_rows, limit_bytes)
    cache_bytes = 0
    if program.job.cache == "memory":
        # cached blocks take precedence over extra windows
        requested = replace(resources, small_windows_bytes=0)
        min_budget = _plan_windows(program, requested, batch_rows, limit_bytes)
        cache_bytes = share_memory(program.job, min_budget, limit_covers_all=resources.limit_covers_all)
    if cache_bytes:
        try:
            budget = _plan_windows(program, resources, batch_rows, limit_bytes - cache_bytes)
        except PlanError as error:
            raise PlanError(
                f"the cache takes {format_bytes(cache_bytes)} of the memory limit of {format_bytes(limit_bytes)}, "
                f"and the largest window does not fit into the rest: lower options(cache_limit=...). {error}"
            ) from error
    return replace(budget, limit_bytes=limit_bytes, cache_bytes=cache_bytes)


def _plan_windows(program: Program, resources: Resources, batch_rows: int, limit_bytes: int) -> Budget:
    job = program.job
    is_certain = _is_exact(job) and job.rows_known
    once_bytes = largest_window(program, program.estimate.held_bytes)
    # what replicas on other nodes select of a window, at most all of it, also lies where it is sent from
    sent_bytes = 0 if job.after else (resources.replica_nodes - 1) * once_bytes
    overhead = _overhead(program, resources, batch_rows)
    options: dict[str, Any] = {
        "windows": min(1 + job.options.prefetch_windows, _windows_of_run(program)),
        "max_windows": _max_windows(program, resources, int(once_bytes * resources.copies)),
        "limit_bytes": max(0, limit_bytes),
        "limit_covers_all": resources.limit_covers_all,
        # packing is estimated from column statistics of the files, which can be wrong; and what a round of a mixture
        # needs changes with its shares
        "exact": _is_exact(job) and not program.estimate.packs and job.mixture is None,
        "size_within": lambda held_bytes: _size_within(program, int(held_bytes / resources.copies)),
        "window_call": job.cut.call,
        "processes_bytes": processes_bytes(program, resources),
        "copies": resources.copies,
        "slices": _slices(program, resources),
    }
    if not is_certain:
        _check_lower_bound(program, resources, overhead, options)
    return plan_budget(
        window_bytes=int(once_bytes * resources.copies),
        window_rows=largest_window(program, program.estimate.rows),
        runs_bytes=overhead.runs_bytes(overhead.row_bytes),
        tasks_bytes=resources.workers * _task_bytes(program, resources) + sent_bytes,
        overhead=None if is_certain else overhead,
        must_fit=is_certain,
        **options,
    )


def _runs_of_shard(program: Program, resources: Resources) -> int:
    """The runs of a shard that are held: one replica can be as far ahead of another as it reads ahead itself."""
    ahead = RUNS_AHEAD if program.replicas == 1 else 2 * RUNS_AHEAD * resources.replica_nodes
    return ahead + extra_runs(program.job.after, len(program.members), resources)


def _check_lower_bound(
    program: Program, resources: Resources, overhead: RowOverhead, options: dict[str, Any]
) -> None:
    """Raise if a program cannot fit even at the smallest sizes that its estimates allow."""
    job, fixed_bytes = program.job, _task_bytes(program, resources) - overhead.block_bytes
    min_bytes = 0
    if job.rows_known and not job.before:
        decoded = np.minimum(program.estimate.held_bytes, job.source.blocks.decoded_bytes)
        min_bytes = int(largest_window(program, decoded) * resources.copies)
    # with no memory left, not even one row fits
    min_bytes = max(min_bytes, int(overhead.block_rows > 0))
    tasks_bytes = resources.workers * fixed_bytes + overhead.blocks_bytes(0.0, 1)
    plan_budget(
        window_bytes=min_bytes, runs_bytes=overhead.runs_bytes(0.0), tasks_bytes=tasks_bytes, **options
    )


def _overhead(program: Program, resources: Resources, batch_size: int) -> RowOverhead:
    rows = program.estimate.rows
    # no batch is larger than the dataset, whatever the batch size
    batch_rows = min(program.batch_rows(batch_size), int(rows.sum()))
    block_bytes = _decoded_task_bytes(program, resources)
    return RowOverhead(
        runs=len(program.members) * _runs_of_shard(program, resources),
        # no run is larger than its window
        run_rows=min(
            program.run_rows(max(1, batch_rows // program.job.sequence_rows)), largest_window(program, rows)
        ),
        batch_rows=batch_rows,
        min_run_bytes=RUN_BYTES,
        tasks=resources.workers,
        block_rows=int(rows.max(initial=0)),
        min_block_bytes=min(block_bytes, TASK_BYTES),
        row_bytes=program.estimate.row_bytes,
        block_bytes=block_bytes,
    )


def _is_exact(job: Job) -> bool:
    plain = not job.before and job.packing is None and job.sort is None
    return job.source.blocks.bytes_exact and plain


def _max_windows(program: Program, resources: Resources, window_bytes: int) -> int:
    """The maximum number of windows to hold where windows are small: prefetch and extra windows.

    0 where windows can turn out larger than known, or are counted first: the next one would wait
    for memory, or for its rows, until shards acknowledge what they have passed.
    """
    prefetch = program.job.options.prefetch_windows if program.job.mixture is None else 0
    if not prefetch or not window_bytes or not (_is_exact(program.job) and program.job.rows_known):
        return 0
    small = resources.small_windows_bytes // window_bytes
    return min(1 + prefetch + _EXTRA_WINDOWS, small, _windows_of_run(program))


def _size_within(program: Program, held_bytes: int) -> int:
    """The ``bytes_per_window`` whose windows hold at most ``held_bytes``, wherever block boundaries fall."""
    decoded = program.job.source.blocks.decoded_bytes
    filled = decoded > 0
    share = (decoded[filled] / program.estimate.held_bytes[filled]).min(initial=1.0)
    # windows end at block boundaries, so one can exceed its size by almost a block
    return int(held_bytes * share) - int(decoded.max(initial=0))


def _windows_of_run(program: Program) -> int:
    if program.job.mixture is not None:
        # of those needed at once, as many again are prepared
        return 2
    windows = program.plan(0).windows
    return windows if program.job.epochs == 1 else max(windows, 1) * 2


def _task_bytes(program: Program, resources: Resources) -> int:
    """What a task takes beyond what its window accounts for.

    That is decoded blocks (or a few columns of one where it decodes column by column), scratch
    memory, and, where outputs go to an object store, the output before it is stored.
    """
    largest = int(_read_bytes(program).max(initial=0))
    fixed_bytes = _cached_task_bytes(program, resources) + min(_WORK_BYTES, largest)
    if program.job.packing is not None:
        # tokens beside the documents that they are made of, once more where a token is put behind each, and their rows
        copies = 1 if program.job.packing.eos is None else 2
        tokens = min(PLACED_TOKENS, int(program.estimate.rows.max(initial=0)))
        fixed_bytes += copies * largest + tokens * _PLACED_TOKEN_BYTES
    return fixed_bytes + _decoded_task_bytes(program, resources)


def _decoded_task_bytes(program: Program, resources: Resources) -> int:
    decoded = _read_bytes(program)
    columns = _columns_bytes(program)
    if columns is not None:
        decoded = np.minimum(decoded, columns)
        if resources.limit_covers_all:
            return int(decoded.max(initial=0))
    if resources.limit_covers_all:
        return int(min(decoded.sum(), max(decoded.max(initial=0), program.task_bytes)))
    held = program.estimate.held_bytes
    output = max(held.max(initial=0), program.task_bytes)
    return int(min(decoded.sum() + held.sum(), decoded.max(initial=0) + output))


def _read_bytes(program: Program) -> NDArray[np.int64]:
    """(blocks,) decoded bytes of what a task reads at a time: a block, or several small ones that are read as one."""
    sizes = program.job.source.blocks.memory_bytes
    return np.maximum(sizes, min(program.joined_bytes, int(sizes.sum())))


def _columns_bytes(program: Program) -> int | None:
    """What a task holds of its blocks if it decodes column by column; None if it holds whole blocks."""
    job = program.job
    if job.before or job.cache is not None or job.holds_blocks or not decodes_columns(job.source.reader):
        return None
    widths = [fixed_bits(kind) for kind in job.source.schema.types]
    known = [bits for bits in widths if bits is not None]
    if len(known) < len(widths):
        return None
    rows = max(int(job.source.blocks.rows.max(initial=0)), 8 * program.joined_bytes // max(1, sum(known)))
    column = rows * -(-max(known, default=0) // 8)
    # plus the buffer in which one or several columns are put in order
    return _COLUMNS_HELD * column + max(column, DECODED_TOGETHER_BYTES)


def _cached_task_bytes(program: Program, resources: Resources) -> int:
    """What a task holds of blocks that are to be cached, until they are stored."""
    decoded = program.job.source.blocks.memory_bytes
    if program.job.cache is None or (program.job.cache == "memory" and resources.limit_covers_all):
        return 0
    return int(min(decoded.sum(), max(decoded.max(initial=0), program.task_bytes)))
