"""An S3 server on the loopback; tests write to it only through its API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.io.conftest import serve
from tests.io.files import S3


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    directory = tmp_path_factory.mktemp("s3-written")
    for bucket in ("written", "here", "sink"):
        (directory / bucket).mkdir()
    with serve(directory, f"{S3.key},{S3.secret}", kept_seconds=1) as endpoint:
        yield S3(endpoint, directory)
