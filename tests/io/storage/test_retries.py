from __future__ import annotations

import errno
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.errors import PlanError, SourceError
from windrow.io.storage.range_reads import RemoteFile, join_ranges, read_ranges
from windrow.io.storage.retries import (
    GaveUpError,
    Retries,
    ShortReadError,
    call_within,
    find_retry_after,
    is_transient,
)

QUICK = Retries(seconds=0.2, first_wait_seconds=0.001, max_wait_seconds=0.01)


def failing(*errors: BaseException) -> Any:
    """A function that raises these errors in turn, and then returns how often it was called."""
    left = list(errors)

    def call() -> int:
        if left:
            raise left.pop(0)
        return len(errors) + 1

    return call


class ClientError(Exception):
    """Like botocore's error, which has the response as an attribute."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


def client_error(status: int, code: str) -> OSError:
    """The error that s3fs raises for an unknown error code."""
    error = OSError(errno.EIO, "no")
    error.__cause__ = ClientError(status, code)
    return error


def from_library(module: str, name: str, *bases: type[BaseException], **attributes: Any) -> BaseException:
    made = type(name, bases or (Exception,), {"__module__": module, **attributes})
    return made("no")


class TransportError(Exception):
    """Like httpx's, of which the errors of requests that did not end are."""


TRANSIENT = [
    TimeoutError("slow"),
    ConnectionResetError(errno.ECONNRESET, "reset"),
    BrokenPipeError(errno.EPIPE, "pipe"),
    ShortReadError("short"),
    OSError(errno.EBUSY, "Please reduce your request rate."),
    OSError(errno.EIO, "io"),
    client_error(503, "SlowDown"),
    client_error(500, "InternalError"),
    client_error(429, "TooManyRequests"),
    client_error(400, "RequestTimeout"),
    OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached"),
    OSError("When reading information for key 'k': AWS Error UNKNOWN (HTTP status 503) during HeadObject"),
    OSError("AWS Error UNKNOWN (HTTP status -1) during ListObjectsV2 operation: XML_ERROR_PARSING_ELEMENT"),
    from_library("aiohttp.client_exceptions", "ClientPayloadError"),
    from_library("aiohttp.client_exceptions", "ServerDisconnectedError"),
    from_library("aiohttp.http_exceptions", "ContentLengthError", code=400),
    from_library("botocore.exceptions", "EndpointConnectionError"),
    from_library("botocore.exceptions", "ReadTimeoutError"),
    from_library("aiohttp", "ClientResponseError", status=502),
    from_library("gcsfs.retry", "HttpError", code=503),
    from_library("azure.core.exceptions", "ServiceResponseError"),
    from_library("httpx", "ReadError", TransportError),
    from_library("httpx2", "PoolTimeout", TransportError),
    from_library("httpcore", "RemoteProtocolError"),
]
FOR_GOOD = [
    FileNotFoundError(errno.ENOENT, "gone"),
    PermissionError("denied"),
    ValueError("no number"),
    OSError("AWS Error ACCESS_DENIED during GetObject operation: "),
    OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"),
    client_error(403, "AccessDenied"),
    client_error(400, "InvalidRequest"),
    SourceError("corrupt"),
    MemoryError(),
    from_library("botocore.exceptions", "NoCredentialsError"),
    from_library("aiohttp", "ClientConnectorCertificateError"),
    from_library("aiohttp", "ClientResponseError", status=404),
    from_library("httpx2", "UnsupportedProtocol", TransportError),
    from_library("httpx2", "LocalProtocolError", TransportError),
    from_library("huggingface_hub.errors", "OfflineModeIsEnabled", ConnectionError),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: f"{type(error).__name__}: {error}"[:60])
def test_transient_errors_are_retried(error: BaseException) -> None:
    assert is_transient(error)
    assert QUICK.call(failing(error, error)) == 3


@pytest.mark.parametrize("error", FOR_GOOD, ids=lambda error: f"{type(error).__name__}: {error}"[:60])
def test_permanent_errors_are_raised_at_once(error: BaseException) -> None:
    assert not is_transient(error)
    with pytest.raises(type(error)) as caught:
        QUICK.call(failing(TimeoutError("once"), error))
    assert caught.value is error


