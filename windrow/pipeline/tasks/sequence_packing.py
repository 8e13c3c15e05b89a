"""`SequencePacking`: turns documents, rows with lists of tokens, into tokens, and these into sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import empty_table
from windrow.core.errors import PlanError, SourceError, TransformError
from windrow.core.integers import as_integer
from windrow.core.source import Source
from windrow.pipeline.delivery.to_numpy import column_to_numpy, list_offsets
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.transforms import apply_maps, as_one_batch
from windrow.shuffle.kernels.fixed_width import values_of, wrap_values
from windrow.shuffle.kernels.pieces import end_lists

_DIGEST_DIGITS = 16


@dataclass(frozen=True)
class SequencePacking:
    """The arguments of `DatasetPipeline.pack`."""

    seq_len: int
    columns: str | Sequence[str]
    # the token behind each document by column, or that of the only column of lists; None: none
    eos: float | Mapping[str, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        length = as_integer(self.seq_len)
        if length is None or not 1 <= length < 2**31:
            raise PlanError(f"pack(seq_len={self.seq_len!r}) must be an integer of 1 or more")
        names = [self.columns] if isinstance(self.columns, str) else self.columns
        if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
            raise PlanError(f"pack(columns={self.columns!r}) must be a column's name or a list of them")
        if len(set(names)) < len(names):
            raise PlanError(f"pack(columns={self.columns!r}) names a column twice")
        by_column = self.eos if isinstance(self.eos, Mapping) else {}
        if unknown := [name for name in by_column if name not in names]:
            raise PlanError(f"pack(eos=...) names {unknown[0]!r}, which is not among columns={list(names)!r}")
        values = [*by_column.values()] if isinstance(self.eos, Mapping) or self.eos is None else [self.eos]
        if not all(isinstance(value, (bool, int, float, np.number)) for value in values):
            raise PlanError(f"pack(eos={self.eos!r}) must be a number, a dict of numbers by column, or None")
        object.__setattr__(self, "seq_len", length)
        object.__setattr__(self, "columns", tuple(names))
        # in one form, since states name it
        eos: Any = {name: _plain(by_column[name]) for name in sorted(by_column)} if by_column else None
        object.__setattr__(self, "eos", _plain(values[0]) if values and not by_column else eos)

    def __str__(self) -> str:
        eos = "" if self.eos is None else f", eos={self.eos!r}"
        return f"pack({self.seq_len}, {list(self.columns)!r}{eos})"

    @property
    def identity(self) -> str:
        """A short text that differs for packings with other results."""
        return f"{self.seq_len} {hashlib.sha256(str(self).encode()).hexdigest()[:_DIGEST_DIGITS]}"

    def token_bytes(self, schema: pa.Schema) -> int:
        """Bytes of a token over all columns, if ``schema`` is that of the documents; 4 for each unknown column."""
        kinds = [schema.field(name).type if name in schema.names else None for name in self.columns]
        flat = [kind.value_type if kind is not None and _is_list(kind) else kind for kind in kinds]
        return sum(
            -(-kind.bit_width // 8) if kind is not None and pa.types.is_primitive(kind) else 4
            for kind in flat
        )

    def check_schema(self, schema: pa.Schema, error: type[PlanError | TransformError], origin: str) -> None:
        """Raise ``error`` if documents with this schema cannot be packed; ``origin`` tells which they are."""
        if missing := [name for name in self.columns if name not in schema.names]:
            raise error(
                f"{origin}there is no column {missing[0]!r} to pack, but there are {', '.join(map(repr, schema.names))}"
            )
        kinds = {name: schema.field(name).type for name in self.columns}
        lists = [name for name, kind in kinds.items() if _is_list(kind)]
        for name, kind in kinds.items():
            if name in lists and not _is_number(kind.value_type):
                raise error(
                    f"{origin}column {name!r} is {kind}: pack() takes lists of numbers; "
                    "convert it with map_batches before"
                )
            if name not in lists and not pa.types.is_primitive(kind):
                raise error(
                    f"{origin}column {name!r} is {kind}: pack() repeats numbers for each token; "
                    "name a document by a number, "
                    "such as that of options(row_id_column=...) before pack()"
                )
        if not lists:
            raise error(
                f"{origin}none of the columns {', '.join(map(repr, self.columns))} to pack has lists of tokens: "
                "tokenize with map_batches before, into a list column"
            )
        if self.eos is not None and not isinstance(self.eos, Mapping) and len(lists) > 1:
            raise error(
                f"{origin}pack(eos={self.eos!r}) does not tell the values for {', '.join(map(repr, lists))}: give a "
                "dict with one for each"
            )
        if isinstance(self.eos, Mapping) and set(self.eos) != set(lists):
            raise error(
                f"{origin}pack(eos={self.eos!r}) must have a value for each column of lists, and for no other: "
                f"{', '.join(map(repr, lists))}"
            )
        for name in lists:
            self._eos_of(name, kinds[name].value_type, error, origin)

    def flatten(self, table: pa.Table, origin: str) -> tuple[pa.Table, NDArray[np.int32]]:
        """Lay documents end to end; returns a table with a row for each token, and the tokens of each document.

        Raises
        ------
        TransformError
            If a column cannot be packed; names it and ``origin``, the block.
        """
        return self._flatten(table, f"pack, {origin}: ")

    def count_tokens(self, table: pa.Table) -> NDArray[np.int64]:
        """(documents,) the tokens of each document, with the one behind it."""
        return self._measure(table, "")[1]

    def documents(self, table: pa.Table) -> pa.Table:
        """Lists of the tokens of each document, with the one behind it; other columns repeat their value in lists."""
        tokens, counts = self._flatten(table, "")
        offsets = pa.array(np.append(0, np.cumsum(counts, dtype=np.int64)))
        arrays = [
            pa.LargeListArray.from_arrays(offsets, join_chunks(name, tokens.column(name), ""))
            for name in tokens.column_names
        ]
        return pa.table(arrays, names=tokens.column_names)

    def _measure(
        self, table: pa.Table, where: str
    ) -> tuple[dict[str, pa.Array], NDArray[np.int64], NDArray[np.int64]]:
        """The columns, the tokens of each document with the one behind it, and without it."""
        self.check_schema(table.schema, TransformError, where)
        columns = {name: join_chunks(name, table.column(name), where) for name in self.columns}
        lists = {name: array for name, array in columns.items() if _is_list(array.type)}
        lengths = _common_lengths(lists, where)
        return columns, lengths if self.eos is None else lengths + (lengths > 0), lengths

    def _flatten(self, table: pa.Table, where: str) -> tuple[pa.Table, NDArray[np.int32]]:
        if not table.num_rows:
            return pa.table({}), np.zeros(0, np.int32)
        columns, counts, lengths = self._measure(table, where)
        arrays = []
        for name, array in columns.items():
            if not _is_list(array.type):
                arrays.append(_repeat(array, counts))
                continue
            tokens = _tokens(name, array, where)
            eos = self._eos_of(name, tokens.type, TransformError, where)
            if eos is not None:
                values = column_to_numpy(tokens, writable=False)
                end = np.array([eos.as_py()], values.dtype)
                tokens = pa.array(end_lists(values, lengths, end), tokens.type)
            arrays.append(tokens)
        return pa.table(dict(zip(columns, arrays, strict=True))), counts.astype(np.int32)

    def sequences(self, tokens: pa.RecordBatch) -> pa.RecordBatch:
        """Cut tokens, a multiple of ``seq_len``, into sequences: lists of that size in each column."""
        if not tokens.num_columns:
            # readers that select no column count the sequences
            counted = pa.nulls(tokens.num_rows // self.seq_len)
            return pa.RecordBatch.from_arrays([counted], names=["rows"]).select([])
        arrays = [pa.FixedSizeListArray.from_arrays(column, self.seq_len) for column in tokens.columns]
        return pa.RecordBatch.from_arrays(arrays, names=tokens.schema.names)

    def _eos_of(
        self, name: str, kind: pa.DataType, error: type[PlanError | TransformError], origin: str
    ) -> pa.Scalar | None:
        value = self.eos[name] if isinstance(self.eos, Mapping) else self.eos
        if value is None:
            return None
        found = None
        # older versions of pyarrow make half floats of NumPy's only
        exact = np.float16(value) if pa.types.is_float16(kind) and isinstance(value, (int, float)) else value
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            found = pa.scalar(exact, kind)
        # Arrow cuts the fraction for integers
        if found is None or (found.as_py() != value and not pa.types.is_floating(kind)):
            raise error(f"{origin}pack(eos={value!r}) is not a value of column {name!r}, which holds {kind}")
        return found


def transform_sequences(
    sequences: pa.RecordBatch, after: Sequence[MapBatches], origin: str
) -> pa.RecordBatch:
    """Apply the transforms behind `pack` to sequences."""
    return as_one_batch(apply_maps(pa.Table.from_batches([sequences]), after, origin), origin)


def sample_sequences(
    source: Source, before: Sequence[MapBatches], packing: SequencePacking, after: Sequence[MapBatches]
) -> pa.Table:
    """A sequence of the first block's tokens, repeated if they are few; shows what batches will look like.

    Without transforms, nothing is read, and the table has no rows. So it is where there are no tokens, and then it
    has the source's schema if transforms make the tokens.
    """
    if not before:
        documents = empty_table(source.schema)
        packing.check_schema(documents.schema, PlanError, "")
        kinds = {name: documents.schema.field(name).type for name in packing.columns}
        empty = {
            name: pa.array([], pa.list_(kind.value_type if _is_list(kind) else kind, packing.seq_len))
            for name, kind in kinds.items()
        }
        if not after or not source.blocks.rows.any():
            return pa.table(empty)
    for block in np.flatnonzero(source.blocks.rows):
        (address,) = source.addresses([int(block)])
        documents = apply_maps(
            source.reader.read(address), before, address.origin, StoredRows(address.number)
        )
        tokens, _ = packing.flatten(documents, address.origin)
        if tokens.num_rows:
            chosen = tokens.take(pa.array(np.arange(packing.seq_len) % tokens.num_rows))
            (batch,) = chosen.combine_chunks().to_batches()
            return pa.Table.from_batches(
                [transform_sequences(packing.sequences(batch), after, f"sequences of pack, {address.origin}")]
            )
    return empty_table(source.schema)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _plain(value: Any) -> float:
    """A number as Python's int if it is one, else as a float."""
    number = float(value)
    return int(value) if number.is_integer() else number


