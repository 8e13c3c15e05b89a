"""The corrupt blocks that a run skips, and when it is too late to skip a block.

With ``on_error="skip"`` tasks count the rows of each block by reading it, before any position in
its window is computed, and a block that cannot be decoded counts as having none. From then on
its count is as fixed as that of any other block: requests and states name the block, so later
epochs, a restarted coordinator and a resumed stream skip it too.

A block can therefore be skipped only before any row of its window, or of a later one, has a
position. A block that was readable then and is found corrupt later is an error in either mode.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import numpy as np

from windrow.core.errors import SourceError
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.task import Corruption, make_late_corruption_error

logger = logging.getLogger(__name__)

# A state names them all, and more corruption than this is not an accident.
MAX_BLOCKS = 8


class SkippedBlocks:
    """The blocks that a run skips. What contradicts that, or exceeds `MAX_BLOCKS`, raises SourceError."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._errors: dict[int, str] = {}
        # the epoch in which each was found, or the earliest one of a shard that already skipped it
        self._since: dict[int, int] = {}
        # (epoch, block) where a shard has rows behind a block that it did not skip
        self._overtaken: set[tuple[int, int]] = set()
        # by epoch, the last window whose rows may have been delivered before this driver started
        self._passed: dict[int, int] = {}

    @property
    def blocks(self) -> tuple[int, ...]:
        """Their numbers in stored order."""
        return tuple(sorted(self._errors))

    @property
    def names(self) -> tuple[str, ...]:
        """The same as text: path and row groups."""
        return self._name(self.blocks)

    @property
    def rows(self) -> int:
        """Their stored rows."""
        return int(self._program.job.source.blocks.rows[list(self.blocks)].sum())

    def find_skipped(self, epoch: int, blocks: Sequence[int]) -> tuple[int, ...]:
        """Indices into ``blocks`` of those that an epoch skips; no shard may have had their rows in it."""
        if not self._errors:
            return ()
        for block in blocks:
            if (epoch, block) in self._overtaken:
                raise make_late_corruption_error(self._describe(block))
        return tuple(at for at, block in enumerate(blocks) if block in self._errors)

    def admit(self, epoch: int, window: int, known: Collection[int], *, counted: Collection[int]) -> None:
        """Admit a shard that may have rows up to a window (-1: none), and skipped the ``known`` blocks.

        ``counted`` are those of them that this run has read without error.
        """
        if counted:
            raise SourceError(
                f"{self._name(sorted(counted))[0]}: the block was skipped as corrupt before, but can be read now, and "
                "this run has already assigned positions to its rows. Restart from a saved state"
            )
        for block in blocks_passed(self._program, epoch, window, self._errors):
            if block in known:
                continue
            if self._since[block] <= epoch:
                raise make_late_corruption_error(self._describe(block))
            # found in a later epoch: this one delivered its rows, or starts behind them and may never need it
            self._overtaken.add((epoch, block))
        for block in known:
            self._errors.setdefault(block, "")
            self._since[block] = min(epoch, self._since.get(block, epoch))
        self._passed[epoch] = max(window, self._passed.get(epoch, -1))

    def add(self, epoch: int, window: int, corruption: Corruption) -> str:
        """Skip a block that was found corrupt when a window was read; returns the warning."""
        if window <= self._passed.get(epoch, -1):
            raise make_late_corruption_error(corruption.error)
        self._errors[corruption.block] = corruption.error
        self._since[corruption.block] = epoch
        if len(self._errors) > MAX_BLOCKS:
            raise SourceError(
                f"{len(self._errors)} blocks are corrupt, and on_error='skip' skips {MAX_BLOCKS} at most: "
                f"{'; '.join(self.names)}. Restore these files, or exclude them from the dataset. The last one: "
                f"{corruption.error}"
            )
        rows = int(self._program.job.source.blocks.rows[corruption.block])
        text = f"a corrupt block is skipped, {rows:,} stored rows: {corruption.error}"
        logger.warning("epoch %d, window %d: %s", epoch, window, text)
        return text

    def _describe(self, block: int) -> str:
        return self._errors[block] or self._name((block,))[0]

    def _name(self, blocks: Sequence[int]) -> tuple[str, ...]:
        return tuple(address.origin for address in self._program.job.source.addresses(blocks))


def blocks_passed(program: Program, epoch: int, window: int, blocks: Collection[int]) -> list[int]:
    """The blocks among ``blocks`` that lie in the windows of an epoch up to and including ``window``."""
    plan = program.plan(epoch)
    stop = int(plan.starts[min(window + 1, plan.windows)])
    return [block for block in sorted(blocks) if np.any(plan.blocks[:stop] == block)]
