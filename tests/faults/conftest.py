"""An S3 server, a fault-injecting proxy in front of it, and clients with short timeouts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest

from tests.faults.proxy import Proxy, open_proxy
from tests.io.conftest import s3
from tests.io.files import S3, write

__all__ = ["s3"]

FILES, ROWS = 3, 400


@pytest.fixture(scope="session")
def running_proxy(s3: S3) -> Iterator[Proxy]:
    with open_proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(running_proxy: Proxy) -> Iterator[Proxy]:
    running_proxy.set(None)
    yield running_proxy
    running_proxy.set(None)


@pytest.fixture
def bucket(s3: S3) -> Iterator[str]:
    """A bucket with three files of four row groups each; column x numbers their 1,200 rows."""
    for part in range(FILES):
        numbers = np.arange(part * ROWS, (part + 1) * ROWS)
        table = pa.table({"x": numbers, "y": numbers * 0.5, "text": [f"row {n}" for n in numbers]})
        write(s3.directory / "faults" / "train" / f"{part}.parquet", table, row_group_size=ROWS // 4)
    yield "faults"
    shutil.rmtree(s3.directory / "faults")


@pytest.fixture(params=["s3fs", "arrow"])
def client(request: pytest.FixtureRequest, s3: S3, proxy: Proxy) -> Any:
    """A client behind the proxy that does not retry and has a timeout of one second."""
    if request.param == "arrow":
        return pa_fs.S3FileSystem(
            access_key=s3.key,
            secret_key=s3.secret,
            endpoint_override=proxy.endpoint.removeprefix("http://"),
            scheme="http",
            region="us-east-1",
            retry_strategy=pa_fs.AwsStandardS3RetryStrategy(max_attempts=1),
            request_timeout=1,
            connect_timeout=1,
        )
    s3fs = pytest.importorskip("s3fs")
    options = S3(proxy.endpoint, s3.directory).storage_options
    config = {"retries": {"total_max_attempts": 1}, "read_timeout": 1, "connect_timeout": 1}
    filesystem = s3fs.S3FileSystem(**options, config_kwargs=config, skip_instance_cache=True)
    filesystem.retries = 1
    return filesystem
