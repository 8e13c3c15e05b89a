"""Types of columns as users give them, for files that state none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["check_dtypes"]


def check_dtypes(
    dtypes: Any, argument: str = "dtypes", parse: Callable[[pa.DataType], object] | None = None
) -> dict[str, pa.DataType] | None:
    """Types by column, of a mapping or an Arrow schema.

    Parameters
    ----------
    dtypes
        What a user gave.
    argument
        Its name.
    parse
        Parses nothing, or next to nothing, as a type; raises an ``ArrowNotImplementedError`` where
        the format has no values of that type.

    Raises
    ------
    PlanError
        If it is neither, or one of the types is none, or none that can be parsed.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa
    >>> check_dtypes({"x": pa.float32(), "y": np.int8, "z": "string"})
    {'x': DataType(float), 'y': DataType(int8), 'z': DataType(string)}
    """
    if dtypes is None:
        return None
    if isinstance(dtypes, pa.Schema):
        dtypes = {field.name: field.type for field in dtypes}
    if not isinstance(dtypes, Mapping):
        raise PlanError(
            f"{argument}= is a {type(dtypes).__name__}: give a dict of types by column, or a schema"
        )
    types = {name: _as_type(name, kind, argument) for name, kind in dtypes.items()}
    if parse is not None:
        for name, kind in types.items():
            _check_parsed(name, kind, argument, parse)
    return types


def _check_parsed(
    name: str, kind: pa.DataType, argument: str, parse: Callable[[pa.DataType], object]
) -> None:
    try:
        parse(kind)
    except pa.ArrowNotImplementedError as error:
        raise PlanError(
            f"{argument}= gives {kind} for {name!r}: {error}; give one that is (text as pa.string(), lists of "
            "JSON as pa.list_ without a size), and cast after reading, in map_batches"
        ) from error


def _as_type(name: str, kind: Any, argument: str) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    try:
        return pa.type_for_alias(kind) if isinstance(kind, str) else pa.from_numpy_dtype(np.dtype(kind))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise PlanError(f"{argument}= gives {kind!r} for {name!r}: give a type like pa.float32()") from error
