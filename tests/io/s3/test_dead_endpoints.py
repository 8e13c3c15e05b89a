"""An endpoint that does not respond raises soon, with either client and for every kind of failure."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import windrow
from tests.io.files import S3
from tests.io.s3.conftest import STYLES, options_of
from windrow import SourceError
from windrow.io.catalog import listing
from windrow.io.storage.retries import DEFAULT_RETRIES

pytest.importorskip("s3fs")

# short enough for a test, and longer than a server on this machine takes to respond
SECONDS = 2.0
_QUEUED = 4


@contextmanager
def dead_endpoint(how: str) -> Iterator[str]:
    """An address that refuses connections, never responds, or drops packets."""
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        address = server.getsockname()
        if how == "refuses":
            server.close()
        elif how == "is silent":
            server.listen(100)
        else:
            # the system drops further connection requests once the backlog is full
            server.listen(0)
            for _ in range(_QUEUED):
                client = sockets.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"


@pytest.mark.parametrize("path", ["s3://bucket/train", "s3://bucket/*/x.parquet"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("how", ["refuses", "is silent", "drops"])
def test_listing_fails_within_the_contact_timeout(
    monkeypatch: pytest.MonkeyPatch, how: str, style: str, path: str
) -> None:
    monkeypatch.setattr(listing, "_CONTACT_SECONDS", SECONDS)
    with dead_endpoint(how) as endpoint:
        options = options_of(style, endpoint)
        with pytest.raises(
            SourceError, match=r"(?s)cannot be listed: .* with a retry budget of 2 s.* endpoint"
        ) as told:
            windrow.read_parquet([path, "s3://bucket/other"], storage_options=options)
    assert S3.secret not in str(told.value)


def test_listing_has_a_shorter_retry_budget_than_reading() -> None:
    assert listing._CONTACT_SECONDS == 15
    assert DEFAULT_RETRIES.seconds == 120
