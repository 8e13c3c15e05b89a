"""Files of an HTTP(S) server as a filesystem: listings from its pages, byte ranges, whole downloads where it has none.

The names of files are decoded and have no credentials: ``host/folder/a b.parquet`` for
``https://user:password@host/folder/a%20b.parquet?X-Amz-Signature=...``. So manifests and fingerprints stay the same
when a signature is renewed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from fsspec import AbstractFileSystem
from fsspec.asyn import sync

from windrow.core.errors import PlanError
from windrow.io.storage.credentials import is_secret_parameter
from windrow.io.storage.http_pages import find_children
from windrow.io.storage.http_redirects import keeping_secrets
from windrow.io.storage.range_reads import NoRangesError, check_content_range
from windrow.io.storage.whole_downloads import DOWNLOADS, KEPT_DOWNLOADS

logger = logging.getLogger(__name__)

# parameters that a signature covers: of S3, Google, CloudFront, and Azure's shared access signatures
_SIGNED_PARAMETERS = re.compile(
    r"(x-amz-|x-goog-).*|expires|policy|key-pair-id|googleaccessid|awsaccesskeyid"
    r"|s[vsterip]|srt|spr|sip|ses|sdd|scid|sk(oid|tid|t|e|s|v)|[as]uoid|saoid|rs(cc|cd|ce|cl|ct)",
    re.IGNORECASE,
)
# in names, an encoded ?, / or byte that is not UTF-8, and what would be one if it were not encoded once more
_MARKS = re.compile(r"%(?:25((?:25)*(?:[23]F|[89A-F][0-9A-F]))|([23]F|[89A-F][0-9A-F]))")
_LIKE_MARKS = re.compile(r"(?<=%)(?=(?:25)*(?:[23]F|[89A-F][0-9A-F]))")
# Python's stand-ins for bytes that are not UTF-8
_STRAY_BYTES, _STRAY, _FIRST_STRAY = re.compile("[\udc80-\udcff]"), 0xDC00, 0x80
_HTML = "text/html"
# to connect, and between two parts of an answer
_SOCKET_SECONDS = 60.0
_PART_BYTES = 2**20
# as sent over the network, so that ranges and sizes are those of the file
_IDENTITY = {"Accept-Encoding": "identity"}


class _Url(NamedTuple):
    scheme: str
    login: str
    host: str
    name: str
    signature: str


def split_url(url: str) -> tuple[str, str, str, str, str]:
    """Split a URL into its scheme, login, host, name, and the part of its query that is a signature.

    >>> split_url("https://me:pw@host/a%20b.parquet?part=1&sv=2024&sig=0f3a")
    ('https', 'me:pw', 'host', 'host/a b.parquet?part=1', 'sv=2024&sig=0f3a')
    """
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    given = [text for text in parts.query.split("&") if text]
    names = [text.partition("=")[0] for text in given]
    signed = any(map(is_secret_parameter, names))
    is_signature = [
        signed and (is_secret_parameter(name) or bool(_SIGNED_PARAMETERS.fullmatch(name))) for name in names
    ]
    own = "&".join(text for text, other in zip(given, is_signature, strict=True) if not other)
    signature = "&".join(text for text, other in zip(given, is_signature, strict=True) if other)
    name = host + _decode_path(parts.path) + (f"?{own}" if own else "")
    return parts.scheme, login, host, name, signature


def _decode_path(path: str) -> str:
    """Decode a path for a name, in which ``?`` begins the query and ``/`` divides.

    Those that are encoded in a path stay so, and what is not UTF-8.

    >>> _decode_path("a%20b%3Fc"), _decode_path("100%25%253F"), _decode_path("%C3%A9%E9"), _decode_path("a%2Fb/c")
    ('a b%3Fc', '100%%253F', 'é%E9', 'a%2Fb/c')
    """
    texts = (_LIKE_MARKS.sub("25", unquote(part, errors="surrogateescape")) for part in path.split("/"))
    plain = "/".join(text.replace("?", "%3F").replace("/", "%2F") for text in texts)
    return _STRAY_BYTES.sub(lambda found: f"%{ord(found[0]) - _STRAY:02X}", plain)


def _encode_path(path: str) -> str:
    """Encode the path of a name.

    >>> _encode_path("a b%3Fc"), _encode_path("100%%253F"), _encode_path("é%E9"), _encode_path("a%2Fb/c")
    ('a%20b%3Fc', '100%25%253F', '%C3%A9%E9', 'a%2Fb/c')
    """

    def decode(found: re.Match[str]) -> str:
        if found[1]:
            return f"%{found[1]}"
        code = int(found[2], 16)
        return chr(code) if code < _FIRST_STRAY else chr(_STRAY + code)

    parts = (_MARKS.sub(decode, part) for part in path.split("/"))
    return "/".join(quote(part, safe="", errors="surrogateescape") for part in parts)


class HttpStatusError(OSError):
    """An HTTP error; unlike that of the client, it holds no URL, and one header alone."""

    def __init__(self, status: int, reason: str, retry_after: str = "") -> None:
        super().__init__(f"HTTP status {status} {reason}".rstrip())
        self.status, self.reason = status, reason
        self.headers = {"Retry-After": retry_after}

    def __reduce__(self) -> tuple[Any, ...]:
        return HttpStatusError, (self.status, self.reason, self.headers["Retry-After"])


def connect_http(filesystem: Any, urls: Sequence[str]) -> tuple[HttpFiles, list[str]]:
    """The servers of some URLs, and the names of the URLs there."""
    parts = [_Url(*split_url(url)) for url in urls]
    scheme = parts[0].scheme
    # names have no scheme: that of a server with another one is told by its port
    parts = [part if part.scheme == scheme else _with_port(part) for part in parts]
    schemes = {part.host: part.scheme for part in parts}
    logins: dict[str, Any] = {part.host: part.login.split(":", 1) for part in parts if part.login}
    signatures: dict[str, Any] = {_fixed_part(part.name): part.signature for part in parts if part.signature}
    if len({(part.host, part.login, part.scheme) for part in parts}) > len(schemes):
        raise PlanError("paths contain different credentials for the same server: read them separately")
    if len({(part.name, part.signature) for part in parts}) > len({part.name for part in parts}):
        raise PlanError("two paths differ in their signatures or keys alone: give each file once")
    # all values below this name are taken for secrets
    credentials = {"logins": logins, "signatures": signatures}
    others = {host: other for host, other in schemes.items() if other != scheme}
    client = keeping_secrets(filesystem if logins else _bind_login(filesystem))
    files = HttpFiles(client, scheme, others, credentials, os.urandom(8).hex())
    return files, [part.name for part in parts]


def _bind_login(filesystem: Any) -> Any:
    """A client that sends its login to the host of a URL alone: aiohttp sends that of a session to all redirects."""
    options = dict(filesystem.storage_options)
    client = dict(options.pop("client_kwargs", None) or {})
    login = options.pop("auth", None) or client.pop("auth", None)
    if login is None:
        return filesystem
    headers = {"Authorization": login.encode(), **(options.pop("headers", None) or {})}
    return type(filesystem)(*filesystem.storage_args, **options, client_kwargs=client, headers=headers)


def _with_port(url: _Url) -> _Url:
    if ":" in url.host:
        return url
    host = f"{url.host}:{443 if url.scheme == 'https' else 80}"
    return url._replace(host=host, name=host + url.name[len(url.host) :])


def _fixed_part(pattern: str) -> str:
    """The part of a pattern that has no wildcards; a name as it is."""
    parts = pattern.split("/")
    magic = [place for place, part in enumerate(parts) if re.search(r"[*\[]", part)]
    return "/".join(parts[: magic[0]] if magic else parts).rstrip("/")


class HttpFiles(AbstractFileSystem):  # type: ignore[misc]
    """The files of HTTP(S) servers; ``fs`` is fsspec's client, and ``credentials`` has logins and signatures."""

    cachable = False
    protocol = ("http", "https")

    def __init__(
        self,
        fs: Any,
        scheme: str,
        other_schemes: Mapping[str, str],
        credentials: Mapping[str, Mapping[str, Any]],
        opening: str,
    ) -> None:
        super().__init__(use_listings_cache=False)
        self.fs, self.scheme, self.credentials = fs, scheme, credentials
        self._other_schemes, self._opening = other_schemes, opening

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HttpFiles) and self._identity == other._identity

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.fs, self.scheme, self._other_schemes, self.credentials

    def __hash__(self) -> int:
        return hash((self.fs, self.scheme))

    def unstrip_protocol(self, name: str) -> str:
        return f"{self._scheme_of(name)}://{name}"

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        """The links of a page that lead below it."""
        folder = path.rstrip("/")
        url = self._url(f"{folder}/")
        with _clean_errors(folder):
            page = sync(self.fs.loop, _request_page, self.fs, url)
        kinds = {
            f"{folder}/{_decode_path(child.rstrip('/'))}": "directory" if child.endswith("/") else "file"
            for child in find_children(page, url)
        }
        infos = [{"name": name, "size": None, "type": kind} for name, kind in sorted(kinds.items())]
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Size, version and type; a directory is what the server knows with a slash at the end of its URL."""
        try:
            found = self._ask(path)
        except FileNotFoundError:
            if path.endswith("/"):
                raise
            # some servers do not redirect to the URL with the slash
            path += "/"
            found = self._ask(path)
        if path.endswith("/") or urlsplit(found.get("url") or "").path.endswith("/"):
            return {"name": path, "size": 0, "type": "directory"}
        if found.get("size") is None:
            raise OSError("the server does not state the size of the file (Content-Length)")
        return {**found, "name": path, "url": None}

    def _ask(self, path: str) -> Any:
        with _clean_errors(path):
            return self.fs.info(self._url(path))

    def glob(self, path: str, maxdepth: int | None = None, **options: Any) -> Any:
        """The files that match a pattern; ``?`` begins a query, as in all URLs."""
        if "?" not in path:
            return super().glob(path, maxdepth=maxdepth, **options)
        try:
            found = {path: self.info(path)}
        except FileNotFoundError:
            found = {}
        return found if options.get("detail") else list(found)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> Any:
        """The bytes of a range; a `NoRangesError` that can download the file where the server knows no ranges."""
        url, key = self._url(path), (self._opening, path)
        if start is None or end is None or start == end:
            with _clean_errors(path):
                return self.fs.cat_file(url, start=start, end=end)
        if (known := DOWNLOADS.find(key)) is not None:
            return DOWNLOADS.read(key, known, start, end)
        whole = NoRangesError(partial(self._read_downloaded, path))
        if DOWNLOADS.is_expected(key):
            raise whole
        with _clean_errors(path):
            data = sync(self.fs.loop, _request_range, self.fs, url, start, end)
        if data is None:
            DOWNLOADS.expect(key)
            raise whole
        return data

    def _read_downloaded(self, path: str, start: int, stop: int) -> bytes:
        """Bytes of a file that is downloaded as a whole, once for each listing and process."""
        url, key = self._url(path), (self._opening, path)

        def download(file: IO[bytes]) -> None:
            _warn_once(self.unstrip_protocol(path.partition("/")[0]))
            with _clean_errors(path):
                sync(self.fs.loop, _download, self.fs, url, file)

        return DOWNLOADS.read(key, DOWNLOADS.get(key, download), start, stop)

    def _url(self, name: str) -> str:
        host, slash, rest = name.partition("/")
        path, _, own = rest.partition("?")
        login = ":".join(self.credentials["logins"].get(host, ()))
        query = "&".join(filter(None, (own, self._signature(name))))
        address = f"{login}@{host}" if login else host
        return f"{self._scheme_of(name)}://{address}{slash}{_encode_path(path)}" + (
            f"?{query}" if query else ""
        )

    def _scheme_of(self, name: str) -> str:
        return self._other_schemes.get(name.partition("/")[0], self.scheme)

    def _signature(self, name: str) -> str:
        """The signature that was given for a file, or for a folder above it."""
        signatures = self.credentials["signatures"]
        place = name.rstrip("/") if signatures else ""
        while place:
            if place in signatures:
                return str(signatures[place])
            place = place.rpartition("/")[0]
        return ""


def _request_options(fs: Any, **headers: str) -> dict[str, Any]:
    """The options of a client for a request of bytes: without compression, nor aiohttp's limit of 5 minutes in all."""
    options = {**fs.kwargs, "headers": {**fs.kwargs.get("headers", {}), **_IDENTITY, **headers}}
    if "timeout" not in {*fs.kwargs, *fs.client_kwargs}:
        from aiohttp import ClientTimeout

        options["timeout"] = ClientTimeout(
            total=None, sock_connect=_SOCKET_SECONDS, sock_read=_SOCKET_SECONDS
        )
    return options


