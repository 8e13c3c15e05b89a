"""What a run has done, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["RunStats", "Span", "Stats", "Tally"]


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Attributes
    ----------
    kind
        ``"map"``, ``"read"``, ``"place"`` (tasks), ``"reduce"`` (placing a run's rows),
        ``"wait"`` (a trainer waited for a batch).
    epoch, window
        For which window.
    start_time, stop_time
        Seconds since the epoch of Unix.
    lane
        Who did it: a worker, or a shard.
    """

    kind: str
    epoch: int
    window: int
    start_time: float
    stop_time: float
    lane: str


@dataclass(frozen=True)
class RunStats:
    """What the run behind all shards has done.

    Attributes
    ----------
    tasks
        Tasks finished.
    held_bytes, memory_bytes
        What map outputs hold now, those being made included, and what they may hold.
    peak_held_bytes
        The most they have held.
    promised_bytes
        What the run holds at most, as ``explain()`` told; where that was an estimate and blocks
        turned out larger, what it has become.
    dropped_windows
        Windows dropped while a shard still needed them, to be produced again.
    left_out_rows
        Rows that ``equal=True`` left out, over all epochs opened.
    epoch_rows
        Rows of an epoch, all shards together; None until they are counted.
    windows_ready
        Of each window that is held or being prepared, by epoch and number, the share that is ready.
    spans
        When tasks ran.
    cache_hits, cache_misses
        Blocks that were kept decoded from before, and that were read from the source.
    cache_bytes
        What decoded blocks take that are kept now; on disk, what this run has written.
    cache_errors
        Errors of the disk cache (a full or read-only disk, a folder that is gone), all processes together;
        after the first a process writes no more blocks, and the run reads from the source.
    cache_corrupt_blocks
        Cached blocks on disk that failed verification and were read from the source again.
    corrupt_blocks, corrupt_rows
        The blocks that ``on_error="skip"`` leaves out, by path and row group, and their rows as stored.
    missing_libraries
        windrow's compiled libraries that could not be loaded where the run is coordinated; it is slower without them.
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
    """What a shard has received, and what the run behind it has done.

    Attributes
    ----------
    shard
        Which shard.
    epochs, batches, rows, bytes
        Consumed so far; ``bytes`` as held in memory.
    wait_seconds
        How long the consumer waited for batches.
    run
        The run behind all shards.
    spans
        What this shard's process did and when: ``"reduce"`` and ``"wait"``.

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
    """What an iterator tells of what it delivered."""

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
    """What a shard's finished epochs add up to."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0

    def add(self, received: Received) -> Tally:
        """Return the tally with one more epoch."""
        return Tally(
            self.batches + received.steps,
            self.rows + received.rows,
            self.bytes + received.size_bytes,
            self.wait_seconds + received.wait_seconds,
        )
