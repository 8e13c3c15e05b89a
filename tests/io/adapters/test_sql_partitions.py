"""read_sql returns the rows of a query in the order of its partition column, and notices when they change."""

from __future__ import annotations

import datetime
import pickle
import sqlite3
import traceback
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.stored import read_blocks, same_order_as_parquet, source_of
from tests.laws.examples import examples
from windrow.io.adapters.sql_queries import _bind, check_connection

_VALUES = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.text("aé'\"%漢", max_size=4),
    st.none() | st.binary(max_size=3),
)
_TYPES = {"i": pa.int64(), "f": pa.float64(), "t": pa.string(), "b": pa.binary()}


def run(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def make_numbers(path: Path, count: int = 100) -> Callable[[], Any]:
    """Rows 0 to ``count``, stored in another order."""
    run(path, "CREATE TABLE numbers (x INTEGER PRIMARY KEY, name TEXT, half REAL)")
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [
            (x, f"n{x}" if x % 3 else None, x / 2) for x in sorted(range(count), key=lambda x: x * 37 % 101)
        ]
        connection.executemany("INSERT INTO numbers VALUES (?, ?, ?)", rows)
    return partial(sqlite3.connect, path)


def connect_adbc(path: Path) -> Any:
    return pytest.importorskip("adbc_driver_sqlite.dbapi").connect(str(path))


@examples(60)
@given(
    keys=st.lists(st.text("aé'%b", max_size=4), unique=True, max_size=25)
    | st.lists(st.integers(), unique=True)
    .map(lambda keys: [key % 2**62 for key in keys])
    .filter(lambda keys: len(set(keys)) == len(keys)),
    data=st.data(),
    partitions=st.none() | st.integers(1, 30),
    block_bytes=st.integers(1, 400),
    adbc=st.booleans(),
)
def test_rows_equal_those_of_the_database(
    tmp_path_factory: pytest.TempPathFactory,
    keys: list[Any],
    data: st.DataObject,
    partitions: int | None,
    block_bytes: int,
    adbc: bool,
) -> None:
    path = tmp_path_factory.mktemp("sql") / "x.db"
    rows = [(key, *data.draw(_VALUES)) for key in keys]
    run(path, "CREATE TABLE t (k, i INTEGER, f REAL, t TEXT, b BLOB)")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows)
        expected = connection.execute("SELECT * FROM t ORDER BY k").fetchall()
    kinds = {**_TYPES, "k": pa.string() if keys and isinstance(keys[0], str) else pa.int64()}
    connect = partial(connect_adbc if adbc else sqlite3.connect, path)
    options: dict[str, Any] = {"dtypes": kinds, "target_block_bytes": block_bytes}
    ds = windrow.read_sql("t", connect, partition_column="k", partitions=partitions, **options)
    if partitions is not None:
        assert ds.num_blocks() <= partitions
    staged = windrow.read_sql("SELECT * FROM t ORDER BY k", connect, **options)
    for found in (ds, staged):
        assert [tuple(row.values()) for row in read_blocks(found).to_pylist()] == expected
        assert found.count() == len(rows)
        assert found.columns() == ["k", "i", "f", "t", "b"]
    one = windrow.read_sql("t", connect, partition_column="k", columns=["t"], dtypes={"t": pa.string()})
    assert read_blocks(one)["t"].to_pylist() == [row[3] for row in expected]


@pytest.mark.parametrize("connect", [sqlite3.connect, connect_adbc])
def test_order_equals_that_of_parquet(tmp_path: Path, connect: Any) -> None:
    make_numbers(tmp_path / "x.db")
    ds = windrow.read_sql("numbers", partial(connect, tmp_path / "x.db"), partition_column="x", partitions=7)
    assert source_of(ds).blocks.rows.tolist() == [14, 14, 14, 15, 14, 14, 15]
    same_order_as_parquet(ds, tmp_path)


