"""Runs queries through DB-API connections, with ADBC's as Arrow; maps errors without credentials."""

from __future__ import annotations

import functools
import re
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from windrow.core.errors import PlanError, SourceError, WindrowError
from windrow.core.optional_dependencies import require
from windrow.io.storage.credentials import find_secrets, redact, safe_cause, url_secrets

_ROWS_AT_ONCE = 1024
_SHOWN_CHARACTERS = 60
_TABLE = re.compile(r"[^\W\d][\w$]*(\.[^\W\d][\w$]*)*")
# credentials in connection strings and calls: password=..., pwd: "..."
_PASSWORD = re.compile(r"(?i)\b(password|passwd|pwd)(['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&;,)]+)")
_FIX = "check the query, the connection and the permissions"
_MAX_DIGITS = 38


@dataclass(frozen=True)
class AdbcUri:
    """Opens ADBC connections to a URI, which can contain a password."""

    uri: str = field(repr=False)

    def __call__(self) -> Any:
        scheme, _, rest = self.uri.partition("://")
        if scheme == "sqlite":
            driver = require("adbc_driver_sqlite.dbapi", "adbc", "read_sql() with a URI")
            # a missing file would be created
            return driver.connect(f"file:{quote(rest.removeprefix('/'))}?mode=ro")
        return require("adbc_driver_postgresql.dbapi", "adbc", "read_sql() with a URI").connect(self.uri)


def check_connection(connection: Any) -> Callable[[], Any]:
    """Return the function that opens connections; a `PlanError` for anything else than one, or a URI."""
    if isinstance(connection, str):
        if (
            connection.partition("://")[0] not in ("postgresql", "postgres", "sqlite")
            or "://" not in connection
        ):
            raise PlanError(
                "connection= is a string that does not begin with postgresql:// or sqlite://: give such a URI, or a "
                "function that opens a connection"
            )
        return AdbcUri(connection)
    is_open = hasattr(connection, "cursor") and not isinstance(connection, type)
    if not callable(connection) or is_open:
        raise PlanError(
            f"connection= is a {type(connection).__qualname__}: give a function that opens a DB-API connection, as in "
            "lambda: sqlite3.connect('trips.db'), since each block is read through one of its own; or a URI"
        )
    return connection


