"""Names of object storage that no disk has: empty objects that mark folders, and folders without a name."""

from __future__ import annotations

from typing import Any

import pytest

import windrow
from tests.io.files import S3
from tests.io.s3.conftest import STYLES, options_of

BUCKET = "markers"


@pytest.fixture(scope="module")
def endpoint(memory_s3: str) -> str:
    s3fs = pytest.importorskip("s3fs")
    filesystem: Any = s3fs.S3FileSystem(key=S3.key, secret=S3.secret, endpoint_url=memory_s3)
    filesystem.mkdir(BUCKET)
    texts = {"a/": "", "a/0.txt": "0\n", "a/b/": "", "a/b/1.txt": "1\n", "a/empty/": "", "a/nothing.txt": ""}
    texts |= {"c//x.txt": "below\n", "c/x.txt": "beside\n"}
    for name, text in texts.items():
        filesystem.call_s3("put_object", Bucket=BUCKET, Key=name, Body=text.encode())
    return memory_s3


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("path", ["a", "a/", "a/**", "[ab]/**"])
def test_markers_of_folders_are_skipped(endpoint: str, style: str, path: str) -> None:
    found = windrow.read_text(f"s3://{BUCKET}/{path}", storage_options=options_of(style, endpoint))
    assert sorted(row["text"] for row in found.take()) == ["0", "1"]


@pytest.mark.parametrize(
    ("path", "texts"), [("c//x.txt", ["below"]), ("c/x.txt", ["beside"]), ("c", ["below", "beside"])]
)
def test_folders_without_a_name(endpoint: str, path: str, texts: list[str]) -> None:
    found = windrow.read_text(f"s3://{BUCKET}/{path}", storage_options=options_of("s3fs", endpoint))
    assert sorted(row["text"] for row in found.take()) == texts
