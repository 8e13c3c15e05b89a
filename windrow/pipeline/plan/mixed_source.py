"""A source of a mixture as its own pipeline specifies it, a stream of windows, pass after pass; where its rows come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.core.source import BlockTable
from windrow.shuffle.kernels.pieces import piece_rows
from windrow.shuffle.order.epoch_plan import WindowCut, plan_epoch
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.share_sequence import ShareSequence

Ints = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)

# so many blocks of a window are as much work to plan as a window is
_BLOCKS_PER_WORK = 32


@dataclass(frozen=True, eq=False)
class MixedSource:
    """A source as its own pipeline specifies it; its blocks follow those of the sources before it."""

    name: str
    blocks: BlockTable
    rows: Ints  # (blocks,) as delivered; of a source that packs, tokens
    first_block: int
    cut: WindowCut
    seed: int | None
    shuffles_blocks: bool
    passes: int | None  # None: endless
    digest: str  # of data and order
    # Tokens of a sequence, which is then a row; the last few tokens of a pass are in none. None: it does not pack
    seq_len: int | None = None
    # (rows,) what the rows of all blocks measure, one block after the other; None: they have not been measured
    lengths: NDArray[np.float32] | None = None
    # (rows,) the tokens of these, which are documents that are joined with those of other sources; None: they are not
    tokens: NDArray[np.int32] | None = None

    @property
    def row_seed(self) -> int | None:
        """The seed by which the rows of each window are shuffled, or None."""
        return None if self.shuffles_blocks else self.seed

    @cached_property
    def pass_rows(self) -> int:
        """Rows of a pass, or sequences."""
        return int(self.rows.sum()) // self.row_tokens

    @cached_property
    def pass_tokens(self) -> int:
        """The tokens of the documents of a pass, where these are joined."""
        return 0 if self.tokens is None else int(self.tokens.sum(dtype=np.int64))

    @cached_property
    def total_length(self) -> float:
        """The sum of what the rows of a pass measure."""
        return 0.0 if self.lengths is None else float(self.lengths.sum(dtype=np.float64))

    @cached_property
    def block_tokens(self) -> list[NDArray[np.int32]]:
        """(blocks,) the tokens of each document of each block, where documents are joined."""
        assert self.tokens is not None, "documents are counted before they are joined"
        return np.split(self.tokens, np.cumsum(self.rows)[:-1])

    @property
    def row_tokens(self) -> int:
        """Tokens of a row that is a sequence, else 1."""
        return self.seq_len or 1

    @cached_property
    def windows_per_pass(self) -> int:
        """About how many windows a pass has; at least 1."""
        return max(1, plan_epoch(self.blocks, cut=self.cut, seed=None, epoch=0).windows)

    @property
    def total_rows(self) -> int | None:
        """Rows of all passes; None: endless."""
        if self.passes is None and self.pass_rows:
            return None
        return self.pass_rows * (self.passes or 0)

    def window_key(self, window: SourceWindow) -> bytes | None:
        """The key of the order of a window's rows; None: stored order."""
        if self.row_seed is None:
            return None
        return derive_key(self.row_seed, "rows", window.epoch, window.window)

    def select(self, values: NDArray[Number], window: SourceWindow) -> NDArray[Number]:
        """(rows,) what is given for the rows of all blocks, of those of a window as they are stored."""
        blocks = window.blocks - self.first_block
        counts = self.rows[blocks]
        return values[piece_rows(np.cumsum(self.rows)[blocks] - counts, counts)]

    def windows(self, first_row: int, *, is_endless: bool = False) -> Iterator[SourceWindow]:
        """The windows that have rows from ``first_row`` of the source on, pass after pass.

        ``is_endless``: whether behind its last pass, too.
        """
        number = first_row // max(1, self.pass_rows)
        while self.pass_rows and (is_endless or self.passes is None or number < self.passes):
            plan = plan_epoch(
                self.blocks,
                cut=self.cut,
                seed=self.seed,
                epoch=number,
                sorts_windows=not self.shuffles_blocks,
            )
            before = np.append(0, np.cumsum(self.rows[plan.blocks]))[plan.starts]
            # the sequences that hold any of its tokens
            starts = before[:-1] // self.row_tokens + number * self.pass_rows
            stops = np.minimum(-(-before[1:] // self.row_tokens), self.pass_rows) + number * self.pass_rows
            filled = np.diff(before) > 0
            for window in np.flatnonzero(filled & (stops > np.maximum(starts, first_row))).tolist():
                yield SourceWindow(
                    number,
                    window,
                    int(starts[window]),
                    int(stops[window]),
                    plan.window_blocks(window) + self.first_block,
                    int(before[window]),
                )
            number += 1


@dataclass(frozen=True, eq=False)
class SourceWindow:
    """A window of a source: its pass, its number there, its rows in the source's stream, and its blocks.

    With packing, ``start`` to ``stop`` are the sequences in which it has tokens, and windows can share one. ``before``
    are the rows, or tokens, of the pass that come before it.
    """

    epoch: int
    window: int
    start: int
    stop: int
    blocks: Ints
    before: int


@dataclass(frozen=True, eq=False)
class NeededWindow:
    """A window of a source, and the range of the mixture's rows in which its rows come."""

    source: int
    window: SourceWindow
    first_row: int
    stop_row: int


@dataclass(frozen=True, eq=False)
class Stretch:
    """Rows of a mixture in which shares stay the same; ``counts`` are the rows of each source before it."""

    start: int
    stop: int
    sequence: ShareSequence
    counts: Ints

    def counts_at(self, row: int) -> Ints:
        """(sources,) the rows of each source before a row of the mixture."""
        return self.counts + self.sequence.counts(row - self.start)


def window_work(source: MixedSource) -> float:
    """The work of planning a window of a source."""
    return 1 + len(source.blocks.rows) / source.windows_per_pass / _BLOCKS_PER_WORK


def mean_window_rows(source: MixedSource) -> int:
    """The mean rows of a window of a source."""
    return source.pass_rows // source.windows_per_pass
