"""The transforms of Dataset and DatasetPipeline that call functions on batches and rows, filter or sample."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from windrow.core.errors import PlanError
from windrow.core.user_functions import check_function, function_name
from windrow.dataset.argument_checks import check_seed
from windrow.dataset.logical_plan import DRAWN_SEED_BITS
from windrow.dataset.transforms.column_methods import ResourceOptions, on_tables, take_resources
from windrow.dataset.transforms.media_methods import MediaMethods
from windrow.io.catalog.filters import check_filter, format_expression
from windrow.pipeline.tasks.actor_pool import Compute, WorkerResources
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_functions import (
    FilterExpression,
    FilterRows,
    FlatMapRows,
    FunctionFormat,
    MapRows,
    SampleRows,
    is_expression,
)

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from typing_extensions import Unpack

Self = TypeVar("Self", bound="Transformable")


class FunctionOptions(ResourceOptions, total=False):
    """Options of functions on rows: the arguments of a class, and what Ray reserves for each actor."""

    fn_constructor_args: tuple[Any, ...]
    fn_constructor_kwargs: Mapping[str, Any] | None


@dataclass(frozen=True, repr=False)
class Transformable(MediaMethods):
    """Base class of what has a logical plan to add transforms to.

    Transforms before the shuffle are applied to blocks as they are read, and those after it to shuffled rows.
    Consecutive ones run in one task, from one to the next without a copy in between, unless they have processes of
    their own.
    """

    def map_batches(
        self: Self,
        fn: Callable[..., Any],
        *,
        batch_format: FunctionFormat = "numpy",
        batch_size: int | None = None,
        fn_args: tuple[Any, ...] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: tuple[Any, ...] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        preserves_rows: bool = True,
        rng: bool = False,
        compute: Compute | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> Self:
        """Apply a function to batches of rows, in every epoch.

        It is applied to blocks as they are read. After ``random_shuffle_each_window``, it is applied to
        shuffled rows: it must return one row for each input row, ``batch_size`` is an upper limit,
        and which rows share a batch is not specified.

        Parameters
        ----------
        fn
            Called as ``fn(batch, *fn_args, **fn_kwargs)``; returns a dict of arrays, a
            DataFrame or a Table. It must be pure, because it runs again in every epoch and
            after a failure, and thread-safe. Its input arrays are read-only. Or a class whose objects are
            such functions: each worker makes one object and uses it for all its batches, one at a time, for
            models, tokenizers and connections.
        batch_format
            Type of the input batch: ``"numpy"`` (a dict of arrays, (rows, ...) each), ``"pandas"``, ``"pyarrow"`` or
            ``"torch"`` (a dict of tensors; columns that are not numbers stay arrays).
        batch_size
            Rows per batch. Batches never cross block boundaries, so the last batch of a block
            can be short. None: one batch per block, or any size after the shuffle.
        fn_args, fn_kwargs
            Further arguments of ``fn``.
        fn_constructor_args, fn_constructor_kwargs
            Arguments of the class.
        preserves_rows
            True: output row i comes from input row i. False, which is not possible after the shuffle:
            ``fn`` can return any number of rows, so row counts are unknown until the data has been read.
        rng
            Whether ``fn`` also gets ``rng=``, a `windrow.RowGenerator`. Its random numbers depend on the seed of the
            shuffle, the epoch and the position of each row only, so that a retry, a resume or another number of
            workers gives the same rows. They are the same in every epoch where they can decide how many rows there
            are: with ``preserves_rows=False``, and where a filter or another such transform follows.
        compute
            Where ``fn`` runs. ``"tasks"``: on the workers that read, and after the shuffle in the process that reads
            the shard. None: there too; but on threads, a function of a module that turns out to hold the GIL moves to
            processes. ``"processes"``: in worker processes of its own, at most one a core, for
            functions that hold the GIL. A `windrow.ActorPool`, or ``"actors"`` for a pool of one: in as many as it
            says. On threads, such processes run on this machine; on Ray they are actors on any node. Naming a resource
            means ``"actors"``.
        num_cpus, num_gpus, memory, resources
            What Ray reserves for each actor; ``num_gpus`` can be a fraction. By default one CPU, or none beside a GPU,
            a custom resource, or with ``compute="processes"``. Threads reserve nothing.

        Raises
        ------
        PlanError
            If an argument is invalid, or for ``preserves_rows=False`` after the shuffle. When the run starts: if
            ``fn`` cannot be pickled for other processes.

        Examples
        --------
        >>> import windrow
        >>> ds = windrow.from_items([{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}])
        >>> even = ds.map_batches(lambda batch: {"x": batch["x"][batch["x"] % 2 == 0]}, preserves_rows=False)
        >>> even.take()
        [{'x': 2}, {'x': 4}]
        """
        return self._mapped(
            MapBatches(
                fn,
                batch_format,
                batch_size,
                fn_args,
                {} if fn_kwargs is None else fn_kwargs,
                preserves_rows,
                fn_constructor_args,
                {} if fn_constructor_kwargs is None else fn_constructor_kwargs,
                rng,
                compute,
                WorkerResources(num_cpus, num_gpus, memory, resources),
            )
        )

    def map(
        self: Self,
        fn: Callable[..., Any],
        *,
        fn_args: tuple[Any, ...] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        rng: bool = False,
        compute: Compute | None = None,
        **options: Unpack[FunctionOptions],
    ) -> Self:
        """Apply a function to each row, in every epoch.

        Rows are dicts of Python values, tensors arrays. `map_batches` is faster where a function can work on
        arrays.

        Parameters
        ----------
        fn
            Called as ``fn(row, *fn_args, **fn_kwargs)``; returns a row: a dict with the same keys for every row.
            Otherwise as in `map_batches`, where it can be a class too.
        fn_args, fn_kwargs, compute
            As in `map_batches`.
        rng
            Whether ``fn`` also gets ``rng=``, a ``numpy.random.Generator`` of this row's own; see `map_batches`.
        **options
            ``fn_constructor_args``, ``fn_constructor_kwargs``, ``num_cpus``, ``num_gpus``, ``memory`` and
            ``resources``, as in `map_batches`.

        Raises
        ------
        PlanError
            If an argument is invalid.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(3).map(lambda row: {"double": 2 * row["id"]}).take()
        [{'double': 0}, {'double': 2}, {'double': 4}]
        """
        return self._per_row("map", MapRows, fn, True, fn_args, fn_kwargs, rng, compute, options)

    def flat_map(
        self: Self,
        fn: Callable[..., Any],
        *,
        fn_args: tuple[Any, ...] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        rng: bool = False,
        compute: Compute | None = None,
        **options: Unpack[FunctionOptions],
    ) -> Self:
        """Turn each row into any number of rows; only before the shuffle.

        Parameters
        ----------
        fn
            Called as ``fn(row, *fn_args, **fn_kwargs)``; returns a list of rows, each a dict with the same keys.
        fn_args, fn_kwargs, rng, compute, **options
            As in `map`; random numbers are the same in every epoch.

        Raises
        ------
        PlanError
            If an argument is invalid, or after the shuffle.

        Examples
        --------
        >>> import windrow
        >>> words = windrow.from_items([{"text": "to be"}, {"text": ""}])
        >>> words.flat_map(lambda row: [{"word": word} for word in row["text"].split()]).take()
        [{'word': 'to'}, {'word': 'be'}]
        """
        return self._per_row("flat_map", FlatMapRows, fn, False, fn_args, fn_kwargs, rng, compute, options)

    def filter(
        self: Self,
        condition: Callable[..., Any] | pc.Expression,
        *,
        fn_args: tuple[Any, ...] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        compute: Compute | None = None,
        **options: Unpack[FunctionOptions],
    ) -> Self:
        """Keep the rows for which a condition is true.

        Rows are counted in the first pass, since their number is unknown before. ``read_parquet(filter=...)`` is
        faster: it does not read the row groups that hold no such row. After the shuffle, a filter is moved before
        it where no transform stands in between.

        Parameters
        ----------
        condition
            A pyarrow expression, such as ``pc.field("x") > 3``; rows for which it is null are dropped. Or a function,
            called as ``fn(row, *fn_args, **fn_kwargs)`` for each row, a dict of Python values, which returns a bool.
        fn_args, fn_kwargs, compute, **options
            As in `map`, for a function.

        Raises
        ------
        PlanError
            If an argument is invalid, or a transform stands between the shuffle and this call.

        Examples
        --------
        >>> import pyarrow.compute as pc, windrow
        >>> windrow.range(6).filter(pc.field("id") < 2).take()
        [{'id': 0}, {'id': 1}]
        >>> windrow.range(6).filter(lambda row: row["id"] > 3).take()
        [{'id': 4}, {'id': 5}]
        """
        if not is_expression(condition):
            return self._per_row(
                "filter", FilterRows, condition, False, fn_args, fn_kwargs, False, compute, options
            )
        if fn_args or fn_kwargs or compute is not None or options:
            raise PlanError("filter() with an expression has no arguments of a function: leave them out")
        if self._known_columns() is not None:
            check_filter(condition, self._plan.read_source.schema)
        return self._mapped(
            on_tables(
                FilterExpression(condition), f"filter({format_expression(condition)})", preserves_rows=False
            )
        )

    def random_sample(self: Self, fraction: float, *, seed: int | None = None) -> Self:
        """Keep each row with the same probability; the same rows in every epoch.

        Whether a row is kept depends on the seed, its block and its place in the block only; so on
        ``target_block_bytes`` too.

        Parameters
        ----------
        fraction
            The probability, from 0 to 1. The number of rows varies around it.
        seed
            Any integer. None: a seed is drawn now; ``repr`` shows it.

        Raises
        ------
        PlanError
            If an argument is invalid, or a transform stands between the shuffle and this call.

        Examples
        --------
        >>> import windrow
        >>> len(windrow.range(10_000).random_sample(0.1, seed=7).take(10_000))
        1015
        """
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise PlanError(f"random_sample: fraction={fraction!r} must be a number from 0 to 1")
        drawn = secrets.randbits(DRAWN_SEED_BITS) if seed is None else check_seed(seed)
        call = f"random_sample({fraction}, seed={drawn})"
        return self._mapped(on_tables(SampleRows(fraction, drawn), call, preserves_rows=False, rng=True))

    def _per_row(
        self: Self,
        caller: str,
        adapter: Callable[[Callable[..., Any]], Callable[..., Any]],
        fn: Callable[..., Any],
        preserves_rows: bool,
        fn_args: tuple[Any, ...],
        fn_kwargs: Mapping[str, Any] | None,
        rng: bool,
        compute: Compute | None,
        options: FunctionOptions,
    ) -> Self:
        check_function(fn, caller)
        return self._mapped(
            MapBatches(
                fn,
                "pyarrow",
                fn_args=fn_args,
                fn_kwargs={} if fn_kwargs is None else fn_kwargs,
                preserves_rows=preserves_rows,
                fn_constructor_args=options.get("fn_constructor_args") or (),
                fn_constructor_kwargs=options.get("fn_constructor_kwargs") or {},
                rng=rng,
                compute=compute,
                resources=take_resources(options, FunctionOptions, caller),
                call=f"{caller}({function_name(fn)})",
                adapter=adapter,
            )
        )
