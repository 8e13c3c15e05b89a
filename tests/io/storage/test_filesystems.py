"""S3 options against a server: s3fs and pyarrow's client read the same data."""

from __future__ import annotations

import pickle
import shutil
import traceback
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pytest

from tests.io.files import S3, open_parquet, read_all, write
from windrow.core.errors import SourceError

pytest.importorskip("s3fs")


@pytest.fixture
def bucket(s3: S3) -> Iterator[str]:
    for year in (2020, 2021):
        table = pa.table({"n": range(year, year + 100), "s": [f"{year}"] * 100})
        write(s3.directory / "bucket" / "train" / f"year={year}" / "a.parquet", table, row_group_size=30)
    yield "bucket"
    shutil.rmtree(s3.directory / "bucket")


def arrow(s3: S3, secret: str | None = None) -> pa_fs.S3FileSystem:
    return pa_fs.S3FileSystem(
        access_key=s3.key,
        secret_key=secret or s3.secret,
        endpoint_override=s3.endpoint.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
    )


@pytest.mark.parametrize("path", ["train", "train/", "train/*/*.parquet", "train/year=*"])
def test_s3fs_and_arrow_read_the_same_rows(s3: S3, bucket: str, path: str) -> None:
    local = open_parquet(s3.directory / "bucket" / "train")
    through_s3fs = open_parquet(f"s3://{bucket}/{path}", storage_options=s3.storage_options)
    through_arrow = open_parquet(f"{bucket}/{path}", filesystem=arrow(s3))
    for source in (through_s3fs, through_arrow, pickle.loads(pickle.dumps(through_s3fs))):
        assert source.fingerprint == local.fingerprint
        assert read_all(source).equals(read_all(local))
    assert through_s3fs.manifest.root == f"s3://{bucket}/train"
    for text in (repr(through_s3fs), repr(through_s3fs.reader), repr(through_s3fs.addresses([0]))):
        assert s3.secret not in text
        assert s3.key not in text


def test_filters_and_manifests_work_on_s3(s3: S3, bucket: str) -> None:
    source = open_parquet(
        f"s3://{bucket}/train",
        columns=["n"],
        filter=(pc.field("n") < 2030) & (pc.field("year") == 2020),
        storage_options=s3.storage_options,
    )
    assert read_all(source).column("n").to_pylist() == list(range(2020, 2030))
    again = open_parquet(None, manifest=source.manifest, storage_options=s3.storage_options)
    assert read_all(again).num_rows == 200
    assert (
        read_all(open_parquet(f"{bucket}/train", manifest=source.manifest, filesystem=arrow(s3))).num_rows
        == 200
    )


def test_missing_paths_and_files_raise(s3: S3, bucket: str) -> None:
    for path in (f"{bucket}/none", "nobucket/none", f"{bucket}/none/*.parquet"):
        with pytest.raises(SourceError, match=rf"s3://{path.split('*')[0]}.*matches nothing"):
            open_parquet(f"s3://{path}", storage_options=s3.storage_options)
        with pytest.raises(SourceError, match=r"matches nothing|cannot be listed"):
            open_parquet(path, filesystem=arrow(s3))
    source = open_parquet(f"s3://{bucket}/train", storage_options=s3.storage_options)
    arrow(s3).delete_file("bucket/train/year=2020/a.parquet")
    gone = r"s3://bucket/train/year=2020/a.parquet, row group 0: the file is missing"
    with pytest.raises(SourceError, match=gone):
        read_all(source)


def test_wrong_credentials_are_reported_without_secrets(s3: S3, bucket: str) -> None:
    options = {**s3.storage_options, "key": "wrong-key-not-shown", "secret": "wrong-secret-not-shown"}
    with pytest.raises(SourceError, match=r"s3://bucket/train") as caught:
        open_parquet(f"s3://{bucket}/train", storage_options=options)
    text = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value.__cause__)
    assert "wrong-key-not-shown" not in text
    assert "wrong-secret-not-shown" not in text


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("gs://b/x", "gcs"),
        ("az://c/x", "azure"),
        ("https://h/x", "http"),
        ("sftp://h/x", "sftp"),
        ("s3://b/x", "s3"),
    ],
)
def test_the_extra_of_a_scheme_is_named_where_its_package_is_missing(
    url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ImportError("Please install it")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    monkeypatch.setattr("windrow.io.storage.sftp_files.get_filesystem_class", refuse)
    with pytest.raises(SourceError, match=rf'pip install "windrow\[{extra}\]"'):
        open_parquet(url)
