"""The corrupt blocks of a run: what counts as having no rows, and what must not any more.

With ``on_error="skip"`` the rows of each block are counted by reading it, before any position in
its window is computed, and a block that cannot be decoded counts as having none. From then on
that is as fixed as the number of rows of any other block: every epoch that follows, a coordinator
that is restarted and a stream that is resumed go by it, since requests and states name it.

So a block can be left out only before any row of its window, or of a later one, has its place. A
block that could be read then and is found corrupt later is an error in either mode.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from windrow.core.errors import SourceError
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.corrupt_blocks import Corruption, refuse_late

__all__ = ["MAX_BLOCKS", "SkippedBlocks", "blocks_passed", "name_blocks"]

# A state names them all, and more are no accident any more.
MAX_BLOCKS = 8


class SkippedBlocks:
    """The blocks that a run leaves out.

    Parameters
    ----------
    program
        Whose.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._errors: dict[int, str] = {}
        # the epoch in which each was found, or that of the first shard that knew of it
        self._since: dict[int, int] = {}
        # (epoch, block) where a shard has rows behind a block that it does not know as corrupt
        self._overtaken: set[tuple[int, int]] = set()
        # by epoch, the last window of which rows may have been delivered elsewhere
        self._passed: dict[int, int] = {}

    @property
    def blocks(self) -> tuple[int, ...]:
        """Their numbers in stored order."""
        return tuple(sorted(self._errors))

    @property
    def names(self) -> tuple[str, ...]:
        """The same in words: path and row groups."""
        return name_blocks(self._program, self.blocks)

    @property
    def rows(self) -> int:
        """Rows that they have as stored."""
        return int(self._program.job.source.blocks.rows[list(self.blocks)].sum())

    def places(self, epoch: int, blocks: Sequence[int]) -> tuple[int, ...]:
        """Which of some blocks that an epoch needs are left out, by their place.

        Raises
        ------
        SourceError
            If a shard may have had rows of one of them in that epoch.
        """
        if not self._errors:
            return ()
        for block in blocks:
            if (epoch, block) in self._overtaken:
                raise refuse_late(self._describe(block))
        return tuple(at for at, block in enumerate(blocks) if block in self._errors)

    def admit(self, epoch: int, window: int, known: Collection[int], *, counted: Collection[int]) -> None:
        """A shard that has passed a window knows of the blocks that are left out up to there.

        Parameters
        ----------
        epoch, window
            The last window of which it may have rows; -1: none of this epoch.
        known
            The blocks.
        counted
            Those of them that this run has read, and found whole.

        Raises
        ------
        SourceError
            If that contradicts what this run has found.
        """
        if counted:
            raise SourceError(
                f"{self._name(min(counted))}: the block was left out as corrupt, and can be read now: this "
                "run has given its rows places. Begin anew from a saved state"
            )
        for block in blocks_passed(self._program, epoch, window, self._errors):
            if block in known:
                continue
            if self._since[block] <= epoch:
                raise refuse_late(self._describe(block))
            # found since: that epoch had its rows, or was begun behind it, and may not need it any more
            self._overtaken.add((epoch, block))
        for block in known:
            self._errors.setdefault(block, "")
            self._since[block] = min(epoch, self._since.get(block, epoch))
        self._passed[epoch] = max(window, self._passed.get(epoch, -1))

    def add(self, epoch: int, window: int, corruption: Corruption) -> str:
        """Leave a block out that was found corrupt when a window was read; returns what to tell of it.

        Raises
        ------
        SourceError
            If rows of that window may have been delivered, or it is one too many.
        """
        if window <= self._passed.get(epoch, -1):
            raise refuse_late(corruption.error)
        self._errors[corruption.block] = corruption.error
        self._since[corruption.block] = epoch
        if len(self._errors) > MAX_BLOCKS:
            raise SourceError(
                f"{len(self._errors)} blocks are corrupt, and on_error='skip' leaves out {MAX_BLOCKS} at most: "
                f"{'; '.join(self.names)}. Restore these files, or leave them out of the dataset. The last one: "
                f"{corruption.error}"
            )
        rows = int(self._program.job.source.blocks.rows[corruption.block])
        return f"a corrupt block is left out, {rows:,} rows as stored: {corruption.error}"

    def _describe(self, block: int) -> str:
        return self._errors[block] or self._name(block)

    def _name(self, block: int) -> str:
        return name_blocks(self._program, (block,))[0]


def name_blocks(program: Program, blocks: Sequence[int]) -> tuple[str, ...]:
    """Blocks in words: path and row groups."""
    return tuple(address.origin for address in program.job.source.addresses(blocks))


def blocks_passed(program: Program, epoch: int, window: int, blocks: Collection[int]) -> list[int]:
    """Those of some blocks that lie in the windows of an epoch up to one, that one included."""
    plan = program.plan(epoch)
    stop = int(plan.starts[min(window + 1, plan.windows)])
    return [block for block in sorted(blocks) if np.any(plan.blocks[:stop] == block)]
