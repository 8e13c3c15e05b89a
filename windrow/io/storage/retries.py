"""Retries of transient storage errors: which are transient, backoff, time budget, history; calls on threads.

Clients retry by themselves: s3fs five times, Arrow's S3 client three times, each with its own backoff. Their
final errors are retried here. The budget is a time, which also covers the clients' retries, so that attempts
do not multiply.

Waits grow exponentially with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015), so that
readers that were throttled at the same time do not retry at the same time. This randomness affects timing
only.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from windrow.core.errors import PlanError, WindrowError
from windrow.core.phase_clock import count_retry, phase
from windrow.core.system.processes import call_in_forked_children

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS_SHOWN = 5
# matched by name, since some platforms lack some of them
_ERRNOS = {
    number
    for number, name in errno.errorcode.items()
    if re.fullmatch(
        r"EAGAIN|EBUSY|ECONN(ABORTED|REFUSED|RESET)|EHOST(DOWN|UNREACH)|EINTR|EIO|ENET(DOWN|RESET|UNREACH)"
        r"|ENOTCONN|EPIPE|EREMOTEIO|ETIMEDOUT",
        name,
    )
}
_PERMANENT = (
    WindrowError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    MemoryError,
)
# matched by module name, since none of these libraries is imported here
_LIBRARIES = {
    "aiobotocore",
    "aiohttp",
    "azure",
    "botocore",
    "fsspec",
    "gcsfs",
    "google",
    "http",
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "huggingface_hub",
    "paramiko",
    "requests",
    "urllib3",
}
_TRANSIENT_NAMES = re.compile(
    r"(Connect|Checksum|Timeout|Disconnect|IncompleteRead|Payload|ProtocolError|TransferEncoding|ContentLength"
    r"|HTTPClientError|ResponseStreaming|ResponseParser|ChunkedEncoding|ClientOSError|ServiceRe(quest|sponse)"
    r"|ServerError|TooManyRequests|Transport|SSHException|ProxyError)"
)
# in the names of errors that last; SSHException stands for all that can happen to a connection, and for some of these
_LASTING = re.compile(
    r"Certificate|SSL|LocalProtocol|UnsupportedProtocol|OfflineMode|Authentication|HostKey|IncompatiblePeer|NonRetryable"
)
# aiohttp reports status 400 when a response is truncated
_TRUNCATED = re.compile(r"Payload|ContentLength")
_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504, 509}
_THROTTLED = re.compile(r"Throttl|SlowDown|RequestTimeout|RequestLimitExceeded|TooManyRequests")
# Arrow's filesystems raise OSError, and only its text identifies the cause
_ARROW_TRANSIENT = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTLING|REQUEST_TIMEOUT)"
    r"|HTTP status (-1|408|425|429|5\d\d)\b|curlCode: |Response checksums mismatch"
    r"|google::cloud::Status\((UNAVAILABLE|INTERNAL|DEADLINE)"
)
_RATE_LIMIT = re.compile(r";\s*r=0\s*;\s*t=([0-9]{1,9})\b")
_IDLE_SECONDS = 1.0


class ShortReadError(OSError):
    """Object storage sent fewer bytes than requested."""


class GaveUpError(OSError):
    """The retry budget is exhausted; the message is the history of attempts."""


@dataclass(frozen=True)
class Retries:
    """How long transient errors are retried, in seconds.

    ``first_wait_seconds`` bounds the first wait; the bound doubles with each attempt up to
    ``max_wait_seconds``. Waits are drawn uniformly from 0 to the bound, and added to the wait that a response asks for
    (``Retry-After``), up to the end of the budget. A read has a timeout, against clients
    that hang indefinitely: ``read_seconds`` plus the time that its bytes take at ``read_bytes_per_second``.
    """

    seconds: float = 120.0  # no attempt starts later than this after the first one; 0 disables retries
    first_wait_seconds: float = 0.25
    max_wait_seconds: float = 20.0
    read_seconds: float = 60.0
    read_bytes_per_second: float = 256 * 1024

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, (int, float)) or not 0 <= self.seconds < float("inf"):
            raise PlanError(
                f"retry_seconds={self.seconds!r} must be a number of seconds, 0 or more, and finite"
            )

    def call(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until it returns, raises a permanent error, or the budget is exhausted (`GaveUpError`)."""
        with phase("storage"):
            return self._call(attempt)

    def _call(self, attempt: Callable[[], T]) -> T:
        begin = time.monotonic()
        failures: list[tuple[float, BaseException]] = []
        for pause in self._waits():
            at = time.monotonic() - begin
            try:
                return attempt()
            except Exception as error:
                if not is_transient(error):
                    raise
                failures.append((at, error))
            remaining = self.seconds - (time.monotonic() - begin)
            if stated := find_retry_after(failures[-1][1]):
                pause = max(pause, min(stated + pause, remaining))
            if pause > remaining:
                break
            # not its text, which may contain what a URL or a credential says
            kind = type(failures[-1][1]).__name__
            logger.info(
                "attempt %d failed after %.1f s (%s): next one in %.2f s", len(failures), at, kind, pause
            )
            time.sleep(pause)
            count_retry()
        elapsed = time.monotonic() - begin
        raise GaveUpError(_format_history(failures, elapsed, self.seconds)) from failures[-1][1]

    def read(self, attempt: Callable[[], T], size_bytes: int) -> T:
        """`call` a read of this many bytes, with a timeout for each attempt."""
        seconds = self.read_seconds + size_bytes / self.read_bytes_per_second
        return self.call(lambda: call_within(seconds, attempt))

    def _waits(self) -> Iterator[float]:
        bound = self.first_wait_seconds
        while True:
            yield bound * int.from_bytes(os.urandom(4), "little") / 2**32
            bound = min(2 * bound, self.max_wait_seconds)


