"""Storage options for S3, valid and invalid, with the names of s3fs or of pyarrow."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.fs as pa_fs
import pytest

import windrow
from tests.io.conftest import serve
from tests.io.files import S3
from tests.io.s3.conftest import FILES, ROWS, STYLES, options_of
from windrow.core.errors import PlanError, SourceError
from windrow.io.storage import s3_clients
from windrow.io.storage.filesystems import connect

pytest.importorskip("s3fs")


def read(path: str, **options: Any) -> int:
    return windrow.read_parquet(path, storage_options=options, columns=["x"], retry_seconds=0.5).count()


def client(**options: Any) -> Any:
    return connect("s3://bucket/x", None, options).opener


@pytest.mark.parametrize("style", STYLES)
def test_option_names_select_the_client(s3: S3, data: str, style: str) -> None:
    options = options_of(style, s3.endpoint)
    assert read(data, **options) == FILES * ROWS
    assert isinstance(client(**options), pa_fs.S3FileSystem) == (style == "arrow")


@pytest.mark.parametrize("style", STYLES)
def test_manifest_finds_the_listed_files_again(s3: S3, data: str, style: str, tmp_path: Path) -> None:
    options = options_of(style, s3.endpoint)
    windrow.read_parquet(data, storage_options=options).save_manifest(tmp_path / "manifest")
    for other in STYLES:
        again = windrow.read_parquet(
            None, manifest=tmp_path / "manifest", storage_options=options_of(other, s3.endpoint)
        )
        assert again.take(1)[0]["x"] == 0


def test_nested_options_are_accepted(s3: S3, data: str) -> None:
    nested = {"client_kwargs": {"endpoint_url": s3.endpoint, "region_name": "us-east-1"}}
    assert read(data, key=s3.key, secret=s3.secret, **nested) == FILES * ROWS


def test_keys_in_the_url_are_accepted(s3: S3, data: str) -> None:
    url = data.replace("s3://", f"s3://{quote(s3.key, safe='')}:{quote(s3.secret, safe='')}@")
    for style in STYLES:
        rest = {
            name: value
            for name, value in options_of(style, s3.endpoint).items()
            if name in ("endpoint_url", "endpoint_override", "scheme", "region")
        }
        assert read(url, **rest) == FILES * ROWS
        assert windrow.read_parquet(url, storage_options=rest).schema().names[0] == "x"


def test_pyarrow_accepts_option_names_of_s3fs_without_s3fs(
    s3: S3, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_clients, "find_spec", lambda name: None)
    options = options_of("s3fs", s3.endpoint)
    assert isinstance(client(**options), pa_fs.S3FileSystem)
    assert read(data, **options) == FILES * ROWS
    nested = {"client_kwargs": {"endpoint_url": s3.endpoint, "region_name": "us-east-1"}}
    assert read(data, key=s3.key, secret=s3.secret, **nested) == FILES * ROWS
    with pytest.raises(PlanError, match=r'config_kwargs, requester_pays, .*pip install "windrow\[s3\]"'):
        client(requester_pays=True, config_kwargs={})


def test_the_region_reaches_both_clients() -> None:
    assert client(region="eu-west-1", anon=True).client_kwargs["region_name"] == "eu-west-1"
    assert client(region="eu-west-1", anonymous=True).region == "eu-west-1"
    explicit = client(region="eu-west-1", client_kwargs={"region_name": "us-west-2"}, anon=True)
    assert explicit.client_kwargs["region_name"] == "us-west-2"


def test_options_of_both_clients_raise_without_their_values() -> None:
    with pytest.raises(PlanError, match=r"names access_key as pyarrow.* and secret as s3fs does") as caught:
        client(access_key="hidden-1", secret="hidden-2")
    assert "hidden" not in str(caught.value)


def test_paths_with_different_keys_raise() -> None:
    with pytest.raises(PlanError, match="different keys") as caught:
        connect(["s3://a:hidden-1@bucket/x", "s3://b:hidden-2@bucket/y"], None, None)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("style", STYLES)
def test_wrong_credentials_raise(s3: S3, data: str, style: str) -> None:
    with pytest.raises(SourceError, match=rf"{data} cannot be listed.*check the credentials"):
        read(data, **options_of(style, s3.endpoint, "wrong-key", "wrong-secret"))
    with pytest.raises(SourceError, match=rf"{data} cannot be listed.*check the credentials"):
        read(data, **options_of(style, s3.endpoint, s3.key, "wrong-secret"))


@pytest.mark.parametrize("style", STYLES)
def test_missing_bucket_raises(s3: S3, style: str) -> None:
    with pytest.raises(SourceError, match=r"s3://no-such-bucket/train.*(matches nothing|cannot be listed)"):
        read("s3://no-such-bucket/train", **options_of(style, s3.endpoint))


@pytest.mark.parametrize("style", STYLES)
def test_wrong_endpoint_raises(data: str, style: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"
    options = options_of(style, closed)
    if style == "arrow":
        options["retry_strategy"] = pa_fs.AwsStandardS3RetryStrategy(max_attempts=1)
    else:
        options["config_kwargs"] = {"retries": {"total_max_attempts": 1}}
    with pytest.raises(SourceError, match=r"(?s)cannot be listed: .*check the endpoint and the network"):
        read(data, **options)


@pytest.fixture(scope="module")
def open_endpoint(s3: S3) -> Iterator[str]:
    with serve(s3.directory, None) as endpoint:
        yield endpoint


def test_anonymous_access(s3: S3, data: str, open_endpoint: str) -> None:
    host = open_endpoint.removeprefix("http://")
    assert (
        read(data, endpoint_override=host, anonymous=True, scheme="http", region="us-east-1") == FILES * ROWS
    )
    assert read(data, endpoint_url=open_endpoint, anon=True) == FILES * ROWS
    with pytest.raises(SourceError, match="cannot be listed"):
        read(data, endpoint_url=s3.endpoint, anon=True)
