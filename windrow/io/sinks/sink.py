"""The interface of output formats: check a schema up front, then write tables as one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import BinaryIO, Protocol

import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["Sink", "check_types"]


class Sink(Protocol):
    """How to write files of one format: a frozen, picklable value with the user's options."""

    @property
    def name(self) -> str:
        """The format's name in messages: ``"Parquet"``."""
        ...

    @property
    def suffix(self) -> str:
        """The end of a file's name: ``".csv.gz"``."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Raise for columns that the format cannot store, before anything is written.

        Raises
        ------
        PlanError
            Naming the columns, their types and a fix; or the extra to install.
        """
        ...

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file.

        Parameters
        ----------
        tables
            (1 or more) tables of one schema that `check` has accepted; a table can be empty.
        stream
            Accepts sequential writes only: no seeking or reading. The sink can close it.
        label
            Identifies the file within its write job, and is the same when the file is written
            again.

        Raises
        ------
        PlanError
            If a value cannot be stored in the format; names its column.
        """
        ...


def check_types(name: str, schema: pa.Schema, fix: Callable[[pa.DataType], str | None]) -> None:
    """Raise a ``PlanError`` that names every column whose type the format cannot store.

    Parameters
    ----------
    name
        The format.
    fix
        Returns how to fix an unsupported type; None if the format can store it.
    """
    checked = [(field, fix(field.type)) for field in schema]
    named = [f"column {field.name!r} is {field.type}: {advice}" for field, advice in checked if advice]
    if named:
        raise PlanError(f"{name} cannot carry every column: {'; '.join(named)}")
