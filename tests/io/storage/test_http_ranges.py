"""Ranges of files from servers that know no ranges, send other ones, or end their answers early."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tests.io.storage.web_server import serving
from windrow.io.storage import http_files
from windrow.io.storage.filesystems import Files, connect
from windrow.io.storage.range_reads import RemoteFile
from windrow.io.storage.retries import Retries

pytest.importorskip("aiohttp")

pytestmark = pytest.mark.timeout(60)

CONTENT = bytes(range(256)) * 40
Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def opened(answer: Callable[[str], Answer], **options: Any) -> Iterator[tuple[RemoteFile, list[str]]]:
    """A file of a server that answers a ``Range`` header; and the headers so far."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Log nothing on standard error."""

        def do_GET(self) -> None:
            asked.append(self.headers.get("Range", ""))
            status, headers, body = answer(asked[-1])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as port:
        connection = connect(f"http://127.0.0.1:{port}/x", None, options)
        files = Files("", connection.opener, Retries(seconds=3, first_wait_seconds=0.01))
        yield files.open_remote(connection.paths[0], len(CONTENT)), asked


def whole(_: str) -> Answer:
    return 200, {"Content-Length": str(len(CONTENT))}, CONTENT


def test_a_server_without_ranges_is_asked_once() -> None:
    with opened(whole) as (file, asked):
        assert bytes(file.read_range(0, 100)) == CONTENT[:100]
        assert bytes(file.read_range(300, 900)) == CONTENT[300:900]
        assert bytes(file.read_range(0, 50)) == CONTENT[:50]
        assert bytes(file.read_range(9000, len(CONTENT))) == CONTENT[9000:]
        assert asked == ["bytes=0-99", "bytes=300-899", ""]


def test_a_whole_file_that_is_as_short_as_the_range_is_not_taken_for_it() -> None:
    # the file was replaced by one of 600 bytes
    with (
        opened(lambda _: (200, {"Content-Length": "600"}, b"z" * 600)) as (file, _),
        pytest.raises(OSError, match="fewer than the 600 bytes requested at offset 300"),
    ):
        file.read_range(300, 900)


def test_another_range_is_an_error() -> None:
    headers = {"Content-Length": "600", "Content-Range": f"bytes 0-599/{len(CONTENT)}"}
    with opened(lambda _: (206, headers, CONTENT[:600])) as (file, asked):
        with pytest.raises(OSError, match=r"another range than that from byte 300: bytes 0-599/"):
            file.read_range(300, 900)
        assert len(asked) == 1


def test_a_download_that_was_cut_is_repeated() -> None:
    downloads = []

    def answer(header: str) -> Answer:
        downloads.append(header == "")
        # without a length, only the end of the connection ends the file
        return 200, {}, CONTENT[:500] if sum(downloads) == 1 else CONTENT

    with opened(answer) as (file, _):
        assert bytes(file.read_range(300, 400)) == CONTENT[300:400]
        assert bytes(file.read_range(300, 900)) == CONTENT[300:900]
        assert sum(downloads) == 2


def test_reads_have_no_limit_of_time_in_all_unless_a_user_gives_one() -> None:
    from aiohttp import ClientTimeout

    with opened(whole) as (file, _):
        assert file.read_range(0, 1)
    for options in ({}, {"client_kwargs": {"timeout": ClientTimeout(total=7)}}):
        filesystem: Any = connect("http://host/x", None, options).opener.fs
        limit: Any = http_files._request_options(filesystem).get("timeout")
        assert (limit is None) if options else (limit.total is None and limit.sock_read is not None)


def test_a_read_waits_as_long_as_the_server_says() -> None:
    times: list[float] = []

    def answer(header: str) -> Answer:
        times.append(time.monotonic())
        return (429, {"Retry-After": "1", "Content-Length": "0"}, b"") if len(times) == 1 else whole(header)

    with opened(answer) as (file, _):
        assert bytes(file.read_range(0, 9)) == CONTENT[:9]
    assert times[1] - times[0] >= 1