class Clock:
    """A clock that only `sleep` advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_exhausted_budget_reports_the_first_and_last_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("windrow.io.storage.retries.time", clock)
    calls = []

    def call() -> None:
        calls.append(clock.now)
        raise TimeoutError(f"number {len(calls)}")

    with pytest.raises(
        GaveUpError, match=r"^\d+ attempts failed in \d+\.\d s, with a retry budget of 0.2 s:"
    ) as caught:
        QUICK.call(call)
    text, last = str(caught.value), len(calls)
    assert last > 5
    assert f"TimeoutError: number {last}\n" in text
    assert "TimeoutError: number 1\n" in text
    assert f"... {last - 4} more" in text
    assert str(caught.value.__cause__) == f"number {last}"
    # no attempt starts after the budget; waits grow up to their bound
    assert calls[-1] - calls[0] <= 0.2
    with pytest.raises(GaveUpError, match=r"^1 attempt failed"):
        Retries(seconds=0).call(failing(TimeoutError("once")))


def test_waits_are_random_and_bounded() -> None:
    waits = Retries(first_wait_seconds=1, max_wait_seconds=8)._waits()
    drawn = [
        [next(Retries(first_wait_seconds=1)._waits()) for _ in range(200)],
        [next(waits) for _ in range(50)],
    ]
    assert 0.3 < sum(drawn[0]) / 200 < 0.7
    assert max(drawn[1]) <= 8
    assert max(drawn[1]) > 1


def with_headers(headers: Any) -> Exception:
    error = TimeoutError("wait")
    error.__cause__ = from_library("httpx", "HTTPStatusError", response=SimpleNamespace(headers=headers))
    return error


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (with_headers({"Retry-After": "7"}), 7),
        (with_headers({"retry-after": " 0 "}), 0),
        (with_headers({"Retry-After": "soon"}), 0),
        (with_headers({"Retry-After": "-3"}), 0),
        (with_headers({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}), 0),
        (with_headers({"ratelimit": '"api";r=0;t=55', "Retry-After": "3"}), 55),
        (with_headers({"ratelimit": '"api";r=12;t=55'}), 0),
        (with_headers(None), 0),
        (from_library("aiohttp", "ClientResponseError", headers={"Retry-After": "8"}), 8),
        (client_error(503, "SlowDown"), 0),
        (OSError("no headers"), 0),
    ],
)
def test_the_wait_that_a_response_asks_for(error: BaseException, seconds: float) -> None:
    assert find_retry_after(error) == seconds


def test_a_response_can_ask_to_wait_until_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    error = with_headers({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    monkeypatch.setattr("windrow.io.storage.retries.time", SimpleNamespace(time=lambda: 1_445_412_390.0))
    assert find_retry_after(error) == 90


def test_a_retry_waits_as_long_as_asked_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("windrow.io.storage.retries.time", clock)
    retries, asked = Retries(seconds=30, first_wait_seconds=1), []

    def call(stated: str) -> None:
        asked.append(clock.now)
        raise with_headers({"Retry-After": stated})

    with pytest.raises(GaveUpError):
        retries.call(lambda: call("20"))
    assert 20 <= asked[1] <= 21
    # the last attempt is at the end of the budget
    assert asked[2:] == [30]
    asked.clear()
    clock.now = 0
    with pytest.raises(GaveUpError):
        retries.call(lambda: call("900"))
    assert asked == [0, 30]


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), "1 min", None])
def test_invalid_retry_seconds_raise(seconds: Any) -> None:
    with pytest.raises(PlanError, match="retry_seconds="):
        Retries(seconds=seconds)


def test_hanging_call_times_out() -> None:
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match=r"no response within 0\.05 s"):
            call_within(0.05, release.wait)
    finally:
        release.set()
    assert call_within(5, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        call_within(5, lambda: 1 // 0)


class HangingStore:
    """Hangs at the first request for a range, and sends too few bytes at the second."""

    def __init__(self) -> None:
        self.content = bytes(range(256)) * 8
        self.asked: list[tuple[int, int]] = []
        self.release = threading.Event()

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        if self.asked.count((start, end)) == 1:
            self.release.wait()
        return self.content[start : end - (self.asked.count((start, end)) == 2)]


def test_hanging_and_short_reads_are_retried() -> None:
    store = HangingStore()
    retries = Retries(seconds=30, first_wait_seconds=0.001, read_seconds=0.05)
    file = RemoteFile(read_ranges(store, "x"), len(store.content), retries)
    try:
        file.fetch([(0, 100), (300, 900)])
        assert bytes(file.read(20)) == store.content[:20]
        file.seek(310)
        assert bytes(file.read(20)) == store.content[310:330]
        assert len(store.asked) == 6
        file.seek(890)
        # the range was only partially prefetched
        assert bytes(file.read(20)) == store.content[890:910]
        assert file.seek(-3, 2) == file.tell() == len(store.content) - 3
        assert bytes(file.read()) == store.content[-3:]
        assert file.read() == b""
    finally:
        store.release.set()


class LyingFile:
    """Like Arrow's S3 file, reports a complete read even if fewer bytes were received."""

    def __init__(self, content: bytes, sent: int) -> None:
        self.content, self.sent = content, sent

    def seek(self, at: int) -> None:
        self.at = at

    def readinto(self, data: Any) -> int:
        part = self.content[self.at : self.at + min(len(data), self.sent)]
        memoryview(data)[: len(part)] = part
        return len(data)


