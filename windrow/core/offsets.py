"""Validates that offsets and dictionary indices inside decoded columns stay within their buffers."""

from __future__ import annotations

import pyarrow as pa

from windrow.core.arrow_support import rebuild_type


def check_layout(table: pa.Table) -> None:
    """Check every value that Arrow dereferences: offsets of text and lists, and dictionary indices.

    Raises ``pyarrow.ArrowInvalid``. ``validate(full=True)`` checks them, but also rejects text that is not
    UTF-8, which Parquet files can contain. Text is therefore viewed as binary first.

    >>> text = pa.array(["ab", "c"])
    >>> check_layout(pa.table({"s": text}))
    >>> offsets = pa.array([0, 9, 3], pa.int32()).buffers()[1]
    >>> check_layout(pa.table({"s": pa.Array.from_buffers(pa.string(), 2, [None, offsets, text.buffers()[2]])}))
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: column 's': Offset invariant failure: offset for slot 1 out of bounds: 9 > 3
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            # buffer sizes and last offsets first: the views below rely on them
            column.validate()
            for chunk in column.chunks:
                _without_text(chunk).validate(full=True)
        # Arrow raises an IndexError for a view whose buffer does not exist
        except (pa.ArrowInvalid, pa.lib.ArrowIndexError) as error:
            raise pa.ArrowInvalid(f"column {name!r}: {error}") from error


def check_dictionary_indices(name: str, column: pa.ChunkedArray) -> None:
    """Check the dictionary indices of a column; one that has none at any level costs nothing.

    Raises ``pyarrow.ArrowInvalid``. Arrow checks few of them itself: concatenating arrays with different
    dictionaries reads beyond the end of Arrow's memory.

    >>> indices = pa.array([0, 2], pa.int8())
    >>> column = pa.chunked_array([pa.DictionaryArray.from_arrays(indices, ["a", "b"], safe=False)])
    >>> check_dictionary_indices("s", column)
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: column 's': Index 2 out of bounds
    """
    if not _holds_dictionaries(column.type):
        return
    if not pa.types.is_dictionary(column.type):
        check_layout(pa.table({name: column}))
        return
    try:
        for chunk in column.chunks:
            # its bounds are checked against the number of values, and no value is read
            pa.DictionaryArray.from_arrays(chunk.indices, pa.nulls(len(chunk.dictionary)))
    except pa.lib.ArrowIndexError as error:
        raise pa.ArrowInvalid(f"column {name!r}: {error}") from error


def _holds_dictionaries(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_dictionaries(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_holds_dictionaries(kind.field(place).type) for place in range(kind.num_fields))


def _without_text(array: pa.Array) -> pa.Array:
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    kind = _as_binary(array.type)
    try:
        return array if kind.equals(array.type) else array.view(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Arrow cannot view all nested types; in these, text must be UTF-8
        return array


def _as_binary(kind: pa.DataType) -> pa.DataType:
    """The type with the same layout and binary in place of text."""
    types = pa.types
    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_string_view(kind):
        return pa.binary_view()
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _as_binary(kind.value_type), kind.ordered)
    if types.is_union(kind) or types.is_run_end_encoded(kind) or not kind.num_fields:
        return kind
    fields = (kind.field(place) for place in range(kind.num_fields))
    return rebuild_type(kind, [field.with_type(_as_binary(field.type)) for field in fields])
