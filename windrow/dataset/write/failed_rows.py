"""Writes the rows aside for which a transform failed, with its errors."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from windrow.io.sinks.arrow_sinks import ParquetSink
from windrow.io.sinks.open_store import mapped_errors
from windrow.io.sinks.store import Store
from windrow.pipeline.tasks.transforms import FailedRows

__all__ = ["ERROR_COLUMN", "FailedRowsFolder"]

ERROR_COLUMN = "windrow_error"


@dataclass(frozen=True)
class FailedRowsFolder:
    """Where failed rows go; ``job`` names the write, so that a retried task replaces its own files."""

    store: Store
    job: str

    def write(self, label: str, failed: FailedRows) -> int:
        """Write the failed rows of a part as Parquet, a file for each set of columns; returns their number."""
        groups: list[list[pa.Table]] = []
        for rows, error in failed.found:
            if ERROR_COLUMN in rows.column_names:
                # rows that failed before
                rows = rows.drop_columns([ERROR_COLUMN])
            texts = pa.array([str(error)] * rows.num_rows, pa.large_string())
            table = rows.append_column(ERROR_COLUMN, texts)
            alike = next((group for group in groups if group[0].schema.equals(table.schema)), None)
            if alike is None:
                groups.append([table])
            else:
                alike.append(table)
        for number, tables in enumerate(groups):
            path = f"part-{label}-{number}-{self.job}.parquet"
            with mapped_errors(self.store, f"{self.store.url}/{path}"):
                rows = pa.concat_tables(tables)
                self.store.put(path, lambda stream, rows=rows: ParquetSink().write([rows], stream, label))  # type: ignore[misc]
        return sum(rows.num_rows for rows, _ in failed.found)
