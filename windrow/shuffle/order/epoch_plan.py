"""Plans an epoch: the order of its blocks, and how they are cut into windows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError
from windrow.core.source import BlockTable
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import block_order

# far more than useful windows of any dataset; catches slips such as a missing unit in bytes_per_window
MAX_WINDOWS = 2**22


@dataclass(frozen=True)
class WindowCut:
    """How an epoch's blocks are cut into windows; with no field set, the epoch is one window."""

    blocks_per_window: int | None = None  # exact; the last window may be short
    bytes_per_window: int | None = None  # decoded bytes of the selected columns, from file footers
    of_source: bool = False  # as the source states its windows, in that order
    is_chosen: bool = field(default=False, compare=False)  # the size was chosen for the data, not given

    @property
    def call(self) -> str:
        """The method of a pipeline that sets other windows, for errors."""
        return "rewindow" if self.of_source else "window"


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The blocks of each window of one epoch, an absolute number."""

    epoch: int
    blocks: NDArray[np.int64]  # (blocks,) stored block numbers, window after window
    starts: NDArray[np.int64]  # (windows + 1,) offsets of the windows in `blocks`

    @property
    def windows(self) -> int:
        """The number of windows, including windows without blocks."""
        return len(self.starts) - 1

    def window_blocks(self, window: int) -> NDArray[np.int64]:
        """The blocks of a window, in the order in which its rows are numbered."""
        return self.blocks[self.starts[window] : self.starts[window + 1]]


def plan_epoch(
    blocks: BlockTable, *, cut: WindowCut, seed: int | None, epoch: int, sorts_windows: bool = True
) -> EpochPlan:
    """Cut one epoch into windows: a pure function of its arguments.

    With a seed, the blocks of each epoch are permuted before they are cut, so that a window mixes rows from
    the whole dataset. Within a window, blocks are in stored order, since the rows are permuted anyway and
    sequential reads of files are fastest; not if ``sorts_windows`` is False, where rows are not permuted. Where
    the source states the windows, no block leaves its own.
    """
    count = len(blocks.rows)
    if seed is None:
        order = np.arange(count, dtype=np.int64)
    else:
        order = block_order(derive_key(seed, "blocks", epoch, 0), count)
    starts = _cut_windows(blocks, order, cut)
    if seed is not None and (sorts_windows or cut.of_source):
        window_of_place = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        windows = window_of_place[order] if cut.of_source else window_of_place
        within = order if sorts_windows else np.arange(count)
        order = order[np.lexsort((within, windows))]
    return EpochPlan(epoch=epoch, blocks=order, starts=starts)


def _cut_windows(blocks: BlockTable, order: NDArray[np.int64], cut: WindowCut) -> NDArray[np.int64]:
    if cut.of_source:
        assert blocks.window_starts is not None, "the source states its windows"
        return blocks.window_starts
    sizes = blocks.decoded_bytes[order]
    count = len(sizes)
    if count == 0:
        return np.zeros(1, dtype=np.int64)
    if cut.blocks_per_window is not None:
        return np.append(np.arange(0, count, cut.blocks_per_window, dtype=np.int64), count)
    total = int(sizes.sum())
    if cut.bytes_per_window is None or total == 0:
        return np.array([0, count], dtype=np.int64)
    windows = -(-total // cut.bytes_per_window)
    if windows > MAX_WINDOWS:
        raise PlanError(
            f"bytes_per_window={cut.bytes_per_window} cuts {format_bytes(total)} into {windows:,} windows; "
            f"at most {MAX_WINDOWS:,} are supported: set it to {-(-total // MAX_WINDOWS)} bytes or more"
        )
    before = np.cumsum(sizes) - sizes
    # block i belongs to window ⌊before_i · windows / total⌋; the borders are computed in Python integers,
    # because the product can exceed 64 bits
    borders = [-(-window * total // windows) for window in range(windows)]
    starts = np.searchsorted(before, np.array(borders, dtype=np.int64), side="left")
    return np.append(starts, count).astype(np.int64)
