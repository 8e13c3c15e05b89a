"""Statistics of a shard and of its run, as values: `Stats`, `RunStats` and timeline spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan

from windrow.core.byte_sizes import format_bytes
from windrow.core.notebook_html import format_paragraph, format_table, format_value
from windrow.core.terminal_text import align_columns, escape_controls, format_count
from windrow.pipeline.statistics.bottleneck import Bottleneck, PipelineFacts, describe_loader, find_bottleneck
from windrow.pipeline.statistics.phases import LABELS, OTHER, Span, TaskProfile, TrainerStats

_MAX_TRAINERS = 16
_MAX_SOURCES = 20


@dataclass(frozen=True)
class SourceRun:
    """What a run has done for one source of a mixture.

    Attributes
    ----------
    name
        The source's name.
    rows
        Rows that trainers have received of it since the mixture began, up to the last step that one has reported.
    tasks, task_seconds
        Tasks finished, and the time they took.
    wait_seconds
        Time that trainers waited for rows of this source while all others were ready, as far as they have reported it.
    """

    name: str
    rows: int = 0
    tasks: int = 0
    task_seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class RunStats:
    """Statistics of the run behind all shards.

    Attributes
    ----------
    tasks
        Tasks finished.
    profile
        What all tasks together spent their time on, and their requests to object storage.
    trainers
        What each trainer has received and waited for, as it last reported: about once a second, and when it closes.
    workers, nodes
        How many tasks can run at once, and on how many machines.
    held_bytes, memory_bytes
        Bytes of map outputs now, including those being made, and their limit.
    peak_held_bytes
        Maximum of ``held_bytes`` so far.
    estimated_bytes
        Peak memory of the run as ``explain()`` gives it: a bound where sizes are exact, else an
        estimate; higher if blocks turned out larger than estimated.
    dropped_windows
        Windows dropped while a shard still needed them, to be prepared again.
    left_out_rows
        Rows that ``equal=True`` dropped, over all opened epochs.
    epoch_rows
        Rows per epoch over all shards; None until they are counted. Where epochs differ, as with
        ``pack(split_documents=False)``, of the latest one.
    dropped_documents
        Documents that ``pack(long_documents="drop")`` leaves out of the blocks counted so far.
    windows_ready
        By epoch and number of each window that is held or being prepared: the share that is ready.
    spans
        When tasks ran.
    trainer_spans
        What the processes of trainers did and waited for, as far as they have reported it.
    cache_hits, cache_misses
        Blocks found in the cache, and blocks read from the source.
    cache_bytes
        Size of the cached blocks; on disk, what this run has written.
    cache_errors
        Errors of the disk cache (disk full or read-only, directory missing) over all processes.
        After its first error a process writes no more blocks, and the run reads from the source.
    cache_corrupt_blocks
        Cached blocks on disk that failed verification and were read from the source again.
    corrupt_blocks, corrupt_rows
        The blocks that ``on_error="skip"`` skips, by path and row group, and their stored rows.
    imbalance
        With ``balance=``, by epoch: the cost of the most expensive shard over the mean of all, as the mean over the
        steps prepared so far. 1 is even.
    padding
        With ``balance=``, by epoch: the share of padding if each batch, or microbatch, of the steps prepared so far is
        padded to its longest row, by the column of the balance. Empty for packed sequences.
    sources
        Of a mixture: what was done for each source, in the mixture's order.
    missing_libraries
        Compiled libraries of windrow that could not be loaded in the coordinator's process; without
        them the run is slower.
    """

    tasks: int = 0
    profile: TaskProfile = TaskProfile()
    trainers: tuple[TrainerStats, ...] = ()
    workers: int = 0
    nodes: int = 1
    held_bytes: int = 0
    memory_bytes: int = 0
    peak_held_bytes: int = 0
    estimated_bytes: int = 0
    dropped_windows: int = 0
    left_out_rows: int = 0
    epoch_rows: int | None = None
    dropped_documents: int = 0
    windows_ready: Mapping[tuple[int, int], float] = field(default_factory=dict, repr=False, hash=False)
    spans: tuple[Span, ...] = field(default=(), repr=False)
    trainer_spans: tuple[Span, ...] = field(default=(), repr=False)
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    cache_errors: int = 0
    cache_corrupt_blocks: int = 0
    corrupt_blocks: tuple[str, ...] = ()
    corrupt_rows: int = 0
    imbalance: Mapping[int, float] = field(default_factory=dict)
    padding: Mapping[int, float] = field(default_factory=dict)
    sources: tuple[SourceRun, ...] = ()
    missing_libraries: tuple[str, ...] = ()


def diagnose_run(run: RunStats, trainers: Sequence[TrainerStats], facts: PipelineFacts) -> Bottleneck:
    """Find what limits a run, given what is known of its trainers and its pipeline."""
    return find_bottleneck(
        trainers,
        facts,
        run.profile,
        workers=run.workers,
        nodes=run.nodes,
        dropped_windows=run.dropped_windows,
        missing_libraries=run.missing_libraries,
    )


@dataclass(frozen=True)
class SourceStats:
    """One source of a mixture, over all shards, up to the last batch that this shard has received.

    Attributes
    ----------
    name
        The source's name.
    rows
        Rows that it has delivered, in all passes; sequences, if it packs; the documents that have begun, if sequences
        join those of all sources.
    passes
        Passes that it has completed.
    share
        The share that it is to have now.
    achieved
        Its part of the rows since shares last changed, of the tokens with shares of tokens; NaN before there are any.
    wait_seconds
        Time that trainers waited for rows of this source while all others were ready, as they last reported.
    counted
        What ``rows`` counts: ``"rows"``, ``"sequences"`` or ``"documents"``.

    Examples
    --------
    >>> import windrow
    >>> sources = {"web": windrow.range(60).repeat(), "books": windrow.range(20).repeat()}
    >>> shard = windrow.mixture(sources, {"web": 3, "books": 1}, seed=7).iterator()
    >>> batch = next(shard.iter_batches(batch_size=40))
    >>> print(shard.stats().sources[1])
    books 10 rows (25 %, 25 % so far; 0 passes)
    """

    name: str
    rows: int
    passes: int
    share: float
    achieved: float
    wait_seconds: float = 0.0
    counted: str = "rows"

    def __str__(self) -> str:
        achieved = "" if isnan(self.achieved) else f", {100 * self.achieved:.4g} % so far"
        return f"{self.name} {self.rows:,} {self.counted} ({100 * self.share:.4g} %{achieved}; {self.passes:,} passes)"


@dataclass(frozen=True)
class Stats:
    """What a shard has received, what its run has done, where the trainers' time went, and what limits the run.

    Printed, it is a table that ends with a sentence: what limits the run, and what to change.

    Attributes
    ----------
    shard
        Which shard.
    epochs
        Epochs that it has read to their end.
    trainer
        What the shard's trainer has received, and where its waiting time went.
    run
        The run behind all shards.
    pipeline
        What the diagnosis has to know of the pipeline.
    spans
        Timeline of this shard's process: what the trainer did and waited for, and what was done for it.
    loader_workers
        The worker processes of a DataLoader that read the shard. The other statistics do not include what they read.
    sources
        Of a mixture, its sources; else empty.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(5)}), "numbers.parquet")
    >>> with windrow.read_parquet("numbers.parquet").repeat(2).iterator() as shard:
    ...     for epoch in shard.iter_epochs():
    ...         for batch in epoch.iter_batches(batch_size=2):
    ...             pass
    ...     stats = shard.stats()
    >>> stats.epochs, stats.batches, stats.rows, stats.run.dropped_windows
    (2, 6, 10, 0)
    >>> print(str(stats).splitlines()[0])
    shard 0: 2 epochs, 6 batches, 10 rows, 80 B
    """

    shard: int
    epochs: int
    trainer: TrainerStats
    run: RunStats
    pipeline: PipelineFacts = PipelineFacts()
    spans: tuple[Span, ...] = field(default=(), repr=False)
    loader_workers: int = 0
    sources: tuple[SourceStats, ...] = ()

    @property
    def batches(self) -> int:
        """Batches received so far."""
        return self.trainer.batches

    @property
    def rows(self) -> int:
        """Rows received so far."""
        return self.trainer.rows

    @property
    def bytes(self) -> int:
        """Bytes received so far, in memory."""
        return self.trainer.bytes

    @property
    def wait_seconds(self) -> float:
        """Time that the trainer waited for batches, and for the start of the run."""
        return self.trainer.wait_seconds

    @property
    def waits(self) -> Mapping[str, float]:
        """Seconds that the trainer waited, by what it waited for.

        Of tasks: ``"storage"``, ``"decode"``, ``"transform"``, ``"shuffle"``; in the trainer's process: ``"transfer"``,
        ``"prepare"`` (transforms after the shuffle), ``"collate"`` (making batches), ``"device"``; tasks that could
        not run: ``"memory"``, ``"cpus"``; and ``"start"`` and ``"other"``.
        """
        return self.trainer.waits

    @property
    def trainers(self) -> tuple[TrainerStats, ...]:
        """All trainers of the run that have told about themselves; this one as of now."""
        others = {trainer.key: trainer for trainer in self.run.trainers}
        if self.trainer.seconds or self.trainer.key not in others:
            others[self.trainer.key] = self.trainer
        return tuple(others[key] for key in sorted(others) if others[key].seconds)

    @property
    def bottleneck(self) -> Bottleneck:
        """What limits the run, and what to change."""
        if self.loader_workers:
            return Bottleneck(OTHER, 0.0, 0.0, (), describe_loader(self.loader_workers))
        return diagnose_run(self.run, self.trainers, self.pipeline)

    def __str__(self) -> str:
        return _format_stats(self)

    def _repr_html_(self) -> str:
        return _format_stats_html(self)


def _format_stats(stats: Stats) -> str:
    """Return the statistics as lines; the last one says what limits the run, and what to change."""
    if stats.loader_workers:
        return escape_controls(f"shard {stats.shard}: {stats.bottleneck.sentence}")
    (_, head), *facts = _all_lines(stats)
    lines = [head, *(f"{label:9} {text}" for label, text in facts)]
    if stats.trainers:
        rows = _trainer_rows(stats.trainers)
        lines += ["", *align_columns(rows, right=range(len(rows[0]))), *_left_out(stats.trainers)]
    return "\n".join(map(escape_controls, [*lines, "", stats.bottleneck.sentence]))


def _format_stats_html(stats: Stats) -> str:
    if stats.loader_workers:
        return format_value(format_paragraph(f"shard {stats.shard}: {stats.bottleneck.sentence}"))
    (_, head), *facts = _all_lines(stats)
    names, *rows = _trainer_rows(stats.trainers)
    return format_value(
        format_paragraph(head, is_title=True),
        format_paragraph(stats.bottleneck.sentence),
        format_table(facts, names=True),
        format_table(rows, names),
        *map(format_paragraph, _left_out(stats.trainers)),
    )


def _all_lines(stats: Stats) -> list[tuple[str, str]]:
    """What is printed, line by line: a label and a text; the first line has no label."""
    one, epochs = stats.trainer, format_count(stats.epochs, "epoch")
    head = (
        f"shard {one.name}: {epochs}, {one.batches:,} batches, {one.rows:,} rows, {format_bytes(one.bytes)}"
    )
    lines = [
        ("", head),
        ("rates", _all_rates(stats.trainers)),
        *_run_lines(stats.run),
        *_balance_lines(stats),
    ]
    lines += [
        ("" if at else "sources", str(source)) for at, source in enumerate(stats.sources[:_MAX_SOURCES])
    ]
    if len(stats.sources) > _MAX_SOURCES:
        lines.append(("", f"and {len(stats.sources) - _MAX_SOURCES:,} more"))
    return lines


def _all_rates(trainers: Sequence[TrainerStats]) -> str:
    rows = sum(one.rows_per_second for one in trainers)
    size = sum(one.bytes_per_second for one in trainers)
    who = "" if len(trainers) == 1 else f" over {len(trainers):,} trainers"
    return f"{rows:,.0f} rows/s, {size / 1e6:,.1f} MB/s{who}"


def _run_lines(run: RunStats) -> Iterator[tuple[str, str]]:
    dropped = f"; {run.dropped_windows:,} windows dropped" if run.dropped_windows else ""
    yield (
        "memory",
        f"{format_bytes(run.held_bytes)} of {format_bytes(run.memory_bytes)} held, at most "
        f"{format_bytes(run.peak_held_bytes)}; estimated in all {format_bytes(run.estimated_bytes)}{dropped}",
    )
    profile = run.profile
    total = sum(profile.phases.values())
    shares = [
        f"{LABELS[name]} {profile.phases[name] / total:.0%}" for name in LABELS if profile.phases.get(name)
    ]
    parts = f": {', '.join(shares)}" if shares else ""
    yield "tasks", f"{run.tasks:,} on {run.workers:,} workers, {total:,.1f} s{parts}"
    if profile.requests:
        yield (
            "storage",
            f"{profile.requests:,} requests, {format_bytes(profile.requested_bytes)}, "
            f"{profile.retries:,} repeated",
        )
    if run.cache_hits or run.cache_bytes:
        blocks = run.cache_hits + run.cache_misses
        yield "cache", f"{run.cache_hits:,} of {blocks:,} blocks found, {format_bytes(run.cache_bytes)} held"
    if run.corrupt_blocks:
        names = ", ".join(run.corrupt_blocks)
        corrupt = format_count(len(run.corrupt_blocks), "corrupt block")
        yield "skipped", f"{corrupt}, {format_count(run.corrupt_rows, 'row')}: {names}"
    if run.left_out_rows:
        yield "left out", f"{format_count(run.left_out_rows, 'row')}, which no shard gets"


def _balance_lines(stats: Stats) -> Iterator[tuple[str, str]]:
    """The imbalance of the epoch that the trainer is in; later ones may be prepared."""
    run, place = stats.run, stats.trainer.place
    if not run.imbalance:
        return
    reached = [epoch for epoch in run.imbalance if place is not None and epoch <= place[0]]
    epoch = max(reached, default=min(run.imbalance))
    # a mixture has one epoch
    which = "" if stats.sources else f" (epoch {epoch})"
    padded = f"; {run.padding[epoch]:.1%} padding if batches are padded" if epoch in run.padding else ""
    yield "balance", f"the most expensive shard costs {run.imbalance[epoch]:.3f} of the mean{which}{padded}"


def _trainer_rows(trainers: Sequence[TrainerStats]) -> list[list[str]]:
    """One row a trainer, below a head: what it worked, and what it waited for, in seconds."""
    phases = [name for name in LABELS if any(one.waits.get(name, 0) >= 0.005 for one in trainers)]
    rows = [["trainer", "rows", "rows/s", "worked s", "waited s", *phases]]
    for one in trainers[:_MAX_TRAINERS]:
        waits = [f"{one.waits.get(name, 0.0):,.2f}" for name in phases]
        rates = [f"{one.rows:,}", f"{one.rows_per_second:,.0f}"]
        rows.append([one.name, *rates, f"{one.work_seconds:,.2f}", f"{one.wait_seconds:,.2f}", *waits])
    return rows


def _left_out(trainers: Sequence[TrainerStats]) -> list[str]:
    more = len(trainers) - _MAX_TRAINERS
    return [f"and {more:,} more"] if more > 0 else []