class LyingStore:
    def __init__(self, sent: int) -> None:
        self.sent = sent

    def open_input_file(self, path: str) -> LyingFile:
        return LyingFile(bytes(range(256)), self.sent)


def test_every_short_read_is_detected() -> None:
    """The last byte can also equal the marker with which short reads are detected."""
    for stop in range(2, 257):
        whole = read_ranges(LyingStore(256), "x")
        assert bytes(whole(0, stop)) == bytes(range(stop))
        for sent in (0, stop // 2, stop - 1):
            with pytest.raises(ShortReadError, match=f"than the {stop} bytes requested at offset 0"):
                read_ranges(LyingStore(sent), "x")(0, stop)


class WholeStore:
    """Ignores the range, and sends the whole file."""

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        return bytes(100)


def test_a_whole_file_is_no_range_and_no_short_read() -> None:
    file = RemoteFile(read_ranges(WholeStore(), "x"), 100, QUICK)
    assert file.read_range(0, 100) == bytes(100)
    with pytest.raises(OSError, match="received 100 bytes, and not the 20 requested at offset 10") as caught:
        file.read_range(10, 30)
    assert not is_transient(caught.value)


def test_ranges_are_joined_across_small_gaps() -> None:
    hole = 32 * 1024
    ranges = [(10, 20), (0, 5), (hole + 20, hole + 30), (3 * hole, 3 * hole + 1), (15, 18)]
    assert join_ranges(ranges, 10**9) == [(0, hole + 30), (3 * hole, 3 * hole + 1)]
    assert join_ranges([(5, 5), (-3, 4), (7, 3), (0, 11), (2, 4)], 10) == [(2, 4)]
    assert join_ranges([(0, 2**24), (2**24, 2**25)], 2**30) == [(0, 2**24), (2**24, 2**25)]


@given(st.lists(st.tuples(st.integers(1, 2**22), st.integers(0, 2**18)), max_size=60))
def test_few_unneeded_bytes_are_read(sizes: list[tuple[int, int]]) -> None:
    ranges, at = [], 0
    for size, hole in sizes:
        ranges.append((at, at + size))
        at += size + hole
    joined = join_ranges(ranges, at)
    wanted, read = (sum(stop - start for start, stop in spans) for spans in (ranges, joined))
    assert wanted <= read <= wanted + max(64 * 1024, wanted / 32)
    assert all(any(start <= first and last <= stop for start, stop in joined) for first, last in ranges)
    assert all(stop - start <= 2**24 for start, stop in joined)


def test_a_large_read_that_was_not_prefetched_is_several_requests_at_once() -> None:
    size = 3 * 16 * 2**20
    content = np.arange(size // 8, dtype=np.int64).view(np.uint8)
    together = threading.Barrier(3)
    asked: list[tuple[int, int]] = []

    def read(start: int, stop: int) -> Any:
        asked.append((start, stop))
        # all of them have to be there before one is answered
        together.wait(20)
        return content[start:stop].tobytes()

    file = RemoteFile(read, size, Retries(seconds=0))
    assert np.array_equal(np.frombuffer(file.read(), np.uint8), content)
    assert sorted(asked) == [(start, start + 16 * 2**20) for start in range(0, size, 16 * 2**20)]

    def fail(start: int, stop: int) -> Any:
        if start:
            raise OSError("broken")
        return content[start:stop].tobytes()

    with pytest.raises(OSError, match="broken"):
        RemoteFile(fail, size, Retries(seconds=0)).read_at(0, size)
