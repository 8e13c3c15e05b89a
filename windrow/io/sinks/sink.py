"""What a file format is to a writer: a block writer, which says first what it cannot carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import BinaryIO, Protocol

import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["Sink", "refuse_types"]


class Sink(Protocol):
    """How files of one kind are written: a frozen value with the user's options, picklable."""

    @property
    def name(self) -> str:
        """What users call it: ``"Parquet"``."""
        ...

    @property
    def suffix(self) -> str:
        """The end of a file's name: ``".csv.gz"``."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the format cannot carry, before anything is written.

        Raises
        ------
        PlanError
            Naming the columns, their types, and what to do; or the extra to install.
        """
        ...

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file.

        Parameters
        ----------
        tables
            (1 or more) all of one schema that `check` has passed; tables may have no rows.
        stream
            Takes bytes in order, and can neither seek nor be read. It may be closed.
        label
            Tells this file from the others of the same write, and is the same when it is
            written again.

        Raises
        ------
        PlanError
            For a value that the format cannot carry, naming its column.
        """
        ...


def refuse_types(name: str, schema: pa.Schema, fix: Callable[[pa.DataType], str | None]) -> None:
    """Refuse the columns of a schema for whose types there is a remedy.

    Parameters
    ----------
    name
        The format.
    remedy
        What to do about a type; None where the format carries it.
    """
    refused = [(field, fix(field.type)) for field in schema]
    named = [f"column {field.name!r} is {field.type}: {advice}" for field, advice in refused if advice]
    if named:
        raise PlanError(f"{name} cannot carry every column: {'; '.join(named)}")
