"""Where the rows of a window go: its parts (input splits), the blocks of one map task each, and places once counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.pipeline.plan.job import Job
from windrow.pipeline.tasks.list_limit import ListLimit
from windrow.pipeline.tasks.task import Documents, Ordering
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.best_fit import count_sequences, pack_documents, sequences_key
from windrow.shuffle.order.divided_rounds import KeyedRounds
from windrow.shuffle.order.epoch_plan import EpochPlan
from windrow.shuffle.order.numbered_rounds import NumberedRound
from windrow.shuffle.order.round_runs import RoundRuns
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.sequence_places import SequencePlaces
from windrow.shuffle.order.step_runs import StepRuns
from windrow.shuffle.order.step_sequences import sequence_costs
from windrow.shuffle.order.window_order import WindowOrder, order_window, place_documents

Ints = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)


class WindowPlan:
    """The parts of one window, in the order in which its rows are numbered.

    ``blocks``, (blocks,): its stored block numbers. ``starts``, (parts + 1,): where each part starts there.
    """

    def __init__(self, blocks: Ints, starts: Ints) -> None:
        self.blocks = blocks
        self.starts = starts
        self._counted: tuple[Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, part: int) -> Ints:
        """The blocks of a part; a view."""
        if not 0 <= part < len(self):
            raise IndexError(f"part {part} of {len(self)}")
        return self.blocks[self.starts[part] : self.starts[part + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[part] for part in range(len(self)))

    def select(self, values: Sequence[NDArray[Number] | None]) -> list[NDArray[Number]] | None:
        """What is known of each block of the window, given that of every block of the dataset; None: not all of it."""
        found = [values[block] for block in self.blocks.tolist()]
        known = [each for each in found if each is not None]
        return known if len(known) == len(found) else None

    def rows_before(self, rows: Ints) -> Ints:
        """(blocks + 1,) rows of the window before each of its blocks, and their total.

        ``rows`` holds the row count of every block of the dataset; those of this window must be
        known. The sums are cached for this very array: a known count must not change.
        """
        if self._counted is None or self._counted[0] is not rows:
            of_window = rows[self.blocks]
            assert of_window.min(initial=0) >= 0, "rows are counted before they are placed"
            before = np.zeros(len(of_window) + 1, dtype=np.int64)
            np.cumsum(of_window, out=before[1:])
            self._counted = rows, before
        return self._counted[1]


@dataclass(frozen=True, eq=False)
class EpochParts:
    """The parts of all windows of an epoch."""

    plan: EpochPlan
    starts: Ints  # (parts + 1,) where each part starts in the plan's blocks
    windows: Ints  # (windows + 1,) the index of each window's first part

    def count_sequence_rows(
        self, lengths: Sequence[NDArray[np.int32] | None], seq_len: int, window: int
    ) -> int:
        """Rows of a window whose documents are placed whole: the tokens of its sequences, with their padding."""
        documents = _of_window(find_documents(self.window(window), lengths))
        return seq_len * count_sequences(documents, seq_len)

    def window(self, window: int) -> WindowPlan:
        first = self.plan.starts[window]
        starts = self.starts[self.windows[window] : self.windows[window + 1] + 1]
        return WindowPlan(self.plan.window_blocks(window), starts - first)

    def sums(self, values: Ints) -> Ints:
        """(parts,) sums of a value that is given for every block of the dataset."""
        return np.add.reduceat(values[self.plan.blocks], self.starts[:-1])

    def are_known(self, rows: Ints) -> NDArray[np.bool_]:
        """(parts,) whether the row counts of all blocks of a part are known, so not negative."""
        return np.minimum.reduceat(rows[self.plan.blocks], self.starts[:-1]) >= 0


def cut_parts(plan: EpochPlan, sizes: Ints, part_bytes: int) -> EpochParts:
    """Cut each window of an epoch into parts of whole blocks, about ``part_bytes`` each.

    ``sizes`` holds the bytes of every block of the dataset. A window without blocks has no parts.
    """
    ordered = sizes[plan.blocks]
    before = np.append(np.cumsum(ordered) - ordered, 0)
    first_of_window, counts = plan.starts[:-1], np.diff(plan.starts)
    within = before[:-1] - np.repeat(before[first_of_window], counts)
    is_start = np.diff(within // part_bytes, prepend=-1) != 0
    is_start[first_of_window[counts > 0]] = True
    part_starts = np.flatnonzero(is_start)
    windows = np.searchsorted(part_starts, plan.starts)
    return EpochParts(plan, np.append(part_starts, len(plan.blocks)), windows)


@dataclass(frozen=True, eq=False)
class WindowPlaces:
    """Where the rows of a window go."""

    plan: WindowPlan
    order: WindowOrder
    # by destination
    layouts: tuple[WindowRuns, ...] | tuple[RoundRuns, ...] | tuple[StepRuns, ...]
    # (blocks + 1,) rows of the window before each of its blocks, and their total
    before: NDArray[np.int64]
    # with packing, the documents of each block
    documents: tuple[Documents, ...] | None = None
    # with a sort, the epoch row of each row of each block; with `Balance`, its number in the window
    given_rows: tuple[NDArray[np.int64] | NDArray[np.uint32], ...] | None = None
    # of a mixture with packing, where the source's sequences come
    sequences: SequencePlaces | None = None
    # with `Balance`, the cost of the most expensive shard over the mean of all, of each step that ends in the window
    imbalances: tuple[float, ...] = ()
    # of the same steps, the lengths of all rows, and what they come to if each microbatch is padded to its longest row
    padded_lengths: tuple[float, float] = (0.0, 0.0)
    # where steps end by their tokens, the rows that no shard gets
    left_out: int = 0
    # of rows with more tokens than a step of one shard; None: there are none to cut
    list_limit: ListLimit | None = None
    # of a mixture whose rows have been measured, the rounds that have rows of the window, by number
    rounds: Mapping[int, NumberedRound] = field(default_factory=dict)

    @cached_property
    def task_layouts(self) -> tuple[WindowRuns, ...] | tuple[RoundRuns, ...] | tuple[StepRuns, ...]:
        """The layouts without what only shards need."""
        of_steps = [layout.for_tasks for layout in self.layouts if isinstance(layout, StepRuns)]
        of_rounds = [layout.for_tasks for layout in self.layouts if isinstance(layout, KeyedRounds)]
        return tuple(of_steps) or tuple(of_rounds) or self.layouts

    def ordering(self, part: int) -> Ordering:
        """Where the rows of a part go."""
        blocks = slice(*self.plan.starts[part : part + 2])
        return Ordering(
            self.order,
            offsets=tuple(self.before[blocks].tolist()),
            layouts=self.task_layouts,
            documents=None if self.documents is None else self.documents[blocks],
            given_rows=None if self.given_rows is None else self.given_rows[blocks],
            sequences=self.sequences,
            list_limit=self.list_limit,
        )


def place_window(
    job: Job,
    plan: WindowPlan,
    key: tuple[int, int],
    *,
    layouts: tuple[WindowRuns, ...],
    rows: NDArray[np.int64],
    lengths: Sequence[NDArray[np.int32] | None],
    keys: Mapping[int, Sequence[pa.Table]],
) -> WindowPlaces:
    """Compute where the rows of window ``key`` (epoch and window) go.

    ``rows`` and, with packing, ``lengths`` hold the rows, and the tokens of each document, of every block of the
    dataset. With a sort, ``keys`` holds those of the blocks of each part.
    """
    before = plan.rows_before(rows)
    (epoch, window), first_row = key, layouts[0].first_row
    if job.packing is not None:
        order, documents = order_documents(job, key, first_row, find_documents(plan, lengths))
        return WindowPlaces(plan, order, layouts, before, documents)
    ordered = int(before[-1])
    order = order_window(seed=job.row_seed, epoch=epoch, window=window, rows=ordered, first_row=first_row)
    sorted_rows = None
    if job.sort is not None:
        of_parts = [table for part in range(len(plan)) for table in keys[part]]
        unsorted = order.epoch_rows(0, ordered)
        sorted_rows = tuple(job.sort.epoch_rows(of_parts, unsorted, order.first_row))
    return WindowPlaces(plan, order, layouts, before, given_rows=sorted_rows)


def order_documents(
    job: Job, key: tuple[int, int], first_row: int, lengths: Sequence[NDArray[np.int32]]
) -> tuple[WindowOrder, tuple[Documents, ...]]:
    """Where the documents of window ``key`` (epoch and window) go, which begins at the epoch's row ``first_row``.

    ``lengths`` holds, by block of the window, the tokens of each document.
    """
    assert job.packing is not None, "documents are packed"
    (epoch, window), count = key, sum(map(len, lengths))
    order = order_window(seed=job.row_seed, epoch=epoch, window=window, rows=count, first_row=first_row)
    if not job.pads_sequences:
        return order, place_all_documents(order, lengths)
    key_of_sequences = sequences_key(job.row_seed, epoch, window)
    return order, place_whole_documents(order, lengths, job.packing.seq_len, key_of_sequences)


def find_documents(plan: WindowPlan, lengths: Sequence[NDArray[np.int32] | None]) -> list[NDArray[np.int32]]:
    """The tokens of each document of each block of a window, given those of every block of the dataset."""
    found = plan.select(lengths)
    assert found is not None, "documents are counted before they are placed"
    return found


def place_all_documents(order: WindowOrder, lengths: Sequence[NDArray[np.int32]]) -> tuple[Documents, ...]:
    """The documents of each block, given the tokens of each of them."""
    starts = _by_block(place_documents(order, _of_window(lengths)), lengths)
    return tuple(map(Documents, starts, lengths))


def place_whole_documents(
    order: WindowOrder, lengths: Sequence[NDArray[np.int32]], seq_len: int, key: bytes | None
) -> tuple[Documents, ...]:
    """The documents of each block, placed whole into sequences whose random order has the key; None: in order."""
    packed = pack_documents(order, _of_window(lengths), seq_len, key)
    starts, padding = (_by_block(each, lengths) for each in (packed.starts, packed.padding))
    return tuple(map(Documents, starts, lengths, padding))


def cost_documents(
    balance: Balance, rows: tuple[int, int], documents: Sequence[Documents], seq_len: int
) -> NDArray[np.float64]:
    """(sequences,) what the documents of a window cost in each sequence of its ``rows``, (first, behind the last)."""
    starts = np.concatenate([np.zeros(0, np.int64), *(each.starts for each in documents)])
    lengths = _of_window([each.lengths for each in documents])
    return sequence_costs(balance, rows, starts, lengths, seq_len)


def _of_window(lengths: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(0, np.int32), *lengths])


def _by_block(values: NDArray[Any], lengths: Sequence[NDArray[np.int32]]) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum([len(each) for each in lengths])[:-1])


def find_list_limit(balance: Balance, measures: Sequence[NDArray[np.float32]]) -> ListLimit | None:
    """What cuts the rows of some blocks; None if no row may be too long."""
    budget = balance.budget
    if budget is None or budget.long_rows != "truncate":
        return None
    # a measure can be rounded to the limit
    most = np.float32(budget.tokens)
    is_long = any(bool((each >= most).any()) for each in measures)
    return ListLimit(balance.column, budget.tokens) if is_long else None
