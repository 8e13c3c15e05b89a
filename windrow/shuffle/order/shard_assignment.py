"""Assigns each row of the epoch's order to a shard, and to a place in that shard's stream.

With n shards and batch size B, batch s of shard t is rows [s·n·B + t·B, s·n·B + (t+1)·B) of the epoch. The r
< n·B remaining rows form a last step, assigned in contiguous parts. Everything here is arithmetic on row
numbers, so shards need no communication to agree.

W worker processes of a trainer can share its stream: with n trainers there are n·W shards, and batch s of
shard w·n + t is batch s·W + w of trainer t. Taking the workers' batches in turn gives the trainer's stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.length_groups import LengthGroups

Equal = bool | Literal["pad"]


def check_equal(equal: object) -> Equal:
    """Return the ``equal`` argument if it is valid, else raise `PlanError`."""
    if equal is True or equal is False or equal == "pad":
        return equal
    raise PlanError(f"equal={equal!r} must be True, False or 'pad'")


@dataclass(frozen=True)
class ShardAssignment:
    """How the rows of one epoch are assigned to n shards, in batches of B rows.

    ``equal`` tells what becomes of the r < n·B rows of the last step: ``True`` gives every shard ⌊r/n⌋ rows
    and omits the rest; ``False`` gives the first r mod n shards one row more; ``"pad"`` gives every shard
    ⌈r/n⌉ rows and repeats rows of that step. ``drop_last`` omits the last step if it is not full.
    ``start_row`` is the epoch row at which this assignment starts: 0, or where a resumed epoch continues.

    With ``workers`` W > 1, n·W shards hold the streams of n trainers. A step of all shards is then W steps of
    the trainers. What is said above of the last step holds for the trainers' last one.

    With ``sequence_rows`` L > 1, L rows in turn are a sequence and stay together: B is a multiple of L, the last
    step is assigned in whole sequences, and the fewer than L rows behind the last whole one are omitted.

    With ``balance``, what is said here of the places of a step's rows holds for their number only; `step_rows.py` says
    which rows of a step a shard gets. If steps end by their tokens, `StepCuts` says which rows a step has, and
    ``batch_rows`` is only what a batch is expected to have. With ``groups``, the epoch has their order; of a mixture,
    which is ``mixed``, its legs know theirs.
    """

    shards: int
    batch_rows: int
    equal: Equal = False
    drop_last: bool = False
    start_row: int = 0
    workers: int = 1
    sequence_rows: int = 1
    balance: Balance | None = None
    groups: LengthGroups | None = None
    mixed: bool = False

    def from_row(self, row: int, groups: LengthGroups | None) -> ShardAssignment:
        """The assignment of an epoch of which the rows below ``row`` have been read, in the order of ``groups``."""
        return replace(self, start_row=row, groups=groups if row and not self.mixed else self._own_groups)

    @property
    def _own_groups(self) -> LengthGroups | None:
        """The groups of an epoch that is read from its start on."""
        if self.balance is None or self.balance.group_steps is None or self.mixed:
            return None
        return LengthGroups(self.balance.column, self.balance.group_steps, self.trainers * self.batch_rows)

    @property
    def batch_size(self) -> int:
        """Sequences of a batch; without sequences, its rows."""
        return self.batch_rows // self.sequence_rows

    @property
    def of_sequences(self) -> ShardAssignment:
        """The same assignment with sequences as its rows."""
        start = self.start_row // self.sequence_rows
        return replace(self, batch_rows=self.batch_size, start_row=start, sequence_rows=1)

    @property
    def batching(self) -> Batching:
        """How the epoch is cut into batches."""
        return Batching(self.batch_size, self.drop_last, self.balance)

    @property
    def ends_by_tokens(self) -> bool:
        """Whether the tokens of a step's rows, and not their number, tell where it ends."""
        return self.balance is not None and self.balance.budget is not None

    @property
    def place_stride(self) -> int:
        """By how much places in a shard's stream grow from step to step: at least its rows of any step."""
        balance = self.balance
        if balance is None or balance.rows == "equal":
            return self.batch_rows
        return self.step_rows if balance.budget is None else balance.budget.tokens

    def agrees_with(self, other: ShardAssignment) -> bool:
        """Whether shards that read by both can share an epoch, if they begin whole steps apart."""
        if self.ends_by_tokens:
            return self == replace(other, start_row=self.start_row)
        return self.whole == other.whole

    @property
    def cost_balance(self) -> Balance:
        """The `Balance` of an assignment that divides rows by cost."""
        assert self.balance is not None, "rows are divided by cost"
        return self.balance

    @property
    def trainers(self) -> int:
        """The trainers, each of which has one shard, or one for each of its worker processes."""
        return self.shards // self.workers

    @property
    def step_rows(self) -> int:
        """Rows of a full step over all shards."""
        return self.shards * self.batch_rows

    @property
    def whole(self) -> ShardAssignment:
        """The assignment extended backwards by as many whole steps as fit before ``start_row``.

        Where steps end by their tokens, none are known before it.
        """
        if self.ends_by_tokens:
            return self
        return replace(self, start_row=self.start_row % self.step_rows)

    def full_steps(self, total: int) -> int:
        """The number of steps in which every shard gets a full batch, in an epoch of ``total`` rows."""
        return max(0, total - self.start_row) // self.step_rows

    def rest_rows(self, total: int) -> int:
        """The number of rows of the last step if it is not full, else 0."""
        rest = max(0, total - self.start_row) % self.step_rows
        return rest - rest % self.sequence_rows

    def ends_regularly(self, total: int) -> bool:
        """Whether the rows behind the last full step are assigned as those of a full step would be."""
        if max(0, total - self.start_row) % self.sequence_rows:
            return False
        return not self.rest_rows(total) or (self.shards == 1 and not self.drop_last)

    def _last_step(self, total: int) -> tuple[int, int]:
        """(first, rows) of the trainers' last step if it is not full, counted from the last step of all shards."""
        rest = self.rest_rows(total)
        first = rest - rest % (self.trainers * self.batch_rows)
        return first, rest - first

    def rest_share(self, total: int, shard: int) -> tuple[int, int]:
        """(first, rows) of a shard's part of the last step, including padding, counted from that step's first row."""
        worker, trainer = divmod(shard, self.trainers)
        first, rest = self._last_step(total)
        if (shard + 1) * self.batch_rows <= first:
            return shard * self.batch_rows, self.batch_rows
        length = self.sequence_rows
        share, more = divmod(0 if self.drop_last else rest // length, self.trainers)
        if self.equal is True:
            more = 0
        elif self.equal == "pad":
            share, more = share + (more > 0), 0
        if worker * self.trainers * self.batch_rows > first:
            # a worker that has no batch in it; its place keeps the parts in ascending order
            return first + (share * self.trainers + more) * length, 0
        return first + (trainer * share + min(trainer, more)) * length, (share + (trainer < more)) * length

    def shard_rows(self, total: int, shard: int) -> int:
        """The number of rows that a shard gets, including padding."""
        return self.full_steps(total) * self.batch_rows + self.rest_share(total, shard)[1]

    def steps(self, total: int, shard: int) -> int:
        """The number of batches that a shard gets."""
        return self.full_steps(total) + (self.rest_share(total, shard)[1] > 0)

    def rows_of_step(self, step: int, shard: int, total: int) -> NDArray[np.int64] | None:
        """The epoch's rows in a shard's batch of a step; None if the shard has no such step.

        Steps are counted as if the epoch had started at row 0.
        """
        number = step - self.start_row // self.step_rows
        if number < 0 or number >= self.steps(total, shard):
            return None
        start = number * self.batch_rows
        stop = min(start + self.batch_rows, self.shard_rows(total, shard))
        return self.epoch_rows(start, stop, shard, total)

    def epoch_rows(self, start: int, stop: int, shard: int, total: int | None) -> NDArray[np.int64]:
        """(stop - start,) the epoch's rows at places of a shard's stream: the inverse of `assign_rows`.

        ``total`` is None if unknown and all places belong to full steps.
        """
        places = np.arange(start, stop, dtype=np.int64)
        rows = self.start_row + places // self.batch_rows * self.step_rows
        rows += shard * self.batch_rows + places % self.batch_rows
        if total is None:
            return rows
        full = self.full_steps(total)
        is_last = places >= full * self.batch_rows
        first = self.start_row + full * self.step_rows
        place, _ = self.rest_share(total, shard)
        last, rest = self._last_step(total)
        offsets = place + places[is_last] - full * self.batch_rows
        # padding wraps around to the step's first row
        rows[is_last] = first + (last + (offsets - last) % rest if rest and place >= last else offsets)
        return rows

    def padded_rows(self, total: int) -> int:
        """The number of rows that ``equal="pad"`` repeats, over all shards."""
        return len(self.padding(total)[0])

    def left_out_rows(self, total: int) -> int:
        """The number of rows that no shard gets: the last ones of the epoch's order."""
        assigned = sum(self.shard_rows(total, shard) for shard in range(self.shards))
        return max(0, total - self.start_row) - assigned + self.padded_rows(total)

    def rows_before(self, row: int, shard: int, total: int | None) -> int:
        """How many of the epoch's rows below ``row`` belong to a shard, excluding padding.

        ``total=None`` means that the epoch's length is not known yet; then all rows below ``row`` must belong
        to full steps, or ``row`` must be the boundary of a full step.
        """
        ahead = max(0, row - self.start_row)
        step, within = divmod(ahead, self.step_rows)
        if total is None or step < self.full_steps(total):
            return step * self.batch_rows + _clip(within - shard * self.batch_rows, self.batch_rows)
        first, share = self.rest_share(total, shard)
        full = self.full_steps(total)
        of_rest = min(ahead - full * self.step_rows, self.rest_rows(total))
        return full * self.batch_rows + _clip(of_rest - first, share)

    def assign_rows(self, rows: NDArray[Any], total: int | None) -> tuple[NDArray[Any] | None, NDArray[Any]]:
        """Assign rows of the epoch, of any integer type that holds them: (rows,) shards and places of the same type.

        The shard is n for an omitted row, such as those before ``start_row``; None: all rows belong to shard
        0. The place is that in the shard's stream. ``total`` is None if unknown and all ``rows`` belong to
        full steps.
        """
        word = rows.dtype.type
        ahead = rows - word(self.start_row) if self.start_row else rows
        first_rest = None if total is None else self.full_steps(total) * self.step_rows
        is_regular = total is None or self.ends_regularly(total)
        if self.shards == 1 and not self.start_row and is_regular:
            return None, ahead
        # a step that exceeds the word's maximum exceeds the epoch too, so capping the divisor changes nothing
        max_word = int(np.iinfo(rows.dtype).max)
        step_rows, batch_rows = word(min(self.step_rows, max_word)), word(min(self.batch_rows, max_word))
        steps = ahead // step_rows
        within = ahead - steps * step_rows
        shards = within // batch_rows
        # place = step·B + within − shard·B
        places = within
        places -= shards * batch_rows
        places += steps * batch_rows
        # if the first row of the rest exceeds the word's maximum, all rows are before it
        if total is not None and first_rest is not None and not is_regular and first_rest <= max_word:
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
        # no part of a sequence stands for padding
        shards[within >= self.rest_rows(total)] = self.shards
        firsts = np.append(shares[:, 0], 0)
        places = self.full_steps(total) * self.batch_rows + within - firsts[shards]
        return shards, places

    def padding(self, total: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(rows, shards, places) of the rows that ``equal="pad"`` repeats.

        At most n − 1 rows or sequences; place p ≥ r of the last step is its row p mod r.
        """
        last, rest = self._last_step(total)
        rest = 0 if self.drop_last or self.equal != "pad" else rest
        share = -(-rest // (self.trainers * self.sequence_rows)) * self.sequence_rows
        extra = np.arange(rest, share * self.trainers, dtype=np.int64)
        first_rest = self.start_row + self.full_steps(total) * self.step_rows + last
        rows = first_rest + (extra % rest if rest else extra)
        shards = extra // share if share else extra
        places = self.full_steps(total) * self.batch_rows + (extra - shards * share)
        first_shard = last // self.batch_rows
        return rows, first_shard + shards, places


def _clip(value: int, upper: int) -> int:
    return min(max(value, 0), upper)