def quote_name(name: str) -> str:
    """Quote an identifier as standard SQL does.

    >>> quote_name('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def quote_column(name: str, table: str = "windrow_rows") -> str:
    """Quote a column of a table; SQLite takes a name alone that no column has for a text.

    >>> quote_column("x")
    'windrow_rows."x"'
    """
    return f"{table}.{quote_name(name)}"


def parse_query(query: Any) -> str:
    """Return a SELECT statement for a query or the name of a table.

    >>> parse_query("main.trips"), parse_query("SELECT x FROM trips;")
    ('SELECT * FROM "main"."trips"', 'SELECT x FROM trips')
    """
    if not isinstance(query, str) or not query.strip():
        raise PlanError(f"query={query!r} must be a SELECT statement, or the name of a table")
    text = query.strip().rstrip("; \n\t")
    if _TABLE.fullmatch(text):
        return "SELECT * FROM " + ".".join(map(quote_name, text.split(".")))
    return text


@dataclass(frozen=True)
class SqlQuery:
    """A query and how to connect; picklable if the function that connects is."""

    text: str
    connect: Callable[[], Any] = field(repr=False)

    @property
    def name(self) -> str:
        """The query's beginning, for messages."""
        line = " ".join(self.text.split())
        shown = line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."
        return f"read_sql({self._redact(shown)!r})"

    @property
    def rows(self) -> str:
        """The query as the table ``windrow_rows`` of another one; the new line ends a comment at its end."""
        return f"({self.text}\n) windrow_rows"

    @contextmanager
    def execute(self, what: str, pieces: Sequence[str], values: Sequence[Any] = ()) -> Iterator[Any]:
        """Run a statement over a new connection, and yield its cursor; ``values`` go between the ``pieces``.

        Errors become a SourceError that begins with ``what``. The wait for the database has no other limit than that
        of the driver.
        """
        with (
            self.mapped_errors(what),
            closing(self.connect()) as connection,
            closing(connection.cursor()) as cursor,
        ):
            marks, bound = _bind(connection, values)
            # drivers replace %s only where values are given
            texts = [piece.replace("%", "%%") for piece in pieces] if "%" in "".join(marks) else list(pieces)
            statement = texts[0] + "".join(mark + text for mark, text in zip(marks, texts[1:], strict=True))
            if values:
                cursor.execute(statement, bound)
            else:
                cursor.execute(statement)
            yield cursor

    def fetch(self, what: str, pieces: Sequence[str], values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows as Python values."""
        with self.execute(what, pieces, values) as cursor:
            return [tuple(row) for row in cursor.fetchall()]

    @contextmanager
    def mapped_errors(self, what: str) -> Iterator[None]:
        """Map errors of drivers to SourceError, without credentials."""
        try:
            yield
        except (WindrowError, MemoryError):
            raise
        except Exception as error:
            why = self._redact(str(error)).strip().rstrip(".") or type(error).__name__
            kind = f"{type(error).__name__}: " if why != type(error).__name__ else ""
            raise SourceError(f"{what}: {kind}{why}; {_FIX}") from self._cause(error)

    def _cause(self, error: BaseException) -> BaseException | None:
        """The error for ``raise ... from``; None if its traceback shows a credential, also in the user's code."""
        if _PASSWORD.search("".join(traceback.format_exception(error))):
            return None
        return safe_cause(error, self._secrets())

    def _redact(self, text: str) -> str:
        return _PASSWORD.sub(r"\1\2***", redact(text, self._secrets()))

    def _secrets(self) -> tuple[str, ...]:
        connect = self.connect
        if isinstance(connect, AdbcUri):
            return (*url_secrets(connect.uri), *(match[3] for match in _PASSWORD.finditer(connect.uri)))
        if not isinstance(connect, functools.partial):
            return ()
        texts = [text for text in (*connect.args, *connect.keywords.values()) if isinstance(text, str)]
        given = [match[3] for text in texts for match in _PASSWORD.finditer(text)]
        return (*find_secrets(connect.keywords), *find_secrets(list(connect.args)), *given)


def _bind(connection: Any, values: Sequence[Any]) -> tuple[list[str], Any]:
    """The placeholders of a connection's library, and the values in the form that they need."""
    style, names = _find_style(connection), [f"windrow_{number}" for number in range(len(values))]
    numbers = range(1, len(values) + 1)
    if style == "dollar":
        return [f"${number}" for number in numbers], tuple(values)
    if style == "numeric":
        return [f":{number}" for number in numbers], tuple(values)
    if style == "named":
        return [f":{name}" for name in names], dict(zip(names, values, strict=True))
    if style == "pyformat":
        return [f"%({name})s" for name in names], dict(zip(names, values, strict=True))
    return ["%s" if style == "format" else "?" for _ in values], tuple(values)


def _find_style(connection: Any) -> str:
    """The ``paramstyle`` of the library that a connection is of."""
    # SQLAlchemy's pool wraps connections
    inner = getattr(connection, "dbapi_connection", None) or connection
    if hasattr(inner, "adbc_get_info"):
        # ADBC passes placeholders on to the database
        return "dollar" if inner.adbc_get_info().get("vendor_name") == "PostgreSQL" else "qmark"
    for kind in type(inner).__mro__[:-1]:
        parts = kind.__module__.split(".")
        for length in range(len(parts), 0, -1):
            style = getattr(sys.modules.get(".".join(parts[:length])), "paramstyle", None)
            if isinstance(style, str):
                return style
    return "qmark"


def read_table(cursor: Any, types: Mapping[str, pa.DataType], what: str) -> pa.Table:
    """All rows of a cursor; as Arrow where the driver has it. ``types`` are those of columns, others are inferred."""
    if hasattr(cursor, "fetch_arrow_table"):
        return _plain_columns(cursor.fetch_arrow_table(), what)
    return _to_table(cursor.description, cursor.fetchall(), types, what)


def iterate_tables(cursor: Any, types: Mapping[str, pa.DataType], what: str) -> Iterator[pa.Table]:
    """The rows of a cursor as tables of some rows; at least one table."""
    if hasattr(cursor, "fetch_record_batch"):
        reader = cursor.fetch_record_batch()
        yield _plain_columns(reader.schema.empty_table(), what)
        for batch in reader:
            yield _plain_columns(pa.Table.from_batches([batch]), what)
        return
    rows = cursor.fetchmany(_ROWS_AT_ONCE)
    first = _to_table(cursor.description, rows, types, what)
    yield first
    known = dict(zip(first.column_names, first.schema.types, strict=True))
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        yield _to_table(cursor.description, rows, known, what)


def _plain_columns(table: pa.Table, what: str) -> pa.Table:
    """Replace ADBC's columns of database types that Arrow lacks by their stored values."""
    _check_names(table.column_names, what)
    for place, column in enumerate(table.columns):
        if getattr(column.type, "extension_name", "") == "arrow.opaque":
            storage = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
            table = table.set_column(place, table.column_names[place], storage)
    return table.replace_schema_metadata(None)


def _check_names(names: Sequence[str], what: str) -> None:
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"{what}: two columns are called {twice!r}; name them with AS in the query")


def _to_table(description: Any, rows: Sequence[Any], types: Mapping[str, pa.DataType], what: str) -> pa.Table:
    if description is None:
        raise SourceError(f"{what}: the statement has no rows as its result: give a SELECT statement")
    names = [str(column[0]) for column in description]
    _check_names(names, what)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [
        to_array(values, types.get(name), f"{what}: column {name!r}", stated)
        for name, values, stated in zip(names, columns, description, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names)


def _simplify(values: Sequence[Any]) -> list[Any]:
    """Python values of types that Arrow knows."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, (memoryview, bytearray)):
        return [None if value is None else bytes(value) for value in values]
    if isinstance(first, uuid.UUID):
        return [None if value is None else str(value) for value in values]
    return list(values)


def to_array(
    values: Sequence[Any], kind: pa.DataType | None, what: str, stated: Sequence[Any] = ()
) -> pa.Array:
    """Values of a column as Arrow; a SourceError if a type cannot hold them, or there is none."""
    values = _simplify(values)
    if kind is None:
        kind = _decimal_type(values, stated)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        read = (
            "has values that no Arrow type holds"
            if kind is None
            else f"is read as {kind}, which does not hold all values"
        )
        raise SourceError(
            f"{what} {read} ({error}): give a type with dtypes=, or CAST it in the query"
        ) from error


def _decimal_type(values: Sequence[Any], stated: Sequence[Any]) -> pa.DataType | None:
    """The type of decimals: what the driver states, else as many digits before the point as fit."""
    decimals = [value for value in values if isinstance(value, Decimal) and value.is_finite()]
    if not decimals or len(decimals) != sum(value is not None for value in values):
        return None
    precision, scale = (stated[4], stated[5]) if len(stated) > 5 else (None, None)
    if (
        isinstance(precision, int)
        and isinstance(scale, int)
        and 0 <= scale <= precision <= _MAX_DIGITS
        and precision
    ):
        return pa.decimal128(precision, scale)
    places = max(max(0, -int(value.as_tuple().exponent)) for value in decimals)
    return pa.decimal128(_MAX_DIGITS, places) if places <= _MAX_DIGITS else None