def test_every_row_comes_once_also_when_resumed(tmp_path: Path) -> None:
    connect = make_numbers(tmp_path / "x.db")

    def pipe() -> windrow.DatasetPipeline:
        ds = windrow.read_sql("numbers", connect, partition_column="x", partitions=10)
        ds = pickle.loads(pickle.dumps(ds))
        made = ds.window(blocks_per_window=4).repeat(1).random_shuffle_each_window(seed=3)
        return made.options(executor="threads", progress=False)

    with pipe().iterator() as shard:
        batches = iter(shard.iter_batches(batch_size=9))
        taken = next(batches)["x"].tolist() + next(batches)["x"].tolist()
        state = shard.state_dict()
    rest = [x for batch in pipe().iterator(state_dict=state).iter_batches() for x in batch["x"].tolist()]
    assert sorted(taken + rest) == list(range(100))
    assert taken + rest != list(range(100))
    run(tmp_path / "x.db", "UPDATE numbers SET x = 1000 WHERE x = 99")
    with pytest.raises(windrow.StateError, match="content"):
        pipe().iterator(state_dict=state)


@pytest.mark.parametrize(
    ("change", "how"),
    [
        ("INSERT INTO numbers VALUES (1000, 'x', 0)", "11 rows where 10 were counted"),
        ("INSERT INTO numbers VALUES (-5, 'x', 0)", "11 rows where 10 were counted"),
        ("DELETE FROM numbers WHERE x = 55", "9 rows where 10 were counted"),
        ("UPDATE numbers SET x = 1000 WHERE x = 99", "its keys go from 90 to 1000, and went from 90 to 99"),
        ("DELETE FROM numbers", "0 rows where 10 were counted"),
    ],
)
def test_changed_tables_raise(tmp_path: Path, change: str, how: str) -> None:
    connect = make_numbers(tmp_path / "x.db")
    ds = windrow.read_sql("numbers", connect, partition_column="x", partitions=10)
    run(tmp_path / "x.db", change)
    with pytest.raises(windrow.SourceError, match=rf"numbers.*partition \d: the table has changed.*{how}"):
        read_blocks(ds)


