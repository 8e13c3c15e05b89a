"""Statistics of a shard and of its run, as values: `Stats`, `RunStats` and timeline spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["RunStats", "Span", "Stats", "Tally"]


@dataclass(frozen=True)
class Span:
    """An interval of work or waiting.

    Attributes
    ----------
    kind
        ``"map"``, ``"read"``, ``"place"`` (tasks), ``"reduce"`` (placing a run's rows),
        ``"wait"`` (a trainer waited for a batch).
    epoch, window
        The window it belongs to.
    start_time, stop_time
        Unix time in seconds.
    lane
        The worker or shard that spent it.
    """

    kind: str
    epoch: int
    window: int
    start_time: float
    stop_time: float
    lane: str


@dataclass(frozen=True)
class RunStats:
    """Statistics of the run behind all shards.

    Attributes
    ----------
    tasks
        Tasks finished.
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
        Rows per epoch over all shards; None until they are counted.
    windows_ready
        By epoch and number of each window that is held or being prepared: the share that is ready.
    spans
        When tasks ran.
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
    missing_libraries
        Compiled libraries of windrow that could not be loaded in the coordinator's process; without
        them the run is slower.
    """

    tasks: int = 0
    held_bytes: int = 0
    memory_bytes: int = 0
    peak_held_bytes: int = 0
    estimated_bytes: int = 0
    dropped_windows: int = 0
    left_out_rows: int = 0
    epoch_rows: int | None = None
    windows_ready: Mapping[tuple[int, int], float] = field(default_factory=dict, repr=False, hash=False)
    spans: tuple[Span, ...] = field(default=(), repr=False)
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    cache_errors: int = 0
    cache_corrupt_blocks: int = 0
    corrupt_blocks: tuple[str, ...] = ()
    corrupt_rows: int = 0
    missing_libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stats:
    """What a shard has received, and statistics of its run.

    Attributes
    ----------
    shard
        Which shard.
    epochs, batches, rows, bytes
        Consumed so far; ``bytes`` in memory.
    wait_seconds
        Time that the consumer waited for batches.
    run
        The run behind all shards.
    spans
        Timeline of this shard's process: ``"reduce"`` and ``"wait"``.

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
    """

    shard: int
    epochs: int
    batches: int
    rows: int
    bytes: int
    wait_seconds: float
    run: RunStats
    spans: tuple[Span, ...] = field(default=(), repr=False)


class Received(Protocol):
    """What an iterator has delivered."""

    @property
    def steps(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def wait_seconds(self) -> float: ...


@dataclass(frozen=True)
class Tally:
    """The totals of a shard's finished epochs."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0

    def add(self, received: Received) -> Tally:
        """Return the totals with one more epoch."""
        return Tally(
            self.batches + received.steps,
            self.rows + received.rows,
            self.bytes + received.size_bytes,
            self.wait_seconds + received.wait_seconds,
        )
