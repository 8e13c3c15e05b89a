"""What running a job will do and cost (`explain()`), computed before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from windrow.core.byte_sizes import format_bytes
from windrow.core.native_libraries import missing_library_warnings
from windrow.core.source import schema_changes
from windrow.core.terminal_text import escape_controls
from windrow.pipeline.plan.cache_budget import CacheBudget, describe_cache
from windrow.pipeline.plan.job import Job, Resources
from windrow.pipeline.plan.memory_budget import budget_program, overlap_waiting, size_parts
from windrow.pipeline.plan.mesh_place import MeshPlace
from windrow.pipeline.plan.mixture_legs import describe_sources
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
_SHOWN_CHANGES = 5


@dataclass(frozen=True)
class Explanation:
    """What running a pipeline will do; ``print`` it, or read its attributes.

    Attributes
    ----------
    epochs
        Number of epochs; None: endless.
    seed
        Seed of the shuffle; None: stored order.
    shuffles_blocks
        Whether the shuffle leaves the rows of each block in order.
    sort
        How the rows of each window are sorted; empty if they are not.
    order_version
        Version of the algorithm that defines the order.
    executor
        The executor, and why it was chosen.
    source
        Description of the data source.
    rows
        Rows per epoch: an upper bound where ``rows_known`` is False, an estimate where
        ``rows_bounded`` is False too.
    rows_known
        Whether the manifest states the row counts.
    decoded_bytes
        Decoded bytes per epoch, from file footers.
    bytes_exact
        Whether sizes are exact rather than estimated.
    transforms
        Number of transforms before and after the shuffle.
    schema_changes
        The columns that some files store in another type, or lack: one text each.
    stages
        What runs where: what is joined by "+" runs in one task. Empty without transforms.
    windows
        Windows per epoch that contain blocks.
    blocks
        Blocks per epoch.
    shards, equal
        Number of shards, and how the last step is assigned to them.
    replicas
        Number of readers of each shard, which get the same rows.
    mesh
        The dimensions of the mesh, and what they mean; empty without one.
    rank_bytes
        Bytes of an epoch that one reader gets, before it selects columns.
    batch_rows
        Rows per batch, or None if not given; then the next three are None too.
    steps
        Steps per epoch, including the last one.
    last_step_rows
        Rows of the last step over all shards if it is not a full one, else 0.
    left_out_rows
        Rows per epoch that no shard receives.
    tasks, objects
        Tasks of the largest window, and the maximum number of objects that they output: one per
        node with shards and slice.
    budget
        The memory budget; its ``total_bytes`` is the bound that the run keeps.
    user_warnings
        Warnings, one line each.
    cache
        Where decoded blocks are cached, and how many; empty without ``options(cache=...)``.
    skips_corrupt
        Whether corrupt blocks are skipped.
    workers
        Number of tasks that run concurrently.
    processes
        Number of launched processes that share the workers and the default memory limit.
    packing
        The call of `pack`; then ``rows`` counts sequences. Empty: documents are not packed.
    sources, round_rows
        Of a mixture, its sources with their first shares, and the rows that are delivered at a time; ``rows`` and
        ``decoded_bytes`` are then those of one pass of each source. Empty and 0: the pipeline is no mixture.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
    >>> plan = windrow.read_parquet("numbers.parquet").repeat(3).explain(2, batch_size=2)
    >>> plan.rows, plan.steps, plan.last_step_rows
    (6, 2, 2)
    """

    epochs: int | None
    seed: int | None
    order_version: int
    executor: str
    source: str
    rows: int
    rows_known: bool
    decoded_bytes: int
    bytes_exact: bool
    transforms: tuple[int, int]
    windows: int
    blocks: int
    shards: int
    equal: Equal
    batch_rows: int | None
    steps: int | None
    last_step_rows: int | None
    left_out_rows: int | None
    tasks: int
    objects: int
    budget: CacheBudget
    user_warnings: tuple[str, ...] = ()
    cache: str = ""
    rows_bounded: bool = True
    skips_corrupt: bool = False
    workers: int = 1
    processes: int = 1
    packing: str = ""
    shuffles_blocks: bool = False
    sort: str = ""
    stages: str = ""
    schema_changes: tuple[str, ...] = ()
    replicas: int = 1
    mesh: str = ""
    rank_bytes: int = 0
    sources: str = ""
    round_rows: int = 0

    def __str__(self) -> str:
        lines = [
            self._format_head(),
            f"rows     {self._format_rows()}{'; ' if self.source else ''}{self.source}",
            *([f"schema   {self._format_schema_changes()}"] if self.schema_changes else []),
            *([f"sources  {self.sources}"] if self.sources else []),
            f"bytes    {'' if self.bytes_exact else 'about '}{format_bytes(self.decoded_bytes)} decoded an epoch",
            f"windows  {self._format_windows()}",
            f"shards   {self._format_shards()}",
            *([f"mesh     {self.mesh}"] if self.mesh else []),
            *([f"replicas {self._format_replicas()}"] if self.replicas > 1 else []),
            f"tasks    {self._format_tasks()}",
            *([f"stages   {self.stages}"] if self.stages else []),
            f"memory   {self._format_memory()}",
            *([f"cache    {self.cache}"] if self.cache else []),
            *([f"share    {self._format_share()}"] if self.processes > 1 else []),
            *(f"warning  {line}" for line in self.user_warnings),
        ]
        return "\n".join(map(escape_controls, lines))

    def _format_head(self) -> str:
        if self.sources:
            return f"mixture, seed {self.seed}, order v{self.order_version}, executor {self.executor}"
        epochs = "endless epochs" if self.epochs is None else _format_count(self.epochs, "epoch")
        order = "stored order" if self.seed is None else f"seed {self.seed}, order v{self.order_version}"
        order += ", blocks only" if self.shuffles_blocks else ""
        order += f", {self.sort}" if self.sort else ""
        return f"{epochs}, {order}, executor {self.executor}"

    def _format_rows(self) -> str:
        if self.sources:
            return f"{self.rows:,} {'sequences ' if self.packing else ''}in one pass of each source"
        if self.rows_known:
            return f"{self.rows:,} an epoch"
        skipped = ", corrupt blocks skipped" if self.skips_corrupt else ""
        packed = f", by {self.packing}" if self.packing else ""
        bound = "at most" if self.rows_bounded else "about"
        return f"{bound} {self.rows:,} an epoch{packed}, to be counted{skipped}"

    def _format_schema_changes(self) -> str:
        more = len(self.schema_changes) - _SHOWN_CHANGES
        shown = "; ".join(self.schema_changes[:_SHOWN_CHANGES])
        return f"{shown}; and {_format_count(more, 'more column')}" if more > 0 else shown

    def _format_windows(self) -> str:
        if self.sources:
            needed = format_bytes(self.budget.window_bytes)
            what = "sequences" if self.packing else "rows"
            rounds = f"delivered in rounds of {self.round_rows:,} {what}"
            return f"{rounds}; the sources' windows that one needs take {needed}"
        if self.windows <= 1:
            return "1 an epoch: the whole dataset" if self.windows else "none: there is no data"
        size = format_bytes(self.decoded_bytes / self.windows)
        return f"{self.windows:,} an epoch of about {size} ({100 / self.windows:.2g} % of the data each)"

    def _format_shards(self) -> str:
        text = f"{self.shards:,}, equal={self.equal!r}"
        if self.batch_rows is None:
            return text
        text += f"; batch_size {self.batch_rows:,}: "
        if self.steps is None and self.sources:
            return f"{text}steps until the mixture ends"
        if self.steps is None:
            return text + "the number of steps is known once rows are counted"
        text += _format_count(self.steps, "step")
        if self.last_step_rows:
            text += f", the last of {_format_count(self.last_step_rows, 'row')}"
        return text + f", {_format_count(self.left_out_rows or 0, 'row')} left out"

    def _format_replicas(self) -> str:
        return (
            f"{self.replicas:,} of each shard, of which each gets {format_bytes(self.rank_bytes)} an epoch; a node "
            "places the rows of a shard once for all of them"
        )

    def _format_tasks(self) -> str:
        return f"up to {self.tasks:,} a window; {_format_count(self.objects, 'object')}"

    def _format_share(self) -> str:
        return (
            f"{self.processes:,} processes of a launcher divide the workers and the default memory limit: "
            f"{_format_count(self.workers, 'worker')} each"
        )

    def _format_memory(self) -> str:
        budget = self.budget
        windows = budget.windows_limit_bytes if budget.exact else budget.windows_bytes
        parts = [
            f"{_format_count(budget.windows, 'window')} {format_bytes(windows)}",
            f"runs {format_bytes(budget.runs_bytes)}",
            f"tasks {format_bytes(budget.tasks_bytes)}",
        ]
        if budget.cache_bytes:
            parts.append(f"cache {format_bytes(budget.cache_bytes)}")
        if budget.reuse_bytes:
            parts.append(f"reuse {format_bytes(budget.reuse_bytes)}")
        if budget.processes_bytes:
            parts.append(f"processes {format_bytes(budget.processes_bytes)}")
        total = ("≤ " if budget.exact else "about ") + format_bytes(budget.total_bytes)
        return f"{total} = {' + '.join(parts)}; limit {format_bytes(budget.limit_bytes)}"


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
    rows = int(program.estimated_rows.sum()) // job.sequence_rows
    if job.mixture is not None:
        rows = sum(source.pass_rows for source in job.mixture.sources)
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
        sources="" if job.mixture is None else describe_sources(job.mixture),
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
    return (
        sum(assignment.rest_share(total, shard)[1] for shard in range(assignment.shards))
        if assignment.rest_rows(total)
        else 0
    )


def _filled_windows(plan: EpochPlan) -> int:
    return int(np.count_nonzero(np.diff(plan.starts)))


def _find_warnings(program: Program, budget: Budget) -> list[str]:
    job, plan = program.job, program.plan(0)
    if job.mixture is not None:
        return []
    blocks, windows = len(job.source.blocks.rows), _filled_windows(program.plan(0))
    lines = []
    if windows < plan.windows:
        lines.append(
            f"windows consist of whole blocks, and {_format_count(blocks, 'block')} fill only {windows:,} of the "
            f"{plan.windows:,} requested windows: give read_parquet a smaller target_block_bytes"
        )
    elif job.seed is not None and windows > 1 and blocks < _FEW_BLOCKS * windows:
        lines.append(
            f"windows hold about {blocks / windows:.2g} of {blocks:,} blocks, too few to mix well: "
            "use larger windows, or give read_parquet a smaller target_block_bytes"
        )
    if budget.window_bytes > budget.windows_limit_bytes:
        lines.append(
            f"the largest window is estimated at {format_bytes(budget.window_bytes)}, more than the memory "
            "limit leaves for windows: its first blocks will show whether it fits"
        )
    elif budget.slices > 1:
        lines.append(
            f"the memory limit holds only {_format_count(budget.windows, 'whole window')}: "
            "the next window is prepared slice by slice as the current one is consumed"
        )
    if not job.rows_known:
        lines.append("the first epoch counts rows as it reads them: the number of steps is not known before")
    return lines


def _format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