async def _request_range(fs: Any, url: str, start: int, stop: int) -> bytes | None:
    """The bytes of a range; None if the server sends the file as a whole, and the range is not at its beginning."""
    session = await fs.set_session()
    options = _request_options(fs, Range=f"bytes={start}-{stop - 1}")
    async with session.get(fs.encode_url(url), **options) as response:
        response.raise_for_status()
        if response.status == 206:
            check_content_range(response.headers.get("Content-Range"), start)
            return bytes(await response.read())
        if start > 0:
            return None
        data = bytearray()
        while len(data) < stop and (part := await response.content.read(stop - len(data))):
            data += part
        return bytes(data)


async def _download(fs: Any, url: str, file: IO[bytes]) -> None:
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), **_request_options(fs)) as response:
        response.raise_for_status()
        async for part in response.content.iter_chunked(_PART_BYTES):
            file.write(part)


async def _request_page(fs: Any, url: str) -> str:
    """The text of a page; empty if it is not HTML."""
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), **fs.kwargs) as response:
        response.raise_for_status()
        kind = response.headers.get("Content-Type", _HTML).partition(";")[0].strip().lower()
        return str(await response.text(errors="replace")) if kind == _HTML else ""


@contextmanager
def _clean_errors(name: str) -> Iterator[None]:
    """Raise errors by their status, as Python's own where there is one, and without URL and headers of the request."""
    try:
        yield
    except Exception as error:
        # fsspec reports every failure to find out about a file as a missing file
        cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
        status = getattr(cause, "status", None)
        if isinstance(cause, FileNotFoundError) or status in (404, 410):
            raise FileNotFoundError(name) from None
        if status in (401, 403):
            raise PermissionError(f"HTTP status {status}: the server refuses access") from None
        # of a response that was cut, the client states 400
        if isinstance(status, int) and type(cause).__name__ == "ClientResponseError":
            headers = getattr(cause, "headers", None) or {}
            reason, retry_after = str(getattr(cause, "message", "")), str(headers.get("Retry-After", ""))
            raise HttpStatusError(status, reason, retry_after) from None
        if cause is error:
            raise
        raise cause from None


_WARNED: set[str] = set()


def _warn_once(server: str) -> None:
    if server not in _WARNED:
        _WARNED.add(server)
        logger.warning(
            "%s does not support range requests: each file is downloaded as a whole, once to plan and once in every "
            "process that reads it. The last %d lie in the folder of temporary files (TMPDIR). Copy the dataset to "
            "local disk or object storage if it is large",
            server,
            KEPT_DOWNLOADS,
        )