DEFAULT_RETRIES = Retries()


def call_within(seconds: float, call: Callable[[], T]) -> T:
    """Call a function that can hang on a daemon thread, and abandon it after a timeout (`TimeoutError`)."""
    try:
        caller = _IDLE.pop()
    except IndexError:
        caller = _Caller()
        caller.start()
    outcome: list[Any] = [None, None]
    done = threading.Lock()
    done.acquire()
    caller.calls.put((call, outcome, done))
    if not done.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
        raise TimeoutError(f"no response within {seconds:.3g} s")
    result, error = outcome
    # the error's traceback references this frame, and the frame would reference the error: a cycle
    outcome.clear()
    if error is not None:
        raise error
    return cast("T", result)


class _Caller(threading.Thread):
    """A thread that calls one function after another: starting one for each request costs as much as the request."""

    def __init__(self) -> None:
        super().__init__(name="windrow-read", daemon=True)
        self.calls: SimpleQueue[tuple[Callable[[], Any], list[Any], Any]] = SimpleQueue()

    def run(self) -> None:
        while self._call_next():
            _IDLE.append(self)

    def _call_next(self) -> bool:
        """Wait for a function and call it; False if none came for a while."""
        try:
            call, outcome, done = self.calls.get(timeout=_IDLE_SECONDS)
        except Empty:
            try:
                _IDLE.remove(self)
            except ValueError:
                # taken at this moment: its function is on the way
                call, outcome, done = self.calls.get()
            else:
                return False
        try:
            outcome[0] = call()
        except BaseException as error:
            outcome[1] = error
        done.release()
        return True


# threads without a function to call, the last one used last
_IDLE: deque[_Caller] = deque()
# a forked process has none of the threads
call_in_forked_children(_IDLE.clear)


def is_transient(error: BaseException) -> bool:
    """Whether a retry of the same request is likely to succeed."""
    if isinstance(error, _PERMANENT):
        return False
    verdicts = (_classify(link) for link in _cause_chain(error))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _cause_chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, the root cause first: that one is the most specific."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return reversed(chain)


