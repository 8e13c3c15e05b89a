"""HDF5 files: datasets whose first dimension is rows, read with h5py along the borders of their chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from windrow.io.catalog.manifest import FragmentFacts, estimate_variable
from windrow.io.catalog.value_sizes import fixed_bits, measure_values
from windrow.io.formats.array_columns import ArrayColumn, choose_row_step, holds_times
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.hdf5_files import (
    Dataset,
    Hdf5Error,
    describe_datasets,
    find_dataset,
    find_datasets,
    open_hdf5,
)
from windrow.io.formats.row_group_format import PART_BYTES, ChoiceError, RowGroupFormat, corruption_is_invalid

# the rows by which the size of values of variable length is estimated
_SAMPLED_ROWS = 16


class _Layout(NamedTuple):
    """The columns of a file, their datasets by path, and the rows of a row group."""

    columns: list[ArrayColumn]
    datasets: dict[str, Dataset]
    rows: int
    step: int

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """The range of rows of each row group."""
        return [(first, min(first + self.step, self.rows)) for first in range(0, self.rows, self.step)]


@dataclass(frozen=True)
class Hdf5Format(RowGroupFormat):
    """Datasets of equal length; row groups are whole chunks of all of them.

    ``paths`` are the (column, path) pairs that the user chose; None: every dataset has its path as its name.
    """

    joins_files = True
    corruption = (ValueError, Hdf5Error)

    paths: tuple[tuple[str, str], ...] | None = None
    name: str = "HDF5"

    @property
    def options(self) -> str:
        return "" if self.paths is None else f"columns={dict(self.paths)!r}"

    def can_map(self, schema: pa.Schema) -> bool:
        """Never: h5py copies."""
        return False

    def summarise(self, file: OpenFile) -> FragmentFacts:
        with open_hdf5(file) as (opened, _):
            layout = self._lay_out(opened)
            rows = [last - first for first, last in layout.cuts]
            varying = [column for column in layout.columns if fixed_bits(column.type) is None]
            widths = _measure(layout, varying)
            row_bytes = sum(dataset.row_bytes for dataset in layout.datasets.values())
        schema = pa.schema([pa.field(column.name, column.type) for column in layout.columns])
        variable = estimate_variable(schema, rows, widths)
        nulls = {column.name: None if holds_times(column.type) else 0 for column in layout.columns}
        return FragmentFacts(schema, rows, [count * row_bytes for count in rows], variable, nulls)

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read row ranges one by one; the HDF5 library reads one at a time in a process."""
        with corruption_is_invalid(self.corruption), open_hdf5(file) as (opened, remote):
            layout = self._lay_out(opened)
            cuts = layout.cuts[start:stop]
            wanted = [column for column in layout.columns if column.name in schema.names] or layout.columns[
                :1
            ]
            if remote is not None:
                datasets = [layout.datasets[path] for path in dict.fromkeys(column.path for column in wanted)]
                remote.prefetch(
                    [span for each in datasets for span in each.chunk_ranges(cuts[0][0], cuts[-1][1])]
                )
            for first, last in cuts:
                yield _read(layout.datasets, wanted, first, last)

    def _lay_out(self, opened: Any) -> _Layout:
        """Find the columns of a file; a ValueError if one is missing or cannot be read, or their lengths differ."""
        known = find_datasets(opened)
        columns: list[ArrayColumn] = []
        datasets: dict[str, Dataset] = {}
        for name, path in self.paths or tuple((path, path) for path in known):
            dataset, field = find_dataset(opened, path, known)
            dataset = datasets.setdefault(dataset.path, dataset)
            columns += dataset.columns(name, field, fields=self.paths is None)
        if not columns:
            raise ValueError("holds no datasets")
        first, *others = datasets.values()
        for other in others:
            if other.rows != first.rows:
                raise ChoiceError(
                    f"has {first.rows:,} rows in the dataset {first.path!r} and {other.rows:,} in {other.path!r}: "
                    f"choose datasets of equal length with columns={{{first.path!r}: {first.path!r}, ...}} from "
                    f"{describe_datasets(known.values())}"
                )
        chunks = [(dataset.chunk_rows, dataset.row_bytes) for dataset in datasets.values()]
        return _Layout(columns, datasets, first.rows, choose_row_step(first.rows, chunks, PART_BYTES))


def _read(datasets: dict[str, Dataset], columns: Sequence[ArrayColumn], first: int, last: int) -> pa.Table:
    """Read some rows; a structured dataset once for all of its fields."""
    read: dict[str, Any] = {}
    for path in dict.fromkeys(column.path for column in columns):
        fields = [column.field for column in columns if column.path == path]
        handle = datasets[path].handle
        read[path] = (handle.fields(fields) if all(fields) else handle)[first:last]
    return pa.table({column.name: column.select(read[column.path]) for column in columns})


def _measure(layout: _Layout, columns: Sequence[ArrayColumn]) -> dict[str, float]:
    """The mean bytes in memory of a value of variable length, from the first rows."""
    rows = min(layout.rows, _SAMPLED_ROWS)
    sample = _read(layout.datasets, columns, 0, rows) if columns and rows else None
    return {column.name: measure_values(column.name, column.type, sample) for column in columns}
