"""Row filters: binds them to the schema before reading, and evaluates them on tables or on partition values."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import empty_table
from windrow.core.errors import PlanError, SourceError
from windrow.io.catalog.column_selection import make_unknown_column_error
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.manifest import Manifest, digest_briefly

if TYPE_CHECKING:
    import pyarrow.compute as pc

# any function call, including "not"; names and string literals that look like one only disable pruning
_UNSAFE_FOR_NAN = re.compile(r"\w\(|!=")
_NO_MATCH = re.compile(
    r"No match for FieldRef\.(?:Nested\(FieldRef\.Name\((?P<column>.*?)\) FieldRef\.|\w+\((?P<name>.*?)\) in )",
    re.DOTALL,
)
# the options of a cast that raises where values do not fit, as Arrow prints them
_SAFE_CAST = re.compile(r"(?<=\{to_type=)([^{}]*?)(?:, allow_\w+=false)+(?=\}\))")
_NO_CONFLICTS: Mapping[str, str] = MappingProxyType({})


def check_filter(expression: Any, schema: pa.Schema, conflicts: Mapping[str, str] = _NO_CONFLICTS) -> None:
    """Raise a `PlanError` unless a filter is a boolean expression of known columns.

    ``conflicts`` has the messages of the `SourceError` for columns that cannot be read.
    """
    import pyarrow.compute as pc

    if not isinstance(expression, pc.Expression):
        kind = type(expression).__name__
        raise PlanError(f"filter= is a {kind}: give a pyarrow expression like pc.field('fare') > 0")
    found = bind_expression(expression, schema, "filter=", conflicts)
    if not pa.types.is_boolean(found):
        raise PlanError(
            f"filter={format_expression(expression)} gives {found}, not true or false: write a comparison"
        )


def bind_expression(
    expression: pc.Expression, schema: pa.Schema, where: str, conflicts: Mapping[str, str] = _NO_CONFLICTS
) -> pa.DataType:
    """The type of an expression's values; raises a `PlanError`, which says ``where``, if it does not fit the columns.

    ``conflicts`` is as in `check_filter`.
    """
    try:
        return evaluate_filter(expression, empty_table(schema)).type
    except pa.ArrowException as error:
        unknown = _find_unknown(error)
        if unknown is not None and unknown in conflicts:
            raise SourceError(conflicts[unknown]) from error
        if unknown is not None and unknown not in schema.names:
            raise make_unknown_column_error(unknown, schema.names, where.rstrip(": ")) from error
        raise PlanError(
            f"{where}{format_expression(expression)} does not fit the columns: {error}"
        ) from error


def format_expression(expression: pc.Expression) -> str:
    """An expression as text, without the options that a cast has by default.

    >>> import pyarrow.compute as pc
    >>> format_expression(pc.field("x").cast("float32") * 2)
    'multiply_checked(cast(x, {to_type=float}), 2)'
    """
    return _SAFE_CAST.sub(r"\1", str(expression))


def filter_columns(expression: pc.Expression, schema: pa.Schema) -> list[str] | None:
    """The columns that a filter references; None if they cannot be determined."""
    names: list[str] = []
    while True:
        try:
            evaluate_filter(expression, empty_table(pa.schema([schema.field(name) for name in names])))
        except pa.ArrowException as error:
            unknown = _find_unknown(error)
            if unknown is None or unknown not in schema.names or unknown in names:
                return None
            names.append(unknown)
        else:
            return names


def _find_unknown(error: Exception) -> str | None:
    """The column that Arrow does not find, of which a filter can name a field."""
    found = _NO_MATCH.search(str(error))
    return None if found is None else found["column"] if found["column"] is not None else found["name"]


def with_filter_columns(
    selected: pa.Schema, everything: pa.Schema, needed: Sequence[str] | None
) -> pa.Schema:
    """The selected columns, and whole those that a filter needs (all for None), of which fields may be selected."""
    names = everything.names if needed is None else needed
    others = [field for field in selected if field.name not in names]
    return pa.schema([*others, *(everything.field(name) for name in names)])


def can_prune(expression: pc.Expression, schema: pa.Schema) -> bool:
    """Whether Arrow can safely prune row groups by their statistics.

    Statistics of floats ignore NaN, which is unequal to every value and neither larger nor smaller. Arrow
    treats them as bounds of all values, and so prunes NaN rows that match ``f != 5``, ``~(f <= 5)`` or
    ``is_nan(f)``. Comparisons that are false for NaN, joined by "and" and "or", are safe.
    """
    needed = filter_columns(expression, schema)
    floats = needed is None or any(_holds_floats(schema.field(name).type) for name in needed)
    return not floats or not _UNSAFE_FOR_NAN.search(str(expression))


def _holds_floats(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_dictionary(kind)


def kept_fragments(
    expression: pc.Expression, manifest: Manifest, partitions: Partitions
) -> NDArray[np.bool_] | None:
    """(fragments,) whether a filter on partition columns alone keeps each; None if the filter needs rows."""
    if not len(partitions.schema):
        return None
    table = partitions.table(manifest.paths.to_pylist())
    try:
        verdicts = evaluate_filter(expression, table)
    except pa.ArrowException:
        return None
    return np.array([verdict is True for verdict in verdicts.to_pylist()], np.bool_)


def kept_places(expression: pc.Expression, table: pa.Table) -> NDArray[np.int64]:
    """(kept rows,) indices of the rows for which a filter is true (neither false nor null)."""
    keeps: NDArray[Any] = evaluate_filter(expression, table).fill_null(False).to_numpy()
    return np.flatnonzero(keeps).astype(np.int64)


def evaluate_filter(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray[Any]:
    """(rows,) the value of an expression for each row of a table."""
    from pyarrow import acero

    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
        acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"])),
    ]
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False).column("keep")


def digest_filter(expression: pc.Expression) -> str:
    """A digest of a filter's text, stable across Arrow versions; of its pickle where the text elides values."""
    text = str(expression)
    return digest_briefly(pickle.dumps(expression, protocol=4) if "..." in text else text.encode())
