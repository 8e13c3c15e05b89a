"""The cursor: a resumable point in a stream; and a place among its windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from windrow.shuffle.order.length_groups import LengthGroups


@dataclass(frozen=True)
class JoinedPoint:
    """Where sequences join the documents of several sources: those that begin before a row.

    ``counts`` are those of each source. The last one is of ``source``, and ``left`` of its tokens come behind the row.
    With shares of tokens, ``tokens`` are those of the documents that each source has begun since shares last changed.
    """

    documents: int = 0
    counts: tuple[int, ...] = ()
    source: int = 0
    left: int = 0
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class MixturePoint:
    """Where the shares of a mixture last changed: all that has to be known of what came before.

    ``counts`` holds the rows of each source up to ``row``. ``shares`` were set there, in place of the schedule;
    None: it holds. The mixture's step ``steps`` begins at row ``steps_row``. Where documents are joined, ``counts`` and
    ``row`` count these, and ``joined`` tells of those that begin before ``steps_row``, which counts sequences.
    """

    counts: tuple[int, ...]
    row: int = 0
    shares: tuple[int, ...] | None = None
    steps: int = 0
    steps_row: int = 0
    joined: JoinedPoint | None = None


@dataclass(frozen=True, order=True)
class Place:
    """A place in the stream of windows, or of a mixture's rounds; slices below ``slice`` have been consumed."""

    epoch: int
    window: int
    slice: int = 0


@dataclass(frozen=True)
class Cursor:
    """How far a stream has been consumed; equal on all shards at the same step."""

    epoch: int = 0
    row: int = 0  # rows of the epoch that all shards together have consumed
    window: int = 0  # the window that holds ``row``
    window_row: int = 0  # the row of the epoch at which that window starts
    # Number of shards and batch size with which the epoch was read up to here, if known: a shard
    # that resumes with the same values can be some steps behind the others.
    assigned: tuple[int, int] | None = field(default=None, compare=False)
    # the blocks skipped as corrupt up to here, by number; they stay skipped
    corrupt: tuple[int, ...] = field(default=(), compare=False)
    # in which order the epoch was read up to ``row``, if by length
    groups: LengthGroups | None = field(default=None, compare=False)
    # of a mixture: where its shares last changed; None: at its start
    mixed: MixturePoint | None = None

    def passed(self, sequence_rows: int) -> int:
        """The last window whose corrupt blocks are all named, since rows of it were consumed; -1: none.

        A step that started before its window does not prove that for the window: not every shard had rows of
        it. ``sequence_rows``: rows of a sequence, in which batch sizes are given; 1 without packing.
        """
        if self.assigned is None:
            return -1
        shards, batch_size = self.assigned
        return self.window if self.row - shards * batch_size * sequence_rows >= self.window_row else -1

    def skipping(self, blocks: Iterable[int]) -> Cursor:
        """The same point with these blocks skipped too."""
        return replace(self, corrupt=tuple(sorted({*self.corrupt, *blocks})))

    def next_epoch(self) -> Cursor:
        if self.mixed is not None:
            # the rows of a mixture are numbered through
            return replace(self, epoch=self.epoch + 1)
        return Cursor(self.epoch + 1, assigned=self.assigned, corrupt=self.corrupt)
