"""Validate the column types that users pass for formats without declared types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["check_dtypes", "type_names"]


def check_dtypes(
    dtypes: Any, argument: str = "dtypes", parse: Callable[[pa.DataType], object] | None = None
) -> dict[str, pa.DataType] | None:
    """Convert a mapping or Arrow schema to types by column; errors name ``argument``.

    ``parse`` parses a minimal input as a type, and raises ``ArrowNotImplementedError`` if the format does
    not support it.

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


def type_names(dtypes: Mapping[str, pa.DataType] | None) -> dict[str, str]:
    """Types by column as text, for the options that manifests save."""
    return {name: str(kind) for name, kind in (dtypes or {}).items()}


def _check_parsed(
    name: str, kind: pa.DataType, argument: str, parse: Callable[[pa.DataType], object]
) -> None:
    try:
        parse(kind)
    except pa.ArrowNotImplementedError as error:
        raise PlanError(
            f"{argument}= gives {kind} for {name!r}: {error}; give a supported type (text as pa.string(), lists of "
            "JSON as pa.list_ without a size), and cast after reading, in map_batches"
        ) from error


def _as_type(name: str, kind: Any, argument: str) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    try:
        return pa.type_for_alias(kind) if isinstance(kind, str) else pa.from_numpy_dtype(np.dtype(kind))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise PlanError(f"{argument}= gives {kind!r} for {name!r}: give a type like pa.float32()") from error
