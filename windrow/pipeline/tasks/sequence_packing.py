"""`SequencePacking`: turns documents, rows with lists of tokens, into tokens, and these into sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import empty_table
from windrow.core.errors import PlanError, SourceError, TransformError
from windrow.core.integers import as_integer
from windrow.core.source import Source
from windrow.pipeline.delivery.to_numpy import column_to_numpy, is_list
from windrow.pipeline.tasks.document_columns import (
    common_lengths,
    is_number,
    is_text,
    join_chunks,
    repeat_values,
    tokens_of,
)
from windrow.pipeline.tasks.failed_rows import checking_rows
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.sequence_boundaries import (
    BOUNDARY_COLUMNS,
    MARK_COLUMN,
    PADDING,
    cut_lengths,
    find_boundaries,
    mark_documents,
)
from windrow.pipeline.tasks.transforms import apply_maps, as_one_batch
from windrow.shuffle.kernels.pieces import end_lists
from windrow.shuffle.order.best_fit import MAX_CAPACITY

_DIGEST_DIGITS = 16
# bytes of the widest number
_MAX_WIDTH = 32

LongDocuments = Literal["error", "cut", "drop"]


@dataclass(frozen=True)
class SequencePacking:
    """The arguments of `DatasetPipeline.pack`."""

    seq_len: int
    columns: str | Sequence[str]
    # the token behind each document by column, or that of the only column of lists; None: none
    eos: float | Mapping[str, float] | None = field(default=None, hash=False)
    # whether a document goes on in the next sequence; otherwise it is placed whole, as `best_fit` says
    split_documents: bool = True
    # the value of padding behind the last document of a sequence, by column or for all; without it 0
    pad: float | Mapping[str, float] | None = field(default=None, hash=False)
    # what becomes of documents with more than seq_len tokens that are placed whole
    long_documents: LongDocuments = "error"
    # whether sequences tell where documents begin, as `sequence_boundaries` says
    boundaries: bool = False

    def __post_init__(self) -> None:
        length = as_integer(self.seq_len)
        if length is None or not 1 <= length < 2**31:
            raise PlanError(f"pack(seq_len={self.seq_len!r}) must be an integer of 1 or more")
        names = [self.columns] if isinstance(self.columns, str) else self.columns
        if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
            raise PlanError(f"pack(columns={self.columns!r}) must be a column's name or a list of them")
        if len(set(names)) < len(names):
            raise PlanError(f"pack(columns={self.columns!r}) names a column twice")
        object.__setattr__(self, "seq_len", length)
        object.__setattr__(self, "columns", tuple(names))
        # in one form, since states name it
        object.__setattr__(self, "eos", _check_values("eos", self.eos, names))
        object.__setattr__(self, "pad", _check_values("pad", self.pad, names) or None)
        self._check_whole_documents(length)
        if taken := [name for name in BOUNDARY_COLUMNS if self.boundaries and name in names]:
            raise PlanError(f"pack(boundaries=True) makes the column {taken[0]!r}: rename yours before")

    def _check_whole_documents(self, seq_len: int) -> None:
        if self.long_documents not in ("error", "cut", "drop"):
            raise PlanError(f"pack(long_documents={self.long_documents!r}) must be 'error', 'cut' or 'drop'")
        if self.split_documents and (self.pad is not None or self.long_documents != "error"):
            given = "long_documents" if self.pad is None else "pad"
            raise PlanError(
                f"pack({given}=...) is for whole documents: add split_documents=False; otherwise documents go on in "
                "the next sequence, and nothing is padded"
            )
        if not self.split_documents and seq_len > MAX_CAPACITY:
            raise PlanError(f"pack(split_documents=False): seq_len must be at most {MAX_CAPACITY:,}")

    def __str__(self) -> str:
        given = {
            name: getattr(self, name)
            for name in ("eos", "split_documents", "pad", "long_documents", "boundaries")
            if getattr(self, name) != getattr(SequencePacking, name, None)
        }
        arguments = "".join(f", {name}={value!r}" for name, value in given.items())
        return f"pack({self.seq_len}, {list(self.columns)!r}{arguments})"

    @property
    def identity(self) -> str:
        """A short text that differs for packings with other results."""
        return f"{self.seq_len} {hashlib.sha256(str(self).encode()).hexdigest()[:_DIGEST_DIGITS]}"

    def token_bytes(self, schema: pa.Schema) -> int:
        """Bytes of a token over all columns, if ``schema`` is that of the documents; 4 for each unknown column."""
        kinds = [schema.field(name).type if name in schema.names else None for name in self.columns]
        flat = [kind.value_type if kind is not None and is_list(kind) else kind for kind in kinds]
        # where documents begin takes a byte more
        return self.boundaries + sum(
            -(-kind.bit_width // 8) if kind is not None and pa.types.is_primitive(kind) else 4
            for kind in flat
        )

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """The schema of documents as they are packed, given that of their source."""
        return schema

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise PlanError if documents with this schema cannot be packed."""
        if missing := [name for name in self.columns if name not in schema.names]:
            raise PlanError(
                f"there is no column {missing[0]!r} to pack, but there are {', '.join(map(repr, schema.names))}"
            )
        kinds = {name: schema.field(name).type for name in self.columns}
        lists = [name for name, kind in kinds.items() if is_list(kind)]
        for name, kind in kinds.items():
            if name in lists and not is_number(kind.value_type):
                raise PlanError(
                    f"column {name!r} is {kind}: pack() takes lists of numbers; convert it with map_batches before"
                )
            if not lists and is_text(kind):
                raise PlanError(
                    f"column {name!r} is {kind}: pack() takes lists of tokens; make them with "
                    f"tokenize({name!r}, tokenizer) before the shuffle"
                )
            if name not in lists and not pa.types.is_primitive(kind):
                raise PlanError(
                    f"column {name!r} is {kind}: pack() repeats numbers for each token; name a document by a number, "
                    "such as that of options(row_id_column=...) before pack()"
                )
        if not lists:
            raise PlanError(
                f"none of the columns {', '.join(map(repr, self.columns))} to pack has lists of tokens: "
                "tokenize with map_batches before, into a list column"
            )
        if self.eos is not None and not isinstance(self.eos, Mapping) and len(lists) > 1:
            raise PlanError(
                f"pack(eos={self.eos!r}) does not tell the values for {', '.join(map(repr, lists))}: give a "
                "dict with one for each"
            )
        if isinstance(self.eos, Mapping) and set(self.eos) != set(lists):
            raise PlanError(
                f"pack(eos={self.eos!r}) must have a value for each column of lists, and for no other: "
                f"{', '.join(map(repr, lists))}"
            )
        for name in lists:
            self._eos_of(name, kinds[name].value_type)
        for name, kind in kinds.items():
            value = self.pad_of(name)
            found_type = kind.value_type if name in lists else kind
            # zero of times and the like has no number
            if value and _to_scalar(value, found_type) is None:
                raise PlanError(
                    f"pack(pad={value!r}) is not a value of column {name!r}, which holds {found_type}"
                )

    def flatten(self, table: pa.Table, origin: str) -> tuple[pa.Table, NDArray[np.int32]]:
        """Lay documents end to end; returns a table with a row for each token, and the tokens of each document.

        Without ``split_documents``, none has more than ``seq_len``: those that do are cut, or left out.

        Raises
        ------
        TransformError
            If a column cannot be packed; names it and ``origin``, the block.
        """
        where = f"pack, {origin}: "
        if not self.split_documents and table.num_rows and self.long_documents != "cut":
            table = self._without_long(table, where)
        tokens, counts = self._flatten(table, where)
        if not self.split_documents and self.long_documents == "cut":
            counts = cut_lengths(counts, self.seq_len)
        if self.boundaries and tokens.num_columns:
            tokens = tokens.append_column(MARK_COLUMN, pa.array(mark_documents(counts)))
        return tokens, counts

    def _without_long(self, table: pa.Table, where: str) -> pa.Table:
        counts = self._measure(table, where)[1]
        (long,) = np.nonzero(counts > self.seq_len)
        if not len(long):
            return table
        if self.long_documents == "error":
            raise TransformError(
                f"{where}document {long[0]:,} of the block has {counts[long[0]]:,} tokens, more than a sequence of "
                f"{self.seq_len:,}: pack with long_documents='cut' or 'drop', a longer seq_len, or split_documents=True"
            )
        return table.filter(pa.array(counts <= self.seq_len))

    def count_long(self, table: pa.Table) -> int:
        """The number of documents that are left out, given transformed rows."""
        if self.split_documents or self.long_documents != "drop" or not table.num_rows:
            return 0
        return int(np.count_nonzero(self.count_tokens(table) > self.seq_len))

    def padding(self, schema: pa.Schema, rows: int) -> pa.Table:
        """Tokens of padding, with the schema of `flatten`."""
        arrays = []
        for name, kind in zip(schema.names, schema.types, strict=True):
            if name == MARK_COLUMN and self.boundaries:
                arrays.append(pa.array(np.full(rows, PADDING, np.uint8)))
                continue
            value = self.pad_of(name)
            if value:
                arrays.append(pa.repeat(_to_scalar(value, kind), rows))
            else:
                zeros = pa.py_buffer(np.zeros(rows * _MAX_WIDTH, np.uint8))
                arrays.append(pa.Array.from_buffers(kind, rows, [None, zeros]))
        return pa.table(arrays, schema=schema)

    def pad_of(self, name: str) -> float:
        """The value of padding in a column."""
        value = self.pad.get(name, 0) if isinstance(self.pad, Mapping) else self.pad
        return 0 if value is None else value

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
        with checking_rows(where):
            self.check_schema(table.schema)
        columns = {name: join_chunks(name, table.column(name), where) for name in self.columns}
        lists = {name: array for name, array in columns.items() if is_list(array.type)}
        lengths = common_lengths(lists, where)
        return columns, lengths if self.eos is None else lengths + (lengths > 0), lengths

    def _flatten(self, table: pa.Table, where: str) -> tuple[pa.Table, NDArray[np.int32]]:
        if not table.num_rows:
            return pa.table({}), np.zeros(0, np.int32)
        columns, counts, lengths = self._measure(table, where)
        arrays = []
        for name, array in columns.items():
            if not is_list(array.type):
                arrays.append(repeat_values(array, counts))
                continue
            tokens = tokens_of(name, array, where)
            eos = self._eos_of(name, tokens.type)
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
        columns = dict(zip(tokens.schema.names, tokens.columns, strict=True))
        if self.boundaries:
            marks = columns.pop(MARK_COLUMN).to_numpy(zero_copy_only=False)
            found = map(pa.array, find_boundaries(marks, self.seq_len))
            columns |= zip(BOUNDARY_COLUMNS, found, strict=True)
        arrays = [pa.FixedSizeListArray.from_arrays(column, self.seq_len) for column in columns.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _eos_of(self, name: str, kind: pa.DataType) -> pa.Scalar | None:
        value = self.eos[name] if isinstance(self.eos, Mapping) else self.eos
        if value is None:
            return None
        found = _to_scalar(value, kind)
        if found is None:
            raise PlanError(f"pack(eos={value!r}) is not a value of column {name!r}, which holds {kind}")
        return found


def _to_scalar(value: float, kind: pa.DataType) -> pa.Scalar | None:
    """A number as a value of a type; None if the type has no such value."""
    found = None
    # older versions of pyarrow make half floats of NumPy's only
    exact = np.float16(value) if pa.types.is_float16(kind) and isinstance(value, (int, float)) else value
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        found = pa.scalar(exact, kind)
    # Arrow cuts the fraction for integers
    is_exact = found is not None and (pa.types.is_floating(kind) or found.as_py() == value)
    return found if is_exact else None


def _check_values(argument: str, value: Any, columns: Sequence[str]) -> Any:
    """Numbers by column, or one for all, in one form; None: none."""
    by_column = value if isinstance(value, Mapping) else {}
    if unknown := [name for name in by_column if name not in columns]:
        raise PlanError(
            f"pack({argument}=...) names {unknown[0]!r}, which is not among columns={list(columns)!r}"
        )
    values = [] if value is None else [*value.values()] if isinstance(value, Mapping) else [value]
    if not all(isinstance(each, (bool, int, float, np.number)) for each in values):
        raise PlanError(f"pack({argument}={value!r}) must be a number, a dict of numbers by column, or None")
    if isinstance(value, Mapping):
        return {name: _plain(value[name]) for name in sorted(value)} or None
    return None if value is None else _plain(value)


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
        documents = empty_table(packing.schema_of(source.schema))
        packing.check_schema(documents.schema)
        kinds = {name: documents.schema.field(name).type for name in packing.columns}
        empty = {
            name: pa.array([], pa.list_(kind.value_type if is_list(kind) else kind, packing.seq_len))
            for name, kind in kinds.items()
        }
        if packing.boundaries:
            empty |= {name: pa.array([], pa.list_(pa.int32(), packing.seq_len)) for name in BOUNDARY_COLUMNS}
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


def _plain(value: Any) -> float:
    """A number as Python's int if it is one, else as a float."""
    number = float(value)
    return int(value) if number.is_integer() else number


def check_documents(expected: NDArray[np.int32], lengths: NDArray[np.int32], origin: str) -> None:
    """Raise SourceError if the documents of a block are not those that were counted before."""
    if not np.array_equal(expected, lengths):
        raise SourceError(
            f"{origin}: read {len(lengths)} documents of {lengths.sum()} tokens, expected {len(expected)} of "
            f"{expected.sum()}, each as long as it was before. The file changed, or a transform is not a pure "
            "function of its rows: list the dataset again, or make the transform return the same tokens every time"
        )
