"""What running a job will do and cost (`explain()`), computed before anything runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np

from windrow.core.byte_sizes import format_bytes
from windrow.core.native_libraries import missing_library_warnings
from windrow.core.source import schema_changes
from windrow.core.terminal_text import format_count
from windrow.pipeline.plan.cache_budget import describe_cache
from windrow.pipeline.plan.explanation import Explanation
from windrow.pipeline.plan.job import Job, Resources
from windrow.pipeline.plan.memory_budget import budget_program, overlap_waiting, size_parts
from windrow.pipeline.plan.mesh_place import MeshPlace
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.window_budget import Budget
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import EpochPlan
from windrow.shuffle.order.keys import order_version
from windrow.shuffle.order.shard_assignment import Equal, ShardAssignment

# A window of fewer blocks mixes only a few long stretches of the stored order.
_FEW_BLOCKS = 8
# Assumed where no batch size is given: the default of iter_batches.
_DEFAULT_BATCH_ROWS = 256
_SHOWN_SOURCES = 10


def explain_job(
    job: Job,
    place: MeshPlace,
    resources: Resources,
    *,
    equal: Equal,
    batch_rows: int | None,
) -> Explanation:
    """Explain a job on the resources of the executor that would run it, for a mesh of readers. Starts nothing."""
    shards = place.world_size
    program = Program(job, shards, equal, tuple(range(shards)), replicas=place.replicas)
    resources = replace(resources, user_warnings=(*resources.user_warnings, *missing_library_warnings()))
    resources = resources.with_replicas(min(resources.nodes, place.replicas))
    resources = overlap_waiting(program, resources, batch_rows or _DEFAULT_BATCH_ROWS)
    sized = size_parts(program, resources, batch_rows or _DEFAULT_BATCH_ROWS)
    explanation = explain_program(sized, resources, batch_rows)
    rank_bytes = explanation.rank_bytes // place.sequences
    return replace(explanation, mesh=place.describe(), rank_bytes=rank_bytes)


def explain_program(program: Program, resources: Resources, batch_rows: int | None) -> Explanation:
    """Explain a program on given resources: a pure function."""
    job = program.job
    blocks = job.source.blocks
    rows = int(program.estimate.rows.sum()) // job.sequence_rows
    if job.mixture is not None:
        rows = job.mixture.pass_rows
    counted = batch_rows and job.rows_known and job.mixture is None
    assignment = program.assignment(Batching(batch_rows or 1)) if counted else None
    plan = program.plan(0)
    budget = budget_program(program, resources, batch_rows or _DEFAULT_BATCH_ROWS)
    tasks = max((len(program.parts(0, window)) for window in range(plan.windows)), default=0)
    return Explanation(
        epochs=job.epochs,
        seed=job.seed if job.mixture is None else job.mixture.seed,
        shuffles_blocks=job.shuffles_blocks,
        sort="" if job.sort is None else str(job.sort),
        order_version=order_version(cuts_row_groups=job.source.identity().cuts_row_groups),
        executor=resources.executor,
        source="" if job.mixture is not None else job.source.describe(),
        sources="" if job.mixture is None else _describe_sources(job.mixture),
        round_rows=0 if job.mixture is None else job.mixture.round_rows,
        schema_changes=schema_changes(job.source),
        rows=rows,
        rows_known=job.rows_stated and not job.skips_corrupt,
        rows_bounded=blocks.rows_bounded and job.packing is None,
        skips_corrupt=job.skips_corrupt,
        decoded_bytes=int(blocks.decoded_bytes.sum()),
        bytes_exact=blocks.bytes_exact,
        transforms=(len(job.before), len(job.after)),
        stages=_describe_stages(job),
        windows=_filled_windows(plan),
        blocks=len(blocks.rows),
        shards=program.shards,
        equal=program.equal,
        packing="" if job.packing is None else str(job.packing),
        batch_rows=batch_rows,
        steps=None if assignment is None else assignment.steps(rows, 0),
        last_step_rows=None if assignment is None else _last_step_rows(assignment, rows),
        left_out_rows=None if assignment is None else assignment.left_out_rows(rows),
        tasks=tasks,
        objects=tasks * min(resources.nodes, len(program.members)) * budget.slices,
        budget=budget,
        user_warnings=(*_find_warnings(program, budget), *resources.user_warnings),
        cache=describe_cache(job, budget.cache_bytes),
        workers=resources.workers,
        processes=resources.processes,
        replicas=program.replicas,
        rank_bytes=int(blocks.decoded_bytes.sum()) // program.shards,
    )


def _describe_sources(mixture: Mixture) -> str:
    """The sources in words: their shares at the start, the rows of a pass, and how often they are read."""
    shares = mixture.shares.at(0)
    found, what = [], "rows" if mixture.seq_len is None else "sequences"
    if mixture.joined is not None:
        what = "documents"
    for source in mixture.sources[:_SHOWN_SOURCES]:
        times = "endlessly" if source.passes is None else format_count(source.passes, "time")
        share = f"{100 * shares.get(source.name, 0.0):.3g} %"
        found.append(f"{source.name} {share} ({source.pass_rows:,} {what}, {times})")
    more = len(mixture.sources) - len(found)
    changes = len(mixture.shares.phases) - 1
    text = "; ".join(found) + (f"; and {more:,} more" if more > 0 else "")
    return text + (f"; {format_count(changes, 'change')} of shares" if changes else "")


def _describe_stages(job: Job) -> str:
    if not job.before and not job.after:
        return ""
    stages = [["read"]]
    for stage in job.before:
        stages += [[stage.name + _describe_pool(stage)], []] if stage.pool else []
        if stage.pool is None:
            stages[-1].append(stage.name)
    stages[-1].append("shuffle" if job.seed is not None else "place")
    if job.sort is not None:
        stages.append(["sort each window"])
    for has_pool, some in groupby(job.after, key=lambda stage: stage.pool is not None):
        names = [stage.name + _describe_pool(stage) for stage in some]
        stages += [[name] for name in names] if has_pool else [[f"{' + '.join(names)} in the trainers"]]
    return " | ".join(" + ".join(stage) for stage in stages if stage)


def _describe_pool(stage: MapBatches) -> str:
    if stage.pool is None:
        return ""
    reserved = f", {stage.resources} each" if stage.resources else ""
    return f" in {stage.pool}{reserved}"


def _last_step_rows(assignment: ShardAssignment, total: int) -> int:
    if not assignment.rest_rows(total):
        return 0
    return sum(assignment.rest_share(total, shard)[1] for shard in range(assignment.shards))


def _filled_windows(plan: EpochPlan) -> int:
    return int(np.count_nonzero(np.diff(plan.starts)))


def _find_warnings(program: Program, budget: Budget) -> list[str]:
    job, plan = program.job, program.plan(0)
    if job.mixture is not None:
        return []
    blocks, windows = len(job.source.blocks.rows), _filled_windows(plan)
    # all windows but the last hold as many blocks as were asked for, so their mean would be too low
    held = job.cut.blocks_per_window or blocks / max(1, windows)
    lines = []
    if windows < plan.windows:
        lines.append(
            f"windows consist of whole blocks, and {format_count(blocks, 'block')} fill only {windows:,} of the "
            f"{plan.windows:,} requested windows: give read_parquet a smaller target_block_bytes"
        )
    elif job.seed is not None and windows > 1 and held < _FEW_BLOCKS:
        lines.append(
            f"windows hold about {held:.2g} of {blocks:,} blocks, too few to mix well: "
            "use larger windows, or give read_parquet a smaller target_block_bytes"
        )
    if budget.window_bytes > budget.windows_limit_bytes:
        lines.append(
            f"the largest window is estimated at {format_bytes(budget.window_bytes)}, more than the memory "
            "limit leaves for windows: its first blocks will show whether it fits"
        )
    elif budget.slices > 1:
        lines.append(
            f"the memory limit holds only {format_count(budget.windows, 'whole window')}: "
            "the next window is prepared slice by slice as the current one is consumed"
        )
    if not job.rows_known:
        lines.append("the first epoch counts rows as it reads them: the number of steps is not known before")
    return lines
