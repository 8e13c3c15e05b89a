"""The transforms of Dataset and DatasetPipeline that add, select, drop and rename columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from windrow.core.errors import PlanError
from windrow.core.user_functions import check_function, function_name
from windrow.dataset.argument_checks import check_names
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.column_selection import make_unknown_column_error
from windrow.io.catalog.filters import bind_expression, format_expression
from windrow.pipeline.tasks.actor_pool import WorkerResources
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_functions import (
    AddColumn,
    AddExpression,
    DropColumns,
    FunctionFormat,
    RenameColumns,
    SelectColumns,
    check_function_format,
    is_expression,
)

if TYPE_CHECKING:
    import pyarrow.compute as pc

Self = TypeVar("Self", bound="ColumnMethods")


class ResourceOptions(TypedDict, total=False):
    """Options of `map_batches` that other transforms pass on: what Ray reserves for each actor."""

    num_cpus: float | None
    num_gpus: float | None
    memory: int | str | None
    resources: Mapping[str, float] | None


@dataclass(frozen=True, repr=False)
class ColumnMethods:
    """Base class of what has a logical plan to add transforms to."""

    _plan: LogicalPlan

    def add_column(
        self: Self,
        name: str,
        values: Callable[..., Any] | pc.Expression,
        *,
        batch_format: FunctionFormat = "numpy",
        fn_args: tuple[Any, ...] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        rng: bool = False,
    ) -> Self:
        """Add a column, or replace it.

        Parameters
        ----------
        name
            Its name.
        values
            A pyarrow expression of other columns, such as ``pc.field("a") * 2``. Or a function, called as
            ``fn(batch, *fn_args, **fn_kwargs)``, which returns one value for each row.
        batch_format, fn_args, fn_kwargs, rng
            As in `map_batches`, for a function.

        Raises
        ------
        PlanError
            If an argument is invalid.

        Examples
        --------
        >>> import pyarrow.compute as pc, windrow
        >>> windrow.range(2).add_column("next", pc.field("id") + 1).take()
        [{'id': 0, 'next': 1}, {'id': 1, 'next': 2}]
        >>> windrow.range(2).add_column("half", lambda batch: batch["id"] / 2).take()
        [{'id': 0, 'half': 0.0}, {'id': 1, 'half': 0.5}]
        """
        (name,) = check_names([name], "name")
        if is_expression(values):
            if self._known_columns() is not None:
                bind_expression(values, self._plan.read_source.schema, "add_column: ")
            return self._mapped(
                on_tables(AddExpression(name, values), f"add_column({name!r}, {format_expression(values)})")
            )
        check_function(values, "add_column")
        check_function_format(batch_format)
        return self._mapped(
            MapBatches(
                values,
                "pyarrow",
                fn_args=fn_args,
                fn_kwargs={} if fn_kwargs is None else fn_kwargs,
                rng=rng,
                call=f"add_column({name!r}, {function_name(values)})",
                adapter=partial(AddColumn, name=name, batch_format=batch_format),
            )
        )

    def select_columns(self: Self, columns: str | Sequence[str]) -> Self:
        """Keep these columns, in this order; ``read_*(columns=...)`` does not even read the others.

        Raises
        ------
        PlanError
            If there is no such column, or a name is given twice.

        Examples
        --------
        >>> import windrow
        >>> windrow.from_items([{"a": 1, "b": 2, "c": 3}]).select_columns(["c", "a"]).take()
        [{'c': 3, 'a': 1}]
        """
        names = self._check_columns(columns, "select_columns")
        return self._mapped(on_tables(SelectColumns(names), f"select_columns({list(names)})"))

    def drop_columns(self: Self, columns: str | Sequence[str]) -> Self:
        """Drop these columns.

        Raises
        ------
        PlanError
            If there is no such column, or none would be left.

        Examples
        --------
        >>> import windrow
        >>> windrow.from_items([{"a": 1, "b": 2, "c": 3}]).drop_columns("b").take()
        [{'a': 1, 'c': 3}]
        """
        names = self._check_columns(columns, "drop_columns")
        known = self._known_columns()
        if known is not None and len(known) == len(names):
            raise PlanError(f"drop_columns({list(names)}) would leave no column")
        return self._mapped(on_tables(DropColumns(names), f"drop_columns({list(names)})"))

    def rename_columns(self: Self, names: Mapping[str, str]) -> Self:
        """Rename columns: new names by old ones; others keep theirs.

        Raises
        ------
        PlanError
            If there is no such column, or two would have one name.

        Examples
        --------
        >>> import windrow
        >>> windrow.from_items([{"a": 1, "b": 2}]).rename_columns({"a": "x"}).take()
        [{'x': 1, 'b': 2}]
        """
        if not isinstance(names, Mapping) or not names:
            raise PlanError(f"rename_columns({names!r}): give a dict of new names by old ones")
        old = self._check_columns(list(names), "rename_columns")
        new = check_names(list(names.values()), "rename_columns")
        known = self._known_columns()
        left = set() if known is None else set(known) - set(old)
        if clash := left.intersection(new):
            raise PlanError(
                f"rename_columns: there is a column {min(clash)!r} already: rename it too, or drop it"
            )
        stage = on_tables(RenameColumns(tuple(zip(old, new, strict=True))), f"rename_columns({dict(names)})")
        return self._mapped(stage)

    def _mapped(self: Self, stage: MapBatches) -> Self:
        return type(self)(self._plan.mapped(stage))

    def _known_columns(self) -> list[str] | None:
        """The columns, where finding them needs no reading: before any transform."""
        return None if self._plan.maps or self._plan.packing else list(self._plan.read_source.schema.names)

    def _check_columns(self, columns: str | Sequence[str], caller: str) -> tuple[str, ...]:
        names = check_names([columns] if isinstance(columns, str) else columns, caller)
        known = self._known_columns()
        missing = [] if known is None else [name for name in names if name not in known]
        if missing:
            raise make_unknown_column_error(missing[0], known or (), caller)
        return names


def on_tables(
    fn: Callable[..., Any], call: str, *, preserves_rows: bool = True, rng: bool = False
) -> MapBatches:
    """A transform by a function of this library's, which gets tables."""
    return MapBatches(fn, "pyarrow", preserves_rows=preserves_rows, rng=rng, call=call)


def take_resources(options: ResourceOptions, kind: type[ResourceOptions], caller: str) -> WorkerResources:
    """The resources among the options of a transform; a TypeError for an option that ``kind`` does not have."""
    unknown = options.keys() - kind.__annotations__.keys()
    if unknown:
        raise TypeError(f"{caller}() got an unexpected keyword argument {min(unknown)!r}")
    given: Any = {name: options[name] for name in ResourceOptions.__annotations__ if name in options}  # type: ignore[literal-required]
    return WorkerResources(**given)
