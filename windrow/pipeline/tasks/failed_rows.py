"""Says where a transform failed: in which block, and where the source can trace it, which file, row group and row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from windrow.core.errors import PlanError, TransformError
from windrow.core.source import RowOrigin, Source, TracingSource
from windrow.io.catalog.listed_source import NumberedRows
from windrow.io.catalog.row_ids import RowIdSource


@contextmanager
def checking_rows(where: str) -> Iterator[None]:
    """Raise what checks of a plan raise as TransformErrors, since rows have been made; ``where`` begins the message."""
    try:
        yield
    except PlanError as error:
        raise TransformError(f"{where}{error}") from None


@contextmanager
def naming_stored_rows(source: Source) -> Iterator[None]:
    """Complete the errors of transforms of the blocks of a source."""
    try:
        yield
    except TransformError as error:
        name_stored_row(error, source)
        raise


def name_stored_row(error: TransformError, source: Any) -> None:
    """Complete the error of a transform of a block by where its row is stored; once, if that is known."""
    row = error._failed_row
    if row is None or row.block is None or not are_in_files(source):
        return
    # a source that cannot tell it, or not any more, must not hide the error
    with suppress(Exception):
        add_origin(error, source.row_lineage(source.row_numbers(row.block, np.array([row.row]))))


def are_in_files(source: Source) -> bool:
    """Whether the rows of a source lie in files, and it can tell where; other sources only number theirs."""
    stored = source.stored if isinstance(source, RowIdSource) else source
    return isinstance(stored, TracingSource) and not isinstance(stored, NumberedRows)


def add_origin(error: TransformError, origins: list[RowOrigin]) -> None:
    """Add to an error where its row is stored."""
    ((path, row_group, row),) = origins
    error._failed_row = None
    error.args = (f"{error.args[0]}. The row is stored in {path}, row group {row_group}, row {row}",)
