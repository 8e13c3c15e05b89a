"""Methods of DatasetPipeline that act on each of its windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from windrow.core.errors import PlanError
from windrow.dataset.observed_runs import ObservedRuns
from windrow.dataset.operations.derive import check_sort
from windrow.dataset.transform_methods import Transformable
from windrow.pipeline.tasks.key_columns import WindowSort

__all__ = ["WindowMethods"]

Self = TypeVar("Self", bound="WindowMethods")


class WindowMethods(ObservedRuns):
    """Base class of DatasetPipeline: what is done to each window."""

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
          range(6): 1 fragments, 1 blocks; 1 columns
          .window(bytes_per_window='1.0GiB')
        """
        plan = replace(self._plan, cut=None)
        return type(self)(plan.windowed(blocks_per_window, bytes_per_window))

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
