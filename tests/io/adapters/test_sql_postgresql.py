"""read_sql on a PostgreSQL that these tests start, through psycopg and ADBC."""

from __future__ import annotations

import datetime
import os
import pickle
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from tests.io.formats.stored import read_blocks, same_order_as_parquet, source_of

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.nightly
_ROWS = 500


def _find_programs() -> Path | None:
    """The folder of PostgreSQL's server programs: on the PATH, or where Debian's packages have them."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    return Path(found).parent if found else next((path.parent for path in folders), None)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The folder of the socket of a server that lasts as long as the tests of this module."""
    programs = _find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (apt-get install postgresql)")
    # PostgreSQL does not run as root, and a socket's path must be short
    as_user = ["runuser", "-u", "nobody", "--"] if os.getuid() == 0 else []
    folder = tempfile.mkdtemp(prefix="wr-pg-", dir="/tmp")
    if as_user:
        shutil.chown(folder, "nobody")
    data = f"{folder}/data"

    def run(*command: str) -> None:
        done = subprocess.run(
            [*as_user, *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        run(f"{programs}/initdb", "--username=me", "--auth=trust", "--encoding=UTF8", "--no-sync", "-D", data)
        settings = f"-c listen_addresses='' -k {folder} -c fsync=off"
        run(
            f"{programs}/pg_ctl", "-D", data, "-w", "-t", "60", "-l", f"{folder}/log", "-o", settings, "start"
        )
        try:
            with closing(_connect(folder)) as connection, connection.cursor() as cursor:
                _fill(cursor)
                connection.commit()
            yield folder
        finally:
            run(f"{programs}/pg_ctl", "-D", data, "-m", "immediate", "-t", "60", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _connect(folder: str) -> Any:
    return psycopg.connect(host=folder, user="me", dbname="postgres", connect_timeout=30)


def _connect_adbc(folder: str) -> Any:
    driver = pytest.importorskip("adbc_driver_postgresql.dbapi")
    return driver.connect(_uri(folder))


def _uri(folder: str) -> str:
    return f"postgresql:///postgres?host={folder}&user=me&password=s3cr3t"


def _fill(cursor: Any) -> None:
    cursor.execute(
        'CREATE TABLE trips ("Id" bigint PRIMARY KEY, name text COLLATE "C" UNIQUE, fare numeric(8, 2), loose numeric, '
        "at timestamptz, day date, raw bytea, flag boolean, ref uuid UNIQUE, tags integer[], small smallint)"
    )
    cursor.execute(
        f"""INSERT INTO trips SELECT i, 'n%' || i, i / 4.0, i / 3.0,
        timestamptz '2020-01-01 00:00+00' + i * interval '1 h',
        date '2020-01-01' + i, decode(lpad(i::text, 4, '0'), 'hex'), i % 2 = 0,
        md5(i::text)::uuid, ARRAY[i, i + 1], CASE WHEN i % 3 = 0 THEN NULL ELSE i END
        FROM (SELECT (i * 37) % 503 AS i FROM generate_series(0, 502) AS i) numbers WHERE i < {_ROWS}"""
    )


def _rows(folder: str, order: str) -> list[tuple[Any, ...]]:
    with closing(_connect(folder)) as connection, connection.cursor() as cursor:
        cursor.execute(f'SELECT "Id", name, fare, flag, ref, small FROM trips ORDER BY {order}')
        return [tuple(row) for row in cursor.fetchall()]


@pytest.mark.parametrize("connect", [_connect, _connect_adbc])
@pytest.mark.parametrize("key", ["Id", "name", "ref", "at"])
def test_rows_come_in_the_order_of_any_unique_column(server: str, connect: Any, key: str) -> None:
    if key == "ref" and connect is _connect_adbc:
        pytest.skip("ADBC binds the text of a uuid as text, which PostgreSQL does not compare with a uuid")
    query = "SELECT \"Id\", name, fare, flag, ref, small, at FROM trips WHERE name LIKE 'n%'"
    ds = windrow.read_sql(query, partial(connect, server), partition_column=key, partitions=9)
    assert source_of(ds).blocks.rows.tolist() == [55, 56, 55, 56, 55, 56, 55, 56, 56]
    found = read_blocks(pickle.loads(pickle.dumps(ds))).select(["Id", "name", "flag", "small"])
    expected = [(row[0], row[1], row[3], row[5]) for row in _rows(server, f'"{key}"')]
    assert [tuple(row.values()) for row in found.to_pylist()] == expected


def test_types_of_psycopg(server: str) -> None:
    ds = windrow.read_sql("trips", partial(_connect, server), partition_column="Id", partitions=3)
    kinds = dict(zip(source_of(ds).schema.names, source_of(ds).schema.types, strict=True))
    assert kinds == {
        "Id": pa.int64(),
        "name": pa.string(),
        "fare": pa.decimal128(8, 2),
        "loose": pa.decimal128(38, 20),
        "at": kinds["at"],
        "day": pa.date32(),
        "raw": pa.binary(),
        "flag": pa.bool_(),
        "ref": pa.string(),
        "tags": pa.list_(pa.int64()),
        "small": pa.int64(),
    }
    row = ds.take(6)[5]
    assert (row["fare"], row["tags"], row["raw"]) == (Decimal("1.25"), [5, 6], b"\0\5")
    assert row["at"] == datetime.datetime(2020, 1, 1, 5, tzinfo=datetime.timezone.utc)
    assert str(uuid.UUID(row["ref"])) == row["ref"]


def test_types_of_adbc(server: str) -> None:
    ds = windrow.read_sql("trips", _uri(server), partition_column="Id", partitions=3)
    schema = source_of(ds).schema
    assert schema.field("small").type == pa.int16()
    assert schema.field("tags").type == pa.list_(pa.int32())
    assert schema.field("at").type == pa.timestamp("us", "UTC")
    row = ds.take(6)[5]
    assert (row["Id"], row["tags"], row["raw"], str(row["fare"])) == (5, [5, 6], b"\0\5", "1.25")
    assert "s3cr3t" not in repr(ds) + repr(source_of(ds).reader) + source_of(ds).fingerprint


@pytest.mark.parametrize("connect", [_connect, _connect_adbc])
def test_order_and_exactly_once(server: str, connect: Any, tmp_path: Path) -> None:
    ds = windrow.read_sql(
        "trips",
        partial(connect, server),
        partition_column="Id",
        partitions=12,
        columns=["Id", "name", "flag"],
    )
    same_order_as_parquet(ds, tmp_path)
    pipe = ds.window(blocks_per_window=5).repeat(1).random_shuffle_each_window(seed=7)
    shards = pipe.options(executor="threads", progress=False).split(2, equal="pad")
    found: list[int] = []
    for shard in shards:
        with shard:
            found += [x for batch in shard.iter_batches(batch_size=10) for x in batch["Id"].tolist()]
    assert sorted(found) == list(range(_ROWS))


def test_staged_rows_and_changes(server: str) -> None:
    staged = windrow.read_sql(
        "SELECT name, small FROM trips WHERE name LIKE 'n%1' ORDER BY name", partial(_connect, server)
    )
    assert staged.count() == 50
    ds = windrow.read_sql(
        'SELECT * FROM trips WHERE "Id" < 100', partial(_connect, server), partition_column="Id", partitions=4
    )
    with closing(_connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute('DELETE FROM trips WHERE "Id" = 60')
        connection.commit()
        try:
            with pytest.raises(
                windrow.SourceError, match=r"partition 2: the table has changed.*24 rows where 25"
            ):
                read_blocks(ds)
        finally:
            cursor.execute("INSERT INTO trips (\"Id\", name) VALUES (60, 'n%60')")
            connection.commit()


def test_errors(server: str) -> None:
    with pytest.raises(windrow.SourceError, match=r'relation "nothing" does not exist'):
        windrow.read_sql("nothing", partial(_connect, server), partition_column="id")
    with pytest.raises(windrow.SourceError) as caught:
        windrow.read_sql("trips", _uri("/tmp/no-such-folder"))
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in str(caught.value.__cause__)
