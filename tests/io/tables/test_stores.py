"""Tables on an S3 server, each read through its own library's client.

Delta's client rejects rclone's range responses, so its test uses another server.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector

import windrow
from tests.io.conftest import serve
from tests.io.files import S3, arrow_s3, make_bucket, read_all
from tests.library_versions import is_older

DATA = pa.table({"x": range(20), "s": [f"s{row}" for row in range(20)]})
WRONG = "a-wrong-secret"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A separate server: tests write and delete only through it, so that it can cache listings."""
    # rclone sends the checksum of the whole object with a range of it, if the upload had one
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    (tmp_path / "tables").mkdir()
    with serve(tmp_path, f"{S3.key},{S3.secret}", kept_seconds=3600) as endpoint:
        yield S3(endpoint, tmp_path)


def iceberg(s3: S3, secret: str) -> windrow.Dataset:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("s3fs")
    from pyiceberg.catalog import load_catalog

    options = {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.key,
        "s3.secret-access-key": s3.secret,
        "s3.region": "us-east-1",
        # the server does not support the uploads of Arrow's client
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
    }
    uri = f"sqlite:///{s3.directory}/catalog.db"
    catalog = load_catalog("test", type="sql", uri=uri, warehouse="s3://tables", **options)
    try:
        if not catalog.namespace_exists("db"):
            catalog.create_namespace("db")
            catalog.create_table("db.t", schema=DATA.schema).append(DATA)
        location = catalog.load_table("db.t").metadata_location
    finally:
        catalog.close()
    return windrow.read_iceberg(location, storage_options={**options, "s3.secret-access-key": secret})


def lance(s3: S3, secret: str) -> windrow.Dataset:
    library = pytest.importorskip("lance")
    if is_older("pylance", 2):
        pytest.skip("Lance before 2.0 rejects rclone's range responses")
    options = {
        "aws_access_key_id": s3.key,
        "aws_secret_access_key": s3.secret,
        "aws_endpoint": s3.endpoint,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    if not (s3.directory / "tables" / "lance").exists():
        library.write_dataset(DATA, "s3://tables/lance", storage_options=options)
    return windrow.read_lance(
        "s3://tables/lance", storage_options={**options, "aws_secret_access_key": secret}
    )


@pytest.mark.nightly
@pytest.mark.parametrize("read", [iceberg, lance])
def test_tables_on_s3_are_read_without_showing_secrets(
    store: S3, read: Callable[[S3, str], windrow.Dataset]
) -> None:
    dataset = read(store, store.secret)
    source = pickle.loads(pickle.dumps(dataset._plan.source))
    assert read_all(source).equals(DATA)
    shuffled = dataset.window().random_shuffle_each_window(seed=3)
    assert sorted(row["x"] for row in shuffled.iter_rows()) == list(range(20))
    texts = [repr(dataset), repr(source.reader), repr(source.addresses([0])), str(shuffled.explain())]
    with pytest.raises(windrow.SourceError) as caught:
        read(store, WRONG)
    texts += traceback.format_exception(caught.value)
    filesystem = arrow_s3(store.endpoint)
    for found in filesystem.get_file_info(FileSelector("tables", recursive=True)):
        if found.extension in ("parquet", "lance"):
            filesystem.delete_file(found.path)
    with pytest.raises(windrow.SourceError, match="read the table again") as caught:
        dataset.take()
    texts += traceback.format_exception(caught.value)
    for text in texts:
        assert store.secret not in text
        assert WRONG not in text
        assert store.key not in text


def test_delta_table_on_s3_is_read_without_showing_secrets(memory_s3: str) -> None:
    """Both the log and the data files are read through deltalake's own client."""
    library = pytest.importorskip("deltalake")
    options = {
        "aws_access_key_id": S3.key,
        "aws_secret_access_key": S3.secret,
        "aws_endpoint_url": memory_s3,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
        "aws_s3_allow_unsafe_rename": "true",
    }
    make_bucket(memory_s3, "delta")
    for part in (DATA.slice(0, 12), DATA.slice(12)):
        library.write_deltalake("s3://delta/t", part, mode="append", storage_options=options)
    ds = windrow.read_delta("s3://delta/t", storage_options=options)
    assert sorted(ds.to_numpy()["x"].tolist()) == list(range(20))
    pipe = ds.repeat(1).random_shuffle_each_window(seed=1).options(executor="threads", progress=False)
    assert sorted(x for batch in pipe.iter_batches() for x in batch["x"].tolist()) == list(range(20))
    assert windrow.read_delta("s3://delta/t", storage_options=options, version=0).count() == 12
    assert not any(secret in repr(ds) + str(pickle.dumps(ds.schema())) for secret in (S3.key, S3.secret))
    with pytest.raises(windrow.SourceError) as caught:
        windrow.read_delta("s3://delta/none", storage_options=options)
    assert not any(
        secret in "".join(traceback.format_exception(caught.value)) for secret in (S3.key, S3.secret)
    )
