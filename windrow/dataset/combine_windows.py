"""Methods of DatasetPipeline that make windows of datasets, of windows, and datasets of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from windrow.core.errors import PlanError
from windrow.dataset.argument_checks import check_blocks, check_places
from windrow.dataset.epoch_iteration import read_windows
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.operations.derive import make_parent, windowed_plan
from windrow.dataset.readable import Readable
from windrow.pipeline.exchange.layouts import Border, EqualBlocks, RowsLayout, RowSpan, WindowLayout
from windrow.pipeline.exchange.rearranged_source import combine_schemas
from windrow.shuffle.order.epoch_plan import WindowCut

if TYPE_CHECKING:
    from windrow.dataset.dataset import Dataset

__all__ = ["CombineWindows"]

Self = TypeVar("Self", bound="CombineWindows")


class CombineWindows(Readable):
    """Base class of DatasetPipeline: windows made of datasets and of other windows."""

    @classmethod
    def from_iterable(cls: type[Self], datasets: Iterable[Dataset | Callable[[], Dataset]]) -> Self:
        """Return a pipeline in which each dataset is a window, in this order, in every epoch.

        So the order of the datasets can be a curriculum. A shuffle mixes the rows within each of them.

        Parameters
        ----------
        datasets
            Datasets with the same columns and types, or functions that return one, each of which is called now.
            Options are those of the first one.

        Raises
        ------
        PlanError
            If there are none, or something else is among them.
        SourceError
            If columns or types do not unify; the message names the column.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.DatasetPipeline.from_iterable([windrow.range(2), lambda: windrow.range(3)])
        >>> [row["id"] for row in pipe.iter_rows()]
        [0, 1, 0, 1, 2]
        """
        if isinstance(datasets, Readable) or not isinstance(datasets, Iterable):
            raise PlanError(f"from_iterable() got {type(datasets).__qualname__}; give it a list of datasets")
        plans = [_plan_of_dataset(each, number) for number, each in enumerate(datasets)]
        if not plans:
            raise PlanError("from_iterable() got no dataset: give it at least one")
        call = f"from_iterable of {len(plans)} datasets"
        _check_columns(plans, call)
        return cls(windowed_plan(plans, WindowLayout((WindowCut(),) * len(plans)), call))

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
        _check_columns(plans, "union()")
        return type(self)(
            windowed_plan(plans, WindowLayout(tuple(plan.window_cut for plan in plans)), "union()")
        )

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

    def iter_datasets(self) -> Iterator[Dataset]:
        """Iterate over the windows of all epochs as datasets in memory: the rows of each as they are delivered.

        Windows without rows are left out. While one is read, the next ones are prepared.

        Raises
        ------
        PlanError
            If the pipeline packs: sequences go over the borders of windows.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.range(6).repartition(3).window(blocks_per_window=2)
        >>> [dataset.count() for dataset in pipe.iter_datasets()]
        [4, 2]
        """
        if self._plan.packing is not None:
            raise PlanError(
                f"iter_datasets() comes after {self._plan.packing}, whose sequences go over windows"
            )
        return _read_datasets(self._plan)

    def _rearranged(self: Self, rows: RowsLayout, call: str) -> Self:
        plan = _stored_windows(self._plan, call)
        return type(self)(windowed_plan([plan], WindowLayout((plan.window_cut,), rows), call))


def _read_datasets(plan: LogicalPlan) -> Iterator[Dataset]:
    from windrow.dataset.sources.from_memory import from_arrow

    with closing(read_windows(plan.job())) as windows:
        yield from map(from_arrow, windows)


def _plan_of_dataset(given: Any, number: int) -> LogicalPlan:
    try:
        dataset = given() if callable(given) else given
    except Exception as error:
        raise PlanError(
            f"from_iterable(): function {number} failed: {type(error).__name__}: {error}; it is called without "
            "arguments and returns a dataset"
        ) from error
    if not isinstance(dataset, Readable) or isinstance(dataset, CombineWindows):
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


def _check_columns(plans: Sequence[LogicalPlan], call: str) -> None:
    known = [make_parent(plan).known_schema for plan in plans]
    if None not in known:
        combine_schemas(known, call)
