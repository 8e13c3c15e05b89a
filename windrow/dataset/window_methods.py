"""The methods of DatasetPipeline that make windows and act on each of them: cut, shuffle, sort, pack, join, split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

from windrow.core.errors import PlanError
from windrow.dataset.argument_checks import check_blocks, check_places, check_sort
from windrow.dataset.joined_mixture import join_documents
from windrow.dataset.logical_plan import LogicalPlan, check_columns, windowed_plan
from windrow.dataset.readable import Readable
from windrow.dataset.transforms.transform_methods import Transformable
from windrow.pipeline.exchange.layouts import Border, EqualBlocks, RowsLayout, RowSpan, WindowLayout
from windrow.pipeline.tasks.key_columns import WindowSort
from windrow.pipeline.tasks.sequence_packing import LongDocuments, SequencePacking
from windrow.shuffle.order.epoch_plan import WindowCut

Self = TypeVar("Self", bound="WindowMethods")


class WindowMethods(Readable):
    """Base class of DatasetPipeline: what is done to each window."""

    def random_shuffle_each_window(self: Self, *, seed: int | None = None) -> Self:
        """Shuffle the rows of each window, in a new order every epoch; allowed once per pipeline.

        Each epoch also permutes the blocks before they are cut into windows, so that a
        window mixes rows from all over the dataset.

        Parameters
        ----------
        seed
            Any integer. The same data, windows and seed give the same order on every machine
            and executor. None: a seed is drawn now; ``repr`` shows it.

        Raises
        ------
        PlanError
            If the pipeline already shuffles, or the seed is not an integer.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> pipe = windrow.read_parquet("numbers.parquet").repeat()
        >>> pipe.random_shuffle_each_window(seed=7)
        DatasetPipeline
          Parquet('...': 1 fragment, 1 row group; 1 of 1 column)
          .repeat()
          .random_shuffle_each_window(seed=7)
        """
        return type(self)(self._plan.shuffled(seed))

    def randomize_block_order_each_window(self: Self, *, seed: int | None = None) -> Self:
        """Shuffle blocks instead of rows, in a new order every epoch; in place of ``random_shuffle_each_window``.

        Each epoch permutes the blocks before they are cut into windows. Rows that are stored together stay together,
        so this costs no more than reading in order, and mixes far less.

        Parameters
        ----------
        seed
            As in `random_shuffle_each_window`.

        Raises
        ------
        PlanError
            If the pipeline already shuffles, or the seed is not an integer.

        Examples
        --------
        >>> import numpy as np, windrow
        >>> ds = windrow.from_numpy({"x": np.arange(8)}, target_block_bytes=16)
        >>> pipe = ds.repeat(1).randomize_block_order_each_window(seed=7)
        >>> [row["x"] for row in pipe.iter_rows()]
        [4, 5, 0, 1, 2, 3, 6, 7]
        """
        return type(self)(replace(self._plan.shuffled(seed), shuffles_blocks=True))

    def sort_each_window(
        self: Self, key: str | Sequence[str], descending: bool | Sequence[bool] = False
    ) -> Self:
        """Sort the rows of each window, such as texts by length, so that those of a batch are similar.

        With ``random_shuffle_each_window`` before it, windows mix rows from all over the dataset, and rows with
        equal keys come in a random order; without it, in stored order. Each window is read whole before its
        first row is delivered, and sorted in one place: on threads in this process, on Ray in the coordinator. That
        takes 80 bytes a row and three times the keys beside the window. `Dataset.sort` sorts all rows, once.

        Parameters
        ----------
        key, descending
            As in `Dataset.sort`: which values have an order, and where NaN and nulls come.

        Raises
        ------
        PlanError
            If a column does not exist or has no order, the pipeline already sorts or packs, or an argument is
            invalid.

        Examples
        --------
        >>> import windrow
        >>> ds = windrow.from_items([{"x": 3}, {"x": 1}, {"x": 2}, {"x": 0}], target_block_bytes=16)
        >>> pipe = ds.window(blocks_per_window=1).sort_each_window("x")
        >>> [row["x"] for row in pipe.iter_rows()]
        [1, 3, 0, 2]
        """
        keys, down = check_sort(key, descending, "sort_each_window()")
        return type(self)(self._plan.sorted(WindowSort(keys, down)))

    def pack(
        self: Self,
        seq_len: int,
        columns: str | Sequence[str],
        *,
        eos: float | Mapping[str, float] | None = None,
        split_documents: bool = True,
        pad: float | Mapping[str, float] | None = None,
        long_documents: LongDocuments = "error",
        boundaries: bool = False,
    ) -> Self:
        """Pack documents into sequences of one length, for training language models; allowed once per pipeline.

        Each row is a document: a list of tokens. The documents of an epoch are laid end to end, in the order in
        which the same pipeline without `pack` delivers them, and cut every ``seq_len`` tokens. A document goes
        on in the next sequence, also across windows. So a sequence is a row: batch sizes, steps and ``split``
        count sequences, and treat the last step as they do that of rows. The fewer than ``seq_len`` tokens at
        the end of an epoch are left out. The first epoch counts tokens as it reads them.

        Behind `windrow.mixture`, documents come in the order of the mixture, so sequences join documents of several
        sources. To know where each comes, this call reads the lists of all sources first, unless ``length_column`` of
        the mixture has read them. ``split_documents=False`` is not for mixtures.

        With ``split_documents=False``, no document is cut: those of a window are placed whole into sequences by best
        fit, the longest first, and the rest of each sequence is padding. Documents of equal length take turns in the
        order of the shuffle, in which those of a sequence stand, too. With a shuffle, the sequences of a window come in
        a random order. How many an epoch has depends on which blocks its windows hold, so epochs can differ.

        Parameters
        ----------
        seq_len
            Tokens of a sequence.
        columns
            The columns to deliver; others are dropped, but read. A column of lists of numbers becomes
            (rows, ``seq_len``) in a batch; the lists of a row must be of one length. A number that is not in a
            list is repeated for each token of its row, so that an id tells the documents of a sequence apart.
        eos
            Token to put behind each document that has tokens; with several columns of lists, a dict with one for
            each. None: none.
        split_documents
            Whether a document goes on in the next sequence. False: it is placed whole.
        pad
            The value of padding: a number for all columns, or a dict of those that differ from 0. None: 0.
        long_documents
            What becomes of documents of more than ``seq_len`` tokens, with ``eos``, that are to be placed whole: an
            ``"error"``; ``"cut"`` every ``seq_len`` tokens; or ``"drop"``, and ``stats().run.dropped_documents``
            counts them.
        boundaries
            Whether batches tell where documents begin, in two more columns of (rows, ``seq_len``) int32.
            ``position_ids`` is the place of a token in its segment, the part of a document that is in one sequence.
            ``segment_ids`` numbers the segments of a sequence from 0 on. Padding is a segment of its own, of number
            -1. `cu_seqlens` makes of ``position_ids`` what kernels for attention over variable lengths take.

        Raises
        ------
        PlanError
            If an argument is invalid or does not fit the columns, or the pipeline already packs.
        TransformError
            While reading, if lists have nulls, or those of a row differ in length; or if a document is too long.

        Examples
        --------
        >>> import windrow
        >>> documents = windrow.from_items([{"tokens": [1, 2, 3]}, {"tokens": [4]}, {"tokens": [5, 6]}])
        >>> pipe = documents.repeat(1).pack(4, "tokens", eos=0)
        >>> [batch["tokens"].tolist() for batch in pipe.iter_batches(batch_size=2)]
        [[[1, 2, 3, 0], [4, 0, 5, 6]]]
        >>> pipe = documents.repeat(1).pack(4, "tokens", split_documents=False, pad=-1, boundaries=True)
        >>> (batch,) = pipe.iter_batches()
        >>> batch["tokens"].tolist()
        [[1, 2, 3, 4], [5, 6, -1, -1]]
        >>> batch["segment_ids"].tolist()
        [[0, 0, 0, 1], [0, 0, -1, -1]]
        >>> windrow.cu_seqlens(batch["position_ids"])
        (array([0, 3, 4, 6, 8], dtype=int32), 3)
        """
        packing = SequencePacking(
            seq_len,
            columns,
            eos,
            split_documents=split_documents,
            pad=pad,
            long_documents=long_documents,
            boundaries=boundaries,
        )
        plan = self._plan
        return type(self)(plan.packed(packing) if plan.mixture is None else join_documents(plan, packing))

    def foreach_window(self: Self, fn: Callable[[Any], Any]) -> Self:
        """Apply transforms to the rows of each window.

        Windows are cut again in every epoch, so a transform of rows does the same in all of them: this is the same as
        to call the transforms here.

        Parameters
        ----------
        fn
            Called once, with an object that has the transforms of a Dataset (``map_batches``, ``map``, ``filter``,
            ``add_column`` ...); returns what the last one of them returned.

        Raises
        ------
        PlanError
            If ``fn`` does anything else, or returns anything else.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.range(3).window().foreach_window(lambda rows: rows.map(lambda row: {"x": row["id"] * 2}))
        >>> [row["x"] for row in pipe.iter_rows()]
        [0, 2, 4]
        """
        returned = fn(_WindowRows(self._plan))
        if not isinstance(returned, _WindowRows):
            raise PlanError(
                f"foreach_window: the function returned {type(returned).__qualname__}; return what the last transform "
                "returned, as in foreach_window(lambda rows: rows.map_batches(f))"
            )
        return type(self)(returned._plan)

    def rewindow(
        self: Self, *, blocks_per_window: int | None = None, bytes_per_window: int | str | None = None
    ) -> Self:
        """Cut each epoch into windows of another size, in place of the present one.

        Parameters
        ----------
        blocks_per_window, bytes_per_window
            As in `Dataset.window`.

        Raises
        ------
        PlanError
            If both sizes are given, or a size is invalid.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.range(6).window(blocks_per_window=1)
        >>> pipe.rewindow(bytes_per_window="1GiB")
        DatasetPipeline
          range(6): 1 fragment, 1 block; 1 column
          .window(bytes_per_window='1.0GiB')
        """
        plan = replace(self._plan, cut=None)
        return type(self)(plan.windowed(blocks_per_window, bytes_per_window))

    def repartition_each_window(self: Self, n: int) -> Self:
        """Return the same windows, the rows of each in ``n`` blocks of equal rows, give or take one.

        Blocks are what transforms, ``randomize_block_order_each_window`` and tasks work on. Row counts that are
        not known are counted first.

        Raises
        ------
        PlanError
            If ``n`` is not an integer from 1 to 131,072, or the pipeline already shuffles, sorts or packs.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.range(100).repartition(4).window(blocks_per_window=2)
        >>> pipe.repartition_each_window(5).explain().blocks
        10
        """
        number = check_blocks(n)
        return self._rearranged(EqualBlocks(number), f"repartition_each_window({number})")

    def union(self: Self, *others: Self) -> Self:
        """Return the windows of this pipeline and of others in turns: the first of each, then the second of each.

        Windows are those of the stored order. Columns have the same types. Epochs and options are those of this
        pipeline.

        Raises
        ------
        PlanError
            If an argument is not a pipeline, one already shuffles, sorts or packs, or repeats another number of
            times.
        SourceError
            If columns or types do not unify; the message names the column.

        Examples
        --------
        >>> import windrow
        >>> left = windrow.range(4).repartition(2).window(blocks_per_window=1)
        >>> pipe = left.union(windrow.range(1).window())
        >>> [row["id"] for row in pipe.iter_rows()]
        [0, 1, 0, 2, 3]
        """
        for other in others:
            if not isinstance(other, type(self)):
                raise PlanError(f"union() got {type(other).__qualname__}; give it a DatasetPipeline")
        plans = [_stored_windows(pipe._plan, "union()") for pipe in (self, *others)]
        if len({plan.epochs for plan in plans}) > 1:
            raise PlanError("union() got pipelines that repeat differently: call repeat() on the union")
        check_columns(plans, "union()")
        return type(self)(
            windowed_plan(plans, WindowLayout(tuple(plan.window_cut for plan in plans)), "union()")
        )

    def split_at_indices(self: Self, indices: Sequence[int]) -> list[Self]:
        """Split the rows of each window, in stored order, before each of some row numbers within the window.

        Returns
        -------
        list[DatasetPipeline]
            One more than indices, each with as many windows as this pipeline, some of which can be empty.

        Raises
        ------
        PlanError
            If indices are negative or do not ascend, or the pipeline already shuffles, sorts or packs.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.range(6).repartition(2).window(blocks_per_window=1)
        >>> head, tail = pipe.split_at_indices([1])
        >>> [row["id"] for row in head.iter_rows()], [row["id"] for row in tail.iter_rows()]
        ([0, 3], [1, 2, 4, 5])
        """
        places = check_places(indices, "split_at_indices")
        borders = [Border(rows=0), *(Border(rows=place) for place in places), Border()]
        call = f"split_at_indices({places})"
        return [
            self._rearranged(RowSpan(*span), f"{call}[{at}]") for at, span in enumerate(pairwise(borders))
        ]

    def _rearranged(self: Self, rows: RowsLayout, call: str) -> Self:
        plan = _stored_windows(self._plan, call)
        return type(self)(windowed_plan([plan], WindowLayout((plan.window_cut,), rows), call))


def join_datasets(datasets: Iterable[Readable | Callable[[], Readable]]) -> LogicalPlan:
    """Return the plan in which each dataset is a window, in this order."""
    if isinstance(datasets, Readable) or not isinstance(datasets, Iterable):
        raise PlanError(f"from_iterable() got {type(datasets).__qualname__}; give it a list of datasets")
    plans = [_plan_of_dataset(each, number) for number, each in enumerate(datasets)]
    if not plans:
        raise PlanError("from_iterable() got no dataset: give it at least one")
    call = f"from_iterable of {len(plans)} datasets"
    check_columns(plans, call)
    return windowed_plan(plans, WindowLayout((WindowCut(),) * len(plans)), call)


def _plan_of_dataset(given: Any, number: int) -> LogicalPlan:
    try:
        dataset = given() if callable(given) else given
    except Exception as error:
        raise PlanError(
            f"from_iterable(): function {number} failed: {type(error).__name__}: {error}; it is called without "
            "arguments and returns a dataset"
        ) from error
    if not isinstance(dataset, Readable) or isinstance(dataset, WindowMethods):
        raise PlanError(
            f"from_iterable() got {type(dataset).__qualname__} as number {number}; give it datasets, or functions "
            "that return one"
        )
    return dataset._plan


def _stored_windows(plan: LogicalPlan, call: str) -> LogicalPlan:
    if not plan.delivers_blocks:
        raise PlanError(
            f"{call} comes after a shuffle, a sort or pack(), which it would undo: call it before them"
        )
    return replace(plan, cut=plan.window_cut)


class _NoMethodError(PlanError, AttributeError):
    """So that ``hasattr`` is False."""


@dataclass(frozen=True, repr=False)
class _WindowRows(Transformable):
    """The rows of a window, with the transforms that can be applied to them."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _NoMethodError(
            f"foreach_window: a window has no {name}(): its rows can be transformed here, and nothing else. Shuffle "
            "with random_shuffle_each_window()"
        )
