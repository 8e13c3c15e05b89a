"""The plan of a mixture: where the rows of each source come in it, and which windows of sources it needs when.

A source is a stream of its own: its passes, the windows of each, and the order of their rows are what they are
without the mixture. The mixture lays these streams side by side: the k-th row of a source comes where the sequence
of sources has that source for the k-th time. So the rows of one window of a source are scattered over a range of
the mixture's rows, and ranges of different sources overlap. The mixture itself is cut into *rounds* of equal
numbers of rows, which are its windows: what shards fetch, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.pipeline.plan.cursor import Cursor, JoinedPoint, MixturePoint
from windrow.pipeline.plan.mixed_source import MixedSource
from windrow.pipeline.plan.shares import Shares

Ints = NDArray[np.int64]
WhenExhausted = Literal["stop", "repeat", "drop"]
MixtureUnit = Literal["rows", "tokens"]

# decoded bytes of a mixture's round: what is delivered before the windows of sources release memory again
_ROUND_BYTES = 64 * 2**20


@dataclass(frozen=True, eq=False)
class Mixture:
    """The sources of a mixture and their shares."""

    sources: tuple[MixedSource, ...]
    shares: Shares
    when_exhausted: WhenExhausted
    seed: int
    round_rows: int
    length_column: str | None = None  # by which the rows of all sources have been measured
    # what shares are shares of: rows, or the tokens of documents that are joined
    unit: MixtureUnit = "rows"
    # the column with the name of each row's source
    source_column: str | None = None
    # tokens of the sequences that join documents of all sources, whose rows are then documents; None: they are not
    joined: int | None = None
    # the legs that `plan_leg` keeps
    legs: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # planning legs again is cheaper than sending them
        return Mixture, tuple(getattr(self, each.name) for each in fields(self) if each.init)

    @property
    def names(self) -> list[str]:
        return [source.name for source in self.sources]

    @property
    def seq_len(self) -> int | None:
        """Tokens of a row, if documents are packed into sequences, of one source or of all."""
        return self.joined or self.sources[0].seq_len

    @property
    def row_tokens(self) -> int:
        """The same, else 1. Cursors, tasks and runs count tokens."""
        return self.seq_len or 1

    @property
    def pass_rows(self) -> int:
        """Rows of a pass of all sources, or sequences."""
        if self.joined is not None:
            return int(self.block_rows.sum()) // self.joined
        return sum(source.pass_rows for source in self.sources)

    @cached_property
    def block_rows(self) -> Ints:
        """(blocks,) the rows, or tokens, of the blocks of all sources."""
        if self.joined is not None:
            return np.array([each.sum(dtype=np.int64) for each in self.block_tokens], np.int64)
        return np.concatenate([source.rows for source in self.sources])

    @property
    def block_tokens(self) -> list[NDArray[np.int32]]:
        """(blocks,) the tokens of each document of the blocks of all sources, where these are joined."""
        return [each for source in self.sources for each in source.block_tokens]

    def cursor(self, epoch: int, point: MixturePoint, row: int) -> Cursor:
        """The cursor at a row, which is behind a point."""
        number, length = row // self.round_rows, self.row_tokens
        return Cursor(epoch, row * length, number, number * self.round_rows * length, mixed=point)

    def known_row(self, cursor: Cursor) -> int:
        """The row of which a state at a cursor tells: in the middle of a group by length, where that begins."""
        return cursor.row // self.row_tokens if cursor.groups is None else cursor.groups.first_row

    @property
    def start(self) -> MixturePoint:
        """Where it starts."""
        none = (0,) * len(self.sources)
        joined = JoinedPoint(counts=none, tokens=none if self.unit == "tokens" else ())
        return MixturePoint(none, joined=None if self.joined is None else joined)


def count_round_rows(row_bytes: int, window_rows: int) -> int:
    """The rows of a mixture's round, given the sum of the mean rows of a window of each source."""
    rows = max(1, min(_ROUND_BYTES // row_bytes, window_rows))
    # Batches mostly have a power of two of rows. Runs end with their round, and a batch in two of them is copied.
    multiple = max(1, 2 ** (rows.bit_length() - 4))
    return rows // multiple * multiple
