"""Random pipelines over in-memory tables, the rows that they must deliver, and ways to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.laws.reference import Assigned, assign_as_lists, divide_by_cost, order_epoch
from windrow.core.source import BlockAddress, BlockTable, CorruptBlockError, SourceIdentity
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.plan.job import Job, Options
from windrow.pipeline.plan.memory_budget import budget_program
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.key_columns import WindowSort
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.sequence_packing import SequencePacking
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.shard_assignment import Equal
from windrow.shuffle.order.token_budget import TokenBudget

__all__ = ["CASES", "Case", "Rows"]
# of numbers, or with packing of sequences
Rows = list[Any]
How = Literal["batches", "rows", "torch"]


@dataclass(frozen=True)
class BlocksReader:
    """Generates a block from its address: the numbers of its rows, and columns derived from them."""

    keeps: Callable[[int], bool] | None
    corrupt: frozenset[str] = frozenset()

    def read(self, address: BlockAddress) -> pa.Table:
        if address.origin in self.corrupt:
            raise CorruptBlockError(f"{address.origin} is corrupt")
        numbers = [x for x in range(*address.locator) if self.keeps is None or self.keeps(x)]
        return make_table(numbers)

    def parts(self, address: BlockAddress) -> Iterator[pa.Table]:
        yield self.read(address)


def make_table(numbers: Sequence[int]) -> pa.Table:
    x = np.array(numbers, dtype=np.int64)
    return pa.table({"x": x, "half": x.astype(np.float32) / 2, "flag": (x % 2).astype(np.uint8)})


@dataclass(frozen=True)
class BlocksSource:
    """Blocks with given row counts, optionally with a filter or with corrupt blocks."""

    sizes: tuple[int, ...]
    keeps: Callable[[int], bool] | None = None
    corrupt: frozenset[int] = frozenset()

    @property
    def schema(self) -> pa.Schema:
        return make_table([]).schema

    @property
    def blocks(self) -> BlockTable:
        rows = np.array(self.sizes, dtype=np.int64)
        return BlockTable(rows, rows * 13, rows * 13, self.keeps is None, bytes_exact=True)

    @property
    def reader(self) -> BlocksReader:
        return BlocksReader(self.keeps, frozenset(f"block {block}" for block in self.corrupt))

    @property
    def fingerprint(self) -> str:
        return f"blocks {self.sizes}"

    def identity(self, files: int | None = None) -> SourceIdentity:
        return SourceIdentity(
            self.fingerprint, "x", 1, sum(self.sizes), 1, "" if self.keeps is None else "keeps"
        )

    @property
    def contents(self) -> str:
        return f"{hash((self.sizes, self.keeps is None)):x}"

    @property
    def null_counts(self) -> dict[str, int | None]:
        return dict.fromkeys(self.schema.names, 0)

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        return tuple(BlockAddress(f"block {block}", self.stored(block)) for block in blocks)

    def stored(self, block: int) -> tuple[int, int]:
        """The first row number of a block, and the one after its last."""
        return sum(self.sizes[:block]), sum(self.sizes[: block + 1])

    def describe(self) -> str:
        return f"{len(self.sizes)} blocks"


def keep_some(x: int) -> bool:
    """A filter that drops all rows of some blocks, and some rows of every block."""
    return x % 3 == 1 and x % 20 < 12


def negate(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "x": -batch["x"]}


def drop_some(batch: dict[str, Any]) -> dict[str, Any]:
    selected = (batch["x"] % 3 == 1) & (batch["x"] % 20 < 12)
    return {name: column[selected] for name, column in batch.items()}


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: np.repeat(column, 2, axis=0) for name, column in batch.items()}


def add_lists(batch: dict[str, Any]) -> pa.Table:
    """Add lists of as many items as ``x`` says, and one of one item more."""
    columns = {name: pa.array(values) for name, values in batch.items()}
    for name, more in {"items": 0, "mask": 0, "longer": 1}.items():
        lists = [range(x + more) for x in batch["x"].tolist()]
        columns[name] = pa.array(lists, pa.list_(pa.int16()))
    return pa.table(columns)


EOS = -1


def tokens_of(x: int) -> Rows:
    """The tokens of a row if it is a document; none for some."""
    return [8 * x + at for at in range(abs(x) % 4)]


def tokenize(batch: dict[str, Any]) -> pa.Table:
    tokens = [tokens_of(x) for x in batch["x"].tolist()]
    half = [np.array([x, *rest], np.float32) / 2 for x, *rest in (each or [0] for each in tokens)]
    lists = [values[: len(each)] for values, each in zip(half, tokens, strict=True)]
    columns = {"x": pa.array(tokens, pa.list_(pa.int64())), "half": pa.array(lists, pa.list_(pa.float32()))}
    return pa.table({**columns, "flag": batch["flag"]})


Change = Literal["none", "negated", "filtered", "dropped", "doubled", "listed"]


@dataclass(frozen=True)
class Case:
    """A pipeline and its shards.

    Attributes
    ----------
    sizes
        Stored rows of each block.
    change
        Transform of rows before the shuffle.
    tight
        Whether to use the minimum memory limit that the plan accepts.
    cache, cache_limit
        Where decoded blocks are cached, and the size limit.
    corrupt
        The blocks that are corrupt and skipped; None: corruption is an error.
    packed
        Length of the sequences that rows are packed into, after the change; 0: they are not.
    shuffles_blocks
        Whether the shuffle leaves the rows of each block in order.
    sorted
        Whether the rows of each window are sorted: odd ones first.
    balance
        How costs divide the rows of each step, which ``x`` measures, or where long ones are cut, ``items``; with
        packing the sequences.
    """

    sizes: tuple[int, ...]
    cut: WindowCut = WindowCut()
    seed: int | None = 7
    epochs: int = 1
    shards: int = 1
    batch_rows: int = 1
    equal: Equal = False
    drop_last: bool = False
    change: Change = "none"
    tight: bool = False
    prefetch_windows: int = 1
    cache: Literal["memory", "disk"] | None = None
    cache_limit: int | None = None
    corrupt: frozenset[int] | None = None
    packed: int = 0
    shuffles_blocks: bool = False
    sorted: bool = False
    balance: Balance | None = None

    @property
    def source(self) -> BlocksSource:
        keeps = keep_some if self.change == "filtered" else None
        return BlocksSource(self.sizes, keeps, self.corrupt or frozenset())

    @property
    def most_items(self) -> int | None:
        """The items to which lists are cut; None: they are not."""
        budget = None if self.balance is None else self.balance.budget
        return budget.tokens if budget is not None and budget.long_rows == "truncate" else None

    @property
    def rows_known(self) -> bool:
        return self.change in ("none", "negated", "listed") and self.corrupt is None and not self.packed

    def job(self, executor: str | Executor) -> Job:
        functions = {"negated": negate, "dropped": drop_some, "doubled": double, "listed": add_lists}
        before = (
            (MapBatches(functions[self.change], preserves_rows=self.change in ("negated", "listed")),)
            if self.change in functions
            else ()
        )
        packing = None
        if self.packed:
            before = (*before, MapBatches(tokenize))
            packing = SequencePacking(self.packed, ["x", "half", "flag"], {"x": EOS, "half": EOS / 2})
        job = Job(
            source=self.source,
            cut=self.cut,
            epochs=self.epochs,
            seed=self.seed,
            before=before,
            options=Options(
                executor=executor,
                prefetch_windows=self.prefetch_windows,
                progress=False,
                cache=self.cache,
                cache_limit=self.cache_limit if self.cache else None,
                on_error="raise" if self.corrupt is None else "skip",
            ),
            packing=packing,
            shuffles_blocks=self.shuffles_blocks,
            sort=WindowSort(("flag",), (True,)) if self.sorted else None,
        )
        if not self.tight or isinstance(executor, str):
            return job
        program = Program(job, self.shards, self.equal, tuple(range(self.shards)))
        tokens = None if self.balance is None else self.balance.budget
        batch_rows = self.batch_rows if tokens is None else program.batch_size(tokens)
        budget = budget_program(program, executor.resources(), batch_rows)
        least = budget.window_bytes + budget.runs_bytes + budget.tasks_bytes + budget.processes_bytes
        least += budget.cache_bytes if self.cache_limit else 0
        options = replace(job.options, memory_limit=max(1, least))
        return replace(job, options=options)

    def values(self) -> list[Rows]:
        """The values that each block delivers, in stored order."""
        source = self.source
        blocks = [list(range(*source.stored(block))) for block in range(len(self.sizes))]
        change: Callable[[Rows], Rows] = {
            "none": lambda rows: rows,
            "negated": lambda rows: [-x for x in rows],
            "filtered": lambda rows: [x for x in rows if keep_some(x)],
            "dropped": lambda rows: [x for x in rows if keep_some(x)],
            "doubled": lambda rows: [x for x in rows for _ in range(2)],
            "listed": lambda rows: rows,
        }[self.change]
        corrupt = self.corrupt or frozenset()
        return [[] if block in corrupt else change(rows) for block, rows in enumerate(blocks)]

    def groups(self, batch_rows: int | None = None) -> tuple[int, int] | None:
        """Of how many steps the rows are sorted by length, and the rows of a step; None: they are not."""
        steps = None if self.balance is None else self.balance.group_steps
        return None if steps is None else (steps, self.shards * (batch_rows or self.batch_rows))

    def order(self, epoch: int, groups: tuple[int, int] | None = None) -> Rows:
        """The values of an epoch in their order: shuffled, then in groups by length."""
        rows = order_epoch(
            self.source.blocks,
            self.values(),
            cut=self.cut,
            seed=self.seed,
            epoch=epoch,
            shuffles_blocks=self.shuffles_blocks,
            sort_key=(lambda x: -(x % 2)) if self.sorted else None,
            groups=groups,
        )
        if not self.packed:
            return rows
        tokens = [token for x in rows if (document := tokens_of(x)) for token in (*document, EOS)]
        whole = len(tokens) - len(tokens) % self.packed
        return [tokens[at : at + self.packed] for at in range(0, whole, self.packed)]

    def measures(self, order: Rows) -> list[Any]:
        """What the rows of an order measure: their values, or of sequences the tokens of each of their segments."""
        return [_measure_segments(sequence) for sequence in order] if self.packed else order

    def assigned(self, epoch: int, batch_rows: int | None = None) -> Assigned:
        """The values that each shard must receive, by batch."""
        order = self.order(epoch, self.groups(batch_rows))
        B = self.batch_rows if batch_rows is None else batch_rows
        if self.balance is None:
            assigned = assign_as_lists(len(order), self.shards, B, self.equal, drop_last=self.drop_last)
        else:
            measures = self.measures(order)
            assigned = divide_by_cost(
                len(order), self.shards, B, self.equal, self.balance, measures, drop_last=self.drop_last
            )
        batches = [[[order[row] for row in batch] for batch in shard] for shard in assigned.batches]
        return Assigned(batches, assigned.padded, assigned.left_out)


def _measure_segments(sequence: Rows) -> list[int]:
    """The tokens of each part of a document in a sequence: one ends with `EOS`, or the sequence."""
    ends = [at + 1 for at, token in enumerate(sequence) if token == EOS]
    borders = [0, *ends, *([] if ends and ends[-1] == len(sequence) else [len(sequence)])]
    return [stop - first for first, stop in pairwise(borders)]


CUTS = st.one_of(
    st.just(WindowCut()),
    st.builds(WindowCut, blocks_per_window=st.integers(1, 5)),
    st.builds(WindowCut, bytes_per_window=st.integers(20, 600)),
)
BALANCES = st.builds(
    Balance,
    st.just("x"),
    st.sampled_from(["length", "(length - 50) ** 2", "0 * length"]),
    rows=st.sampled_from(["equal", "free"]),
    microbatches=st.sampled_from([1, 1, 3]),
)
BUDGETS = st.sampled_from(
    [
        TokenBudget(300),
        TokenBudget(900, padded=True),
        TokenBudget(60, "drop"),
        TokenBudget(250, "drop", padded=True),
        TokenBudget(60, "truncate"),
        TokenBudget(90, "truncate", padded=True),
    ]
)
BUDGETED = st.builds(Balance.with_budget, BALANCES, BUDGETS)
GROUPED = st.builds(Balance.with_groups, BALANCES, st.integers(2, 4))


def _allowed(case: Case) -> Case:
    """The case without what does not go with the rest of it."""
    case = replace(case, sorted=case.sorted and not case.packed)
    is_by_length = case.balance is not None and (case.balance.budget or case.balance.group_steps)
    is_refused = is_by_length if case.packed else case.sorted or case.change == "negated"
    if is_refused:
        return replace(case, balance=None)
    if case.balance is not None and case.most_items is not None:
        assert case.balance.budget is not None
        balance = replace(case.balance, column="items").with_budget(case.balance.budget)
        return replace(case, change="listed", balance=balance)
    return case


CASES = st.builds(
    Case,
    sizes=st.lists(st.integers(0, 25), max_size=9).map(tuple),
    cut=CUTS,
    seed=st.none() | st.integers(-5, 2**64),
    epochs=st.integers(1, 3),
    shards=st.integers(1, 4),
    batch_rows=st.integers(1, 20),
    equal=st.sampled_from([False, True, "pad"]),
    drop_last=st.booleans(),
    change=st.sampled_from(["none", "none", "negated", "filtered", "dropped", "doubled"]),
    prefetch_windows=st.integers(0, 2),
    cache=st.sampled_from([None, None, "memory", "disk"]),
    # blocks of 25 rows take 325 bytes decoded, and some thousand bytes as a file
    cache_limit=st.none() | st.sampled_from([1, 300, 800, 20_000]),
    # few enough to be skipped
    corrupt=st.sampled_from([False, False, True]).flatmap(
        lambda any_: st.frozensets(st.integers(0, 8), max_size=4) if any_ else st.none()
    ),
    packed=st.sampled_from([0, 0, 0, 0, 0, 0, 1, 3, 7]),
    shuffles_blocks=st.sampled_from([False, False, False, False, True]),
    sorted=st.sampled_from([False, False, False, True]),
    balance=st.none() | BALANCES | BUDGETED | GROUPED,
).map(_allowed)