def _classify(error: BaseException) -> bool | None:
    """Whether one error of a cause chain is transient; None if it is unknown."""
    status, code = find_status(error)
    if status is not None:
        return status in _TRANSIENT_STATUSES or _THROTTLED.search(code) is not None
    is_known = type(error).__module__.partition(".")[0] in _LIBRARIES
    names = " ".join(kind.__name__ for kind in type(error).__mro__) if is_known else ""
    if _LASTING.search(names):
        return False
    if isinstance(error, (TimeoutError, ConnectionError, ShortReadError)):
        return True
    if is_known:
        return True if _TRANSIENT_NAMES.search(names) else None
    if isinstance(error, OSError) and (error.errno in _ERRNOS or _ARROW_TRANSIENT.search(str(error))):
        return True
    return None


def find_status(error: BaseException) -> tuple[int | None, str]:
    """The HTTP status and the error code of a client's error; None and no code without."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status, str(response.get("Error", {}).get("Code", ""))
    if _TRUNCATED.search(type(error).__name__):
        return None, ""
    attributes = ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code"))
    found = (getattr(holder, name, None) for holder, name in attributes)
    return next((status for status in found if isinstance(status, int) and 400 <= status < 600), None), ""


def find_retry_after(error: BaseException) -> float:
    """The seconds that a response asks to wait, by the headers in an error of its client or its causes; 0 without."""
    for link in _cause_chain(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict):
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
        else:
            headers = getattr(response, "headers", None) or getattr(link, "headers", None)
        if isinstance(headers, Mapping) and (seconds := _parse_retry_after(headers)):
            return seconds
    return 0.0


def _parse_retry_after(headers: Mapping[Any, Any]) -> float:
    named = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    # of the Hugging Face Hub: no requests remain until then
    limit = _RATE_LIMIT.search(named.get("ratelimit", ""))
    stated = limit[1] if limit else named.get("retry-after", "")
    if re.fullmatch(r"[0-9]{1,9}", stated):
        return float(stated)
    try:
        return max(0.0, parsedate_to_datetime(stated).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _format_history(failures: list[tuple[float, BaseException]], elapsed: float, budget: float) -> str:
    shown = failures if len(failures) <= _ATTEMPTS_SHOWN else [*failures[:2], *failures[-2:]]
    lines = [f"\n  after {at:.1f} s: {_format_error(error)}" for at, error in shown]
    if len(shown) < len(failures):
        lines.insert(2, f"\n  ... {len(failures) - len(shown)} more")
    attempts = "1 attempt" if len(failures) == 1 else f"{len(failures)} attempts"
    return (
        f"{attempts} failed in {elapsed:.1f} s, with a retry budget of {budget:g} s:" + "".join(lines) + "\n "
    )


def _format_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def call_ahead(
    calls: Sequence[Callable[[], Any]], lanes: int, name: str, *, then: Callable[[], Any] | None = None
) -> list[Future[Any]]:
    """Start calls in order on at most ``lanes`` threads; calls that have not started can be cancelled.

    ``then`` adds one more future, the last: its call starts when all others have returned, and fails with
    their error if one of them fails. The threads exit after the last call. They are daemon threads, so that a
    hanging request does not keep the process alive.

    >>> [future.result() for future in call_ahead([lambda: 1, lambda: 2], 8, "lane", then=lambda: 3)]
    [1, 2, 3]
    """
    futures: list[Future[Any]] = [Future() for _ in calls]
    waiting = deque(zip(futures, calls, strict=True))
    threads = min(lanes, len(calls))
    if then is not None:
        futures.append(Future())
        waiting.append((futures[-1], _after(futures, then)))
        threads += 1
    for _ in range(threads):
        threading.Thread(target=_work, args=(waiting,), name=name, daemon=True).start()
    return futures


def _after(futures: list[Future[Any]], then: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        *others, _ = futures
        wait(others)
        for other in others:
            other.result()
        return then()

    return call


def _work(waiting: deque[tuple[Future[Any], Callable[[], Any]]]) -> None:
    while waiting:
        try:
            future, call = waiting.popleft()
        except IndexError:
            return
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        # a running thread must not keep references to earlier results
        del future, call
