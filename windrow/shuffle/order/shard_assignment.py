"""The deal: which shard gets a row of the epoch's order, and at which place of its stream.

With n shards and batch size B, batch s of shard t is rows [s·n·B + t·B, s·n·B + (t+1)·B)
of the epoch. With r < n·B rows left at the end, one last step deals them in contiguous
parts. Everything here is arithmetic on row numbers, so nothing has to be agreed on
while an epoch runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError

__all__ = ["Equal", "ShardAssignment", "check_equal"]

Equal = bool | Literal["pad"]


def check_equal(equal: object) -> Equal:
    """Return a valid ``equal`` argument, or raise a `PlanError`."""
    if equal is True or equal is False or equal == "pad":
        return equal
    raise PlanError(f"equal={equal!r} must be True, False or 'pad'")


@dataclass(frozen=True)
class ShardAssignment:
    """How the rows of one epoch are dealt to shards.

    Attributes
    ----------
    shards
        n, the number of shards.
    batch_rows
        B, rows of one shard's batch.
    equal
        What happens to the r < n·B rows of the last step: ``True`` gives every shard
        ⌊r/n⌋ and leaves out the rest, ``False`` gives the first r mod n shards one
        more, ``"pad"`` gives every shard ⌈r/n⌉ and repeats rows of that step.
    drop_last
        Leave the last step out when it is not a full one.
    start_row
        The epoch row from which this deal begins: 0, or where a resumed epoch goes on.
    """

    shards: int
    batch_rows: int
    equal: Equal = False
    drop_last: bool = False
    start_row: int = 0

    @property
    def step_rows(self) -> int:
        """Rows of a full step, all shards together."""
        return self.shards * self.batch_rows

    @property
    def whole(self) -> ShardAssignment:
        """The deal of which this one is the rest: begun as many steps earlier as there are."""
        return replace(self, start_row=self.start_row % self.step_rows)

    def full_steps(self, total: int) -> int:
        """Steps in which every shard gets a full batch, of an epoch of ``total`` rows."""
        return max(0, total - self.start_row) // self.step_rows

    def rest_rows(self, total: int) -> int:
        """Rows of the last, not full, step (0 when there is none)."""
        return max(0, total - self.start_row) % self.step_rows

    def rest_share(self, total: int, shard: int) -> tuple[int, int]:
        """Return (first, rows) of a shard's part of the last step, padding included.

        ``first`` counts from the first row of the last step.
        """
        rest = 0 if self.drop_last else self.rest_rows(total)
        share, more = divmod(rest, self.shards)
        if self.equal is True:
            return shard * share, share
        if self.equal == "pad":
            share += more > 0
            return shard * share, share
        return shard * share + min(shard, more), share + (shard < more)

    def shard_rows(self, total: int, shard: int) -> int:
        """All rows that a shard gets, padding included."""
        return self.full_steps(total) * self.batch_rows + self.rest_share(total, shard)[1]

    def steps(self, total: int, shard: int) -> int:
        """Batches that a shard gets."""
        return self.full_steps(total) + (self.rest_share(total, shard)[1] > 0)

    def rows_of_step(self, step: int, shard: int, total: int) -> NDArray[np.int64] | None:
        """The epoch's rows in a shard's batch of a step, counted as if the epoch had begun at row 0.

        None where the shard has no such step.
        """
        number = step - self.start_row // self.step_rows
        if number < 0 or number >= self.steps(total, shard):
            return None
        first = self.start_row + number * self.step_rows
        if number < self.full_steps(total):
            first += shard * self.batch_rows
            return np.arange(first, first + self.batch_rows, dtype=np.int64)
        place, share = self.rest_share(total, shard)
        # padding begins anew at the step's first row
        return first + np.arange(place, place + share, dtype=np.int64) % self.rest_rows(total)

    def padded_rows(self, total: int) -> int:
        """Rows that ``equal="pad"`` repeats, over all shards."""
        return len(self.padding(total)[0])

    def left_out_rows(self, total: int) -> int:
        """Rows that no shard gets: the last ones of the epoch's order."""
        assigned = sum(self.shard_rows(total, shard) for shard in range(self.shards))
        return max(0, total - self.start_row) - assigned + self.padded_rows(total)

    def rows_before(self, row: int, shard: int, total: int | None) -> int:
        """Rows of the shard that the epoch's rows below ``row`` hold, padding excluded.

        ``total=None``: the epoch's length is not known yet, and all rows below ``row``
        lie in full steps or the answer is only asked for a full step's border.
        """
        ahead = max(0, row - self.start_row)
        step, within = divmod(ahead, self.step_rows)
        if total is None or step < self.full_steps(total):
            return step * self.batch_rows + _clip(within - shard * self.batch_rows, self.batch_rows)
        first, share = self.rest_share(total, shard)
        full = self.full_steps(total)
        return full * self.batch_rows + _clip(ahead - full * self.step_rows - first, share)

    def assign_rows(self, rows: NDArray[Any], total: int | None) -> tuple[NDArray[Any] | None, NDArray[Any]]:
        """Deal rows of the epoch.

        Parameters
        ----------
        rows
            (rows,) numbers in the epoch's order, of any integer type that holds them.
        total
            Rows of the epoch; None when unknown and all ``rows`` lie in full steps.

        Returns
        -------
        shards, places
            (rows,) each, of the same type: the shard, or ``n`` for a row left out (None:
            all are of shard 0), and the place in the shard's stream. Rows before
            ``start_row`` are left out.
        """
        word = rows.dtype.type
        ahead = rows - word(self.start_row) if self.start_row else rows
        first_rest = None if total is None else self.full_steps(total) * self.step_rows
        has_rest = total is not None and self.rest_rows(total) > 0
        if self.shards == 1 and not self.start_row and not (has_rest and self.drop_last):
            return None, ahead
        # a step larger than the words hold is larger than the epoch too: a larger divisor changes nothing
        max_word = int(np.iinfo(rows.dtype).max)
        step_rows, batch_rows = word(min(self.step_rows, max_word)), word(min(self.batch_rows, max_word))
        steps = ahead // step_rows
        within = ahead - steps * step_rows
        shards = within // batch_rows
        # place = step·B + within − shard·B
        places = within
        places -= shards * batch_rows
        places += steps * batch_rows
        # where words are too short to say where the rest begins, all rows lie before it
        if total is not None and first_rest is not None and has_rest and first_rest <= max_word:
            (last,) = np.nonzero(ahead >= word(first_rest))
            shards[last], places[last] = self._assign_rest(ahead[last].astype(np.int64) - first_rest, total)
        if self.start_row:
            shards[rows < word(self.start_row)] = self.shards
        return shards, places

    def _assign_rest(
        self, within: NDArray[np.int64], total: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        shares = np.array([self.rest_share(total, t) for t in range(self.shards)], dtype=np.int64)
        shards = np.searchsorted(shares.sum(axis=1), within, side="right").astype(np.int64)
        firsts = np.append(shares[:, 0], 0)
        places = self.full_steps(total) * self.batch_rows + within - firsts[shards]
        return shards, places

    def padding(self, total: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows, shards, places) of the rows that ``equal="pad"`` repeats.

        At most n − 1 of them; place p ≥ r of the last step is its row p mod r.
        """
        rest = 0 if self.drop_last or self.equal != "pad" else self.rest_rows(total)
        share = -(-rest // self.shards)
        extra = np.arange(rest, share * self.shards, dtype=np.int64)
        first_rest = self.start_row + self.full_steps(total) * self.step_rows
        rows = first_rest + (extra % rest if rest else extra)
        shards = extra // share if share else extra
        places = self.full_steps(total) * self.batch_rows + (extra - shards * share)
        return rows, shards, places


def _clip(value: int, upper: int) -> int:
    return min(max(value, 0), upper)