def join_chunks(name: str, column: pa.ChunkedArray, where: str) -> pa.Array:
    """A column's chunks as one array; ``where`` begins the message of the error if its lists do not fit into one."""
    if column.num_chunks == 1:
        return column.chunk(0)
    try:
        return pa.concat_arrays(column.chunks)
    except pa.ArrowInvalid as error:
        raise TransformError(
            f"{where}the lists of column {name!r} do not fit into one Arrow array ({error}): use large_list, or give "
            "the read_* call a smaller target_block_bytes"
        ) from error


def _common_lengths(lists: Mapping[str, pa.Array], where: str) -> NDArray[np.int64]:
    """(rows,) the length of each row's lists, which all columns must share."""
    (first, lengths), *others = [(name, _lengths(name, array, where)) for name, array in lists.items()]
    for name, other in others:
        (differing,) = np.nonzero(lengths != other)
        if len(differing):
            row = int(differing[0])
            raise TransformError(
                f"{where}a row has {lengths[row]:,} values in {first!r} and {other[row]:,} in {name!r}: the lists of a "
                "row must be of one length"
            )
    return lengths


def _lengths(name: str, array: pa.Array, where: str) -> NDArray[np.int64]:
    if array.null_count:
        raise TransformError(f"{where}column {name!r} has nulls: fill them, or filter such rows out")
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    return np.diff(list_offsets(array))


def _repeat(array: pa.Array, counts: NDArray[np.int64]) -> pa.Array:
    """Each value so many times."""
    if array.null_count:
        return array.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return wrap_values(np.repeat(values_of(array), counts, axis=0), array.type, None)


def _tokens(name: str, array: pa.Array, where: str) -> pa.Array:
    """The values of all lists of a column."""
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        values = array.values.slice(array.offset * width, len(array) * width)
    else:
        offsets = list_offsets(array)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    if values.null_count:
        raise TransformError(
            f"{where}the lists of column {name!r} hold nulls: replace them with map_batches before"
        )
    return values


def check_documents(expected: NDArray[np.int32], lengths: NDArray[np.int32], origin: str) -> None:
    """Raise SourceError if the documents of a block are not those that were counted before."""
    if not np.array_equal(expected, lengths):
        raise SourceError(
            f"{origin}: read {len(lengths)} documents of {lengths.sum()} tokens, expected {len(expected)} of "
            f"{expected.sum()}, each as long as it was before. The file changed, or a transform is not a pure "
            "function of its rows: list the dataset again, or make the transform return the same tokens every time"
        )
