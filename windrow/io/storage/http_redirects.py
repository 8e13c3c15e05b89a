"""Redirects of HTTP servers: headers with keys go to no other server than the one for which they were given."""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin, urlsplit

from windrow.io.storage.credentials import is_secret_parameter

_PORTS = {"http": 80, "https": 443}


def keeping_secrets(filesystem: Any) -> Any:
    """A client of fsspec for HTTP whose headers with keys do not follow redirects to other servers.

    aiohttp drops ``Authorization`` alone, and later versions cookies. Servers have others, such as ``X-API-Key`` or
    ``PRIVATE-TOKEN``. A client of the user's own (``get_client=``) stays as it is.
    """
    options = dict(filesystem.storage_options)
    headers = {**(options.get("client_kwargs") or {}).get("headers", {}), **(options.get("headers") or {})}
    if "get_client" in options or not any(map(is_secret_header, headers)):
        return filesystem
    return type(filesystem)(*filesystem.storage_args, **options, get_client=get_client)


def is_secret_header(name: str) -> bool:
    """Whether a header is named as those are that hold a login, a key or a cookie.

    >>> [name for name in ("Authorization", "X-API-Key", "Cookie", "User-Agent", "Range") if is_secret_header(name)]
    ['Authorization', 'X-API-Key', 'Cookie']
    """
    return name.lower() == "cookie" or is_secret_parameter(name)


async def get_client(**options: Any) -> Any:
    """Make the session of a client."""
    from aiohttp import ClientSession, TraceConfig

    trace = TraceConfig()
    trace.on_request_redirect.append(_drop_secrets)
    return ClientSession(**{**options, "trace_configs": [*(options.get("trace_configs") or ()), trace]})


async def _drop_secrets(session: Any, context: Any, redirect: Any) -> None:
    """Take the headers with keys out of a request before it follows a redirect to another server."""
    # the headers that aiohttp sends to the next server
    url, headers, response = str(redirect.url), redirect.headers, redirect.response
    target = response.headers.get("Location") or response.headers.get("URI") or ""
    if not is_same_server(url, urljoin(url, target)):
        for name in [name for name in headers if is_secret_header(name)]:
            headers.popall(name, None)


def is_same_server(url: str, other: str) -> bool:
    """Whether two URLs are of one server; a redirect may change to HTTPS there.

    >>> is_same_server("http://a/x", "https://a/y"), is_same_server("https://a/x", "https://b.a/x")
    (True, False)
    """
    first, second = urlsplit(url), urlsplit(other)
    ports = [each.port or _PORTS.get(each.scheme) for each in (first, second)]
    if first.hostname != second.hostname:
        return False
    same = first.scheme == second.scheme and ports[0] == ports[1]
    return same or (first.scheme, second.scheme, *ports) == ("http", "https", 80, 443)
