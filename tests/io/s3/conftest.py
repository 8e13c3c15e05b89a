"""Storage options of both S3 clients, a fault-injecting proxy, and data behind it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.faults.proxy import Proxy, open_proxy
from tests.io.files import S3, write

__all__ = ["BUCKET", "FILES", "ROWS", "options_of"]

BUCKET, FILES, ROWS = "narrow", 4, 30_000
STYLES = ["s3fs", "arrow"]


def options_of(style: str, endpoint: str, key: str = S3.key, secret: str = S3.secret) -> dict[str, Any]:
    """Storage options with the names that a client uses."""
    if style == "arrow":
        host = endpoint.removeprefix("http://")
        given = {"access_key": key, "secret_key": secret, "endpoint_override": host, "scheme": "http"}
        return {**given, "region": "us-east-1"}
    return {"key": key, "secret": secret, "endpoint_url": endpoint, "region": "us-east-1"}


@pytest.fixture(scope="module")
def proxy(s3: S3) -> Iterator[Proxy]:
    with open_proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def data(s3: S3) -> Iterator[str]:
    """Four files of three row groups, with twelve incompressible columns."""
    for part in range(FILES):
        values = np.random.Generator(np.random.Philox(part)).random((12, ROWS))
        columns = {f"c{number:02}": column for number, column in enumerate(values)}
        table = pa.table({"x": np.arange(part * ROWS, (part + 1) * ROWS), **columns})
        path = s3.directory / BUCKET / "train" / f"{part}.parquet"
        write(path, table, row_group_size=ROWS // 3, use_dictionary=False, compression="none")
    yield f"s3://{BUCKET}/train"
    shutil.rmtree(s3.directory / BUCKET)