def test_types_of_values(tmp_path: Path) -> None:
    class Cursor:
        description = [("d", None, None, None, 5, 2, None), ("p", None, None, None, None, None, None)] + [
            (name, *[None] * 6) for name in ("day", "at", "raw", "none")
        ]

        def execute(self, statement: str) -> None:
            self.rows = [
                (Decimal("1.50"), Decimal("0.125"), datetime.date(2020, 1, 2), None, memoryview(b"x"), None),
                (
                    None,
                    Decimal(7),
                    None,
                    datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
                    None,
                    None,
                ),
            ]

        def fetchmany(self, count: int) -> list[Any]:
            rows, self.rows = self.rows, []
            return rows

        def close(self) -> None: ...

    class Connection:
        def cursor(self) -> Cursor:
            return Cursor()

        def close(self) -> None: ...

    ds = windrow.read_sql("SELECT 1", Connection)
    assert source_of(ds).schema == pa.schema(
        [
            ("d", pa.decimal128(5, 2)),
            ("p", pa.decimal128(38, 3)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("raw", pa.binary()),
            ("none", pa.null()),
        ]
    )
    assert ds.take(1)[0]["p"] == Decimal("0.125")


def test_values_that_do_not_fit_raise(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    run(path, "CREATE TABLE t (k, v)", "INSERT INTO t VALUES (1, 1), (2, 'text')")
    connect = partial(sqlite3.connect, path)
    with pytest.raises(
        windrow.SourceError, match=r"read_sql.*column 'v' has values that no Arrow type holds.*dtypes="
    ):
        windrow.read_sql("t", connect)
    with pytest.raises(
        windrow.SourceError, match="column 'v' is read as int64, which does not hold all values"
    ):
        windrow.read_sql("t", connect, dtypes={"v": pa.int64()})
    cast = windrow.read_sql("SELECT k, CAST(v AS TEXT) AS v FROM t", connect)
    assert cast.take() == [{"k": 1, "v": "1"}, {"k": 2, "v": "text"}]
    with pytest.raises(windrow.PlanError, match="dtypes= names 'v', which is not a column"):
        windrow.read_sql("t", connect, dtypes={"w": pa.int64(), "v": pa.string()}, columns=["k"])
    with pytest.raises(windrow.SourceError, match="two columns are called 'k'"):
        windrow.read_sql("SELECT k, k FROM t", connect)


def test_partition_columns_must_be_unique_and_not_null(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    run(path, "CREATE TABLE t (a, b, c)", "INSERT INTO t VALUES (1, 1, 1), (2, 1, 2), (3, 2, NULL)")
    connect = partial(sqlite3.connect, path)
    with pytest.raises(windrow.SourceError, match="partition_column='b' has 2 distinct values in 3 rows"):
        windrow.read_sql("t", connect, partition_column="b")
    with pytest.raises(windrow.SourceError, match="partition_column='c' is null in 1 of 3 rows"):
        windrow.read_sql("t", connect, partition_column="c")
    some = windrow.read_sql(
        "SELECT * FROM t WHERE c IS NOT NULL;", connect, partition_column="c", columns=["a"]
    )
    assert some.take() == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": " "}, "must be a SELECT statement"),
        ({"connection": "mysql://host/db"}, "does not begin with postgresql:// or sqlite://"),
        ({"connection": 5}, "connection= is a int: give a function"),
        ({"partitions": 3}, "partitions=3 needs a partition_column="),
        ({"partitions": 0, "partition_column": "x"}, "partitions=0 must be an integer of 1 or more"),
        ({"partition_column": 3}, "partition_column=3 must be the name"),
        ({"partition_column": "x", "cache_dir": "/tmp"}, "cache_dir= is for staged rows"),
        ({"columns": "x"}, "columns='x' must be a list"),
        ({"dtypes": {"x": int}}, "must be a dict of pyarrow types"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    connect = make_numbers(tmp_path / "x.db", 3)
    with pytest.raises(windrow.PlanError, match=message):
        windrow.read_sql(**{"query": "numbers", "connection": connect, **arguments})
    with (
        closing(connect()) as opened,
        pytest.raises(windrow.PlanError, match=r"is a Connection: give a function"),
    ):
        windrow.read_sql("numbers", opened)


@pytest.mark.parametrize("key", [None, "x"])
@pytest.mark.parametrize("adbc", [False, True])
def test_columns_that_a_query_lacks_raise(tmp_path: Path, key: str | None, adbc: bool) -> None:
    make_numbers(tmp_path / "x.db", 3)
    connect = partial(connect_adbc if adbc else sqlite3.connect, tmp_path / "x.db")
    # SQLite takes "title" alone for a text
    with pytest.raises(windrow.SourceError, match=r"no such column: windrow_\w+\.title"):
        windrow.read_sql("numbers", connect, partition_column=key, columns=["title"])
    with pytest.raises(windrow.PlanError, match=r"columns= names 'NAME'.*it has \['name'.*case counts"):
        windrow.read_sql("numbers", connect, partition_column=key, columns=["NAME"])
    with pytest.raises(windrow.SourceError, match=r"no such column: windrow_rows\.z"):
        windrow.read_sql("numbers", connect, partition_column="z")


def test_columns_that_were_renamed_raise(tmp_path: Path) -> None:
    connect = make_numbers(tmp_path / "x.db", 3)
    ds = windrow.read_sql("numbers", connect, partition_column="x")
    run(tmp_path / "x.db", "ALTER TABLE numbers RENAME COLUMN name TO title")
    with pytest.raises(windrow.SourceError, match=r"no such column: windrow_rows\.name"):
        read_blocks(ds)


@pytest.mark.parametrize("key", [None, "x"])
def test_queries_end_with_comments(tmp_path: Path, key: str | None) -> None:
    connect = make_numbers(tmp_path / "x.db", 3)
    ds = windrow.read_sql("SELECT *\nFROM numbers -- all", connect, partition_column=key, columns=["x"])
    assert sorted(row["x"] for row in ds.iter_rows()) == [0, 1, 2]


def test_statements_without_rows_raise(tmp_path: Path) -> None:
    connect = make_numbers(tmp_path / "x.db", 3)
    with pytest.raises(windrow.SourceError, match="no rows as its result: give a SELECT statement"):
        windrow.read_sql("DELETE FROM numbers", connect)
    assert windrow.read_sql("numbers", connect).count() == 3


class _Views(sqlite3.Connection):
    """A connection that returns bytes as views, as psycopg2 does."""

    def cursor(self, *args: Any) -> Any:
        made = super().cursor(*args)
        made.row_factory = lambda _, row: tuple(
            memoryview(value) if isinstance(value, bytes) else value for value in row
        )
        return made


def test_keys_of_bytes_can_be_views(tmp_path: Path) -> None:
    run(tmp_path / "x.db", "CREATE TABLE t (k BLOB)", "INSERT INTO t VALUES (x'01'), (x'00'), (x'02')")
    connect = partial(sqlite3.connect, tmp_path / "x.db", factory=_Views)
    one, two = (windrow.read_sql("t", connect, partition_column="k", partitions=3) for _ in range(2))
    assert read_blocks(pickle.loads(pickle.dumps(one)))["k"].to_pylist() == [b"\0", b"\1", b"\2"]
    assert source_of(one).fingerprint == source_of(two).fingerprint


def test_errors_name_the_query_and_no_password(tmp_path: Path) -> None:
    connect = make_numbers(tmp_path / "x.db", 3)
    with pytest.raises(
        windrow.SourceError, match=r"read_sql\('SELECT \* FROM \"nothing\"'\): .*no such table: nothing"
    ):
        windrow.read_sql("nothing", connect)
    with pytest.raises(windrow.SourceError, match="no such column: missing"):
        windrow.read_sql("SELECT missing FROM numbers", connect, partition_column="missing")

    def refuse(*args: Any, **options: Any) -> Any:
        raise OSError(f"cannot connect with {args} {options}")

    secrets: dict[str, Any] = {
        "s3cr3t1": lambda: refuse("host=h password=s3cr3t1"),
        "s3cr3t2": partial(refuse, "host", password="s3cr3t2"),
        "s3cr3t3": partial(refuse, "postgresql://me:s3cr3t3@host/db"),
    }
    for secret, connects in secrets.items():
        with pytest.raises(windrow.SourceError, match="cannot connect with") as caught:
            windrow.read_sql("t", connects)
        assert secret not in str(caught.value)
        assert secret not in "".join(traceback.format_exception(caught.value))
    ds = windrow.read_sql("numbers", connect, partition_column="x")
    assert "sqlite" not in repr(source_of(ds).reader)
    assert "s3cr3t" not in repr(check_connection("postgresql://me:s3cr3t@host/db"))


def test_uris_are_opened_by_adbc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    make_numbers(tmp_path / "x y.db")
    monkeypatch.chdir(tmp_path)
    for uri in ("sqlite:///x y.db", f"sqlite:///{tmp_path}/x y.db"):
        ds = windrow.read_sql("main.numbers", uri, partition_column="x", partitions=3)
        assert pickle.loads(pickle.dumps(ds)).take(2)[1] == {"x": 1, "name": "n1", "half": 0.5}
        assert "x y" not in repr(source_of(ds).reader)
    with pytest.raises(windrow.SourceError, match="failed to open"):
        windrow.read_sql("numbers", "sqlite:///missing.db")
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize(
    ("style", "marks", "bound"),
    [
        ("qmark", ["?", "?"], (5, "x")),
        ("numeric", [":1", ":2"], (5, "x")),
        ("named", [":windrow_0", ":windrow_1"], {"windrow_0": 5, "windrow_1": "x"}),
        ("format", ["%s", "%s"], (5, "x")),
        ("pyformat", ["%(windrow_0)s", "%(windrow_1)s"], {"windrow_0": 5, "windrow_1": "x"}),
    ],
)
def test_placeholders_are_those_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, style: str, marks: list[str], bound: Any
) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        monkeypatch.setattr(sqlite3, "paramstyle", style)
        assert _bind(connection, [5, "x"]) == (marks, bound)
