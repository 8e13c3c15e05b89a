"""A Hugging Face Hub on loopback: what huggingface_hub asks to list and read, with commits, access and faults."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

__all__ = ["TOKEN", "Hub", "HubFault", "Request", "open_hub"]

TOKEN = "hf_loopbackSECRETtoken"
MAIN = "main"
_REPO = r"(?P<repo>(?:datasets|spaces|models)/[^/]+/[^/]+)"
_API = re.compile(rf"/api/{_REPO}(?:/(?P<what>revision|tree|paths-info)/(?P<rev>[^/]+)(?:/(?P<path>.*))?)?")
_RESOLVE = re.compile(
    r"/(?P<repo>(?:datasets/|spaces/)?[^/]+/[^/]+)/resolve/(?P<rev>refs/convert/[^/]+|[^/]+)/(?P<path>.+)"
)
# where the hub redirects requests for small files
_CACHED = re.compile(rf"/api/resolve-cache/{_REPO}/(?P<rev>[^/]+)/(?P<path>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_PAGE = 3


class Request(NamedTuple):
    """A request that the hub got, and its answer."""

    method: str
    path: str
    range: tuple[int, int] | None  # first and last byte
    token: str | None
    status: int


@dataclass
class HubFault:
    """An answer instead of the right one, so many times, to requests of a method whose path has this text."""

    path: str
    status: int
    times: float = 1
    method: str = "GET"
    # bytes of the right body after which the connection ends
    cut: int | None = None
    # seconds before the right answer
    delay: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Repo:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    # accounts whose owner accepted the conditions; None: not gated
    accepted: set[str] | None = None

    def find(self, revision: str) -> str | None:
        """The commit of a branch, tag or commit."""
        return self.refs.get(revision) or (revision if revision in self.commits else None)


class Hub:
    """The repositories, the requests so far, and the faults to come."""

    def __init__(self) -> None:
        self.repos: dict[str, _Repo] = {}
        self.requests: list[Request] = []
        self.faults: list[HubFault] = []
        self.url = ""
        self.cdn = ""
        # what signs URLs of the storage; others do not hold
        self.signature = ""
        self.lock = threading.Lock()
        self.clear()

    def commit(self, repo: str, files: Mapping[str, bytes], branch: str = MAIN) -> str:
        """Make a commit that has these files alone; returns its hash."""
        known = self.repos.setdefault(repo, _Repo())
        parts = [f"{len(known.commits)}", *(f"{path} {_blob_id(data)}" for path, data in files.items())]
        sha = hashlib.sha1("\n".join(parts).encode()).hexdigest()
        known.commits[sha] = dict(files)
        known.refs[branch] = sha
        return sha

    def restrict(self, repo: str, *, private: bool = False, accepted: set[str] | None = None) -> None:
        """Make a repository private, or gated with these tokens accepted."""
        self.repos[repo].private, self.repos[repo].accepted = private, accepted

    def clear(self) -> None:
        """Forget repositories, requests and faults."""
        self.repos.clear()
        self.requests.clear()
        self.faults.clear()
        self.signature = "X-Amz-Signature=cdnSECRETsignature"

    def reads(self, path: str = "") -> list[Request]:
        """The successful requests for ranges of files whose path has this text, redirects left out."""
        return [r for r in self.requests if r.range and r.status == 206 and path in r.path]

    def options(self, **more: Any) -> dict[str, Any]:
        """Storage options that lead here."""
        return {"endpoint": self.url, **more}


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _is_large(path: str) -> bool:
    """Whether git-lfs has the file, as most hubs do for these suffixes."""
    return path.endswith((".parquet", ".arrow", ".tar"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # headers and body are sent one after the other, and do not wait for an acknowledgement
    disable_nagle_algorithm = True
    hub: Hub

    def log_message(self, *args: Any) -> None:
        """Log nothing on standard error."""

    def do_GET(self) -> None:
        self._handle(None)

    def do_HEAD(self) -> None:
        self._handle(None)

    def do_POST(self) -> None:
        self._handle(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _handle(self, body: bytes | None) -> None:
        fault = self._next_fault()
        self._cut = None if fault is None else fault.cut
        if fault is not None and fault.delay:
            time.sleep(fault.delay)
        elif fault is not None and fault.cut is None:
            return self._send(fault.status, b"{}", {"X-Error-Message": "planned", **fault.headers})
        parts = urlsplit(self.path)
        if parts.path.startswith("/cdn/"):
            return self._cdn(parts.path, parts.query)
        found = next(filter(None, (kind.fullmatch(parts.path) for kind in (_CACHED, _API, _RESOLVE))), None)
        if found is None:
            return self._send(404, b"no such route")
        # paths of models have no prefix outside of the API
        name = found["repo"] if "/" in found["repo"].partition("/")[2] else f"models/{found['repo']}"
        repo = self.hub.repos.get(name)
        refused = self._refuse(repo)
        if refused is not None:
            status, code, message = refused
            return self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})
        assert repo is not None
        commit = repo.find(unquote(found["rev"] or MAIN))
        if commit is None:
            return self._send(
                404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}
            )
        files = repo.commits[commit]
        if found.re is not _API:
            cached = None if found.re is _CACHED else f"/api/resolve-cache/{name}/{commit}/{found['path']}"
            return self._resolve(commit, unquote(found["path"]), files, cached)
        if found["what"] == "tree":
            return self._tree(unquote(found["path"] or ""), files, parse_qs(parts.query))
        if found["what"] == "paths-info":
            asked = parse_qs((body or b"").decode()).get("paths", []) or json.loads(body or b"{}").get(
                "paths", []
            )
            return self._json([_entry(path, files[path]) for path in asked if path in files])
        siblings = [{"rfilename": path} for path in files]
        info = {
            "_id": "1",
            "id": found["repo"].partition("/")[2],
            "sha": commit,
            "tags": [],
            "siblings": siblings,
        }
        return self._json({**info, "private": repo.private, "gated": False, "downloads": 0, "likes": 0})

    def _next_fault(self) -> HubFault | None:
        with self.hub.lock:
            for fault in self.hub.faults:
                if fault.times > 0 and fault.method == self.command and fault.path in self.path:
                    fault.times -= 1
                    return fault
        return None

    @property
    def _token(self) -> str | None:
        sent = self.headers.get("Authorization")
        return None if sent is None else sent.removeprefix("Bearer ")

    def _refuse(self, repo: _Repo | None) -> tuple[int, str, str] | None:
        """The status, code and message of what may not be read."""
        token = self._token
        if token is not None and not token.startswith("hf_"):
            return 401, "", "Invalid credentials in Authorization header"
        if repo is None or (repo.private and token != TOKEN):
            # without access, a repository does not seem to exist
            return 404 if token else 401, "RepoNotFound", "Repository not found"
        if repo.accepted is not None and token not in repo.accepted:
            return 403 if token else 401, "GatedRepo", "Access to this dataset is restricted"
        return None

    def _resolve(self, commit: str, path: str, files: Mapping[str, bytes], cached: str | None) -> None:
        if path not in files:
            return self._send(
                404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            )
        data, headers = files[path], {"X-Repo-Commit": commit}
        if not _is_large(path):
            if cached is not None:
                return self._send(307, b"", {**headers, "Location": cached})
            return self._bytes(data, {**headers, "ETag": f'"{_blob_id(data)}"'})
        etag = hashlib.sha256(data).hexdigest()
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data)), "X-Xet-Hash": etag[::-1]}
        where = f"{self.hub.cdn}/cdn/{quote(path, safe='')}/{etag}?{self.hub.signature}"
        return self._send(302, b"", {**headers, "Location": where})

    def _cdn(self, path: str, query: str) -> None:
        if self._token is not None or query != self.hub.signature:
            return self._send(403, b"the storage wants the signature alone")
        etag = path.rpartition("/")[2]
        for repo in self.hub.repos.values():
            for files in repo.commits.values():
                for data in files.values():
                    if hashlib.sha256(data).hexdigest() == etag:
                        return self._bytes(data, {"ETag": f'"{etag}"'})
        return self._send(404, b"")

    def _tree(self, folder: str, files: Mapping[str, bytes], query: Mapping[str, Sequence[str]]) -> None:
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        below = sorted(path for path in files if path.startswith(prefix))
        if not below:
            return self._send(
                404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "no such path"}
            )
        entries: dict[str, dict[str, Any]] = {}
        recursive = query.get("recursive", ["False"])[0].lower() == "true"
        for path in below:
            names = path[len(prefix) :].split("/")
            for depth in range(1, len(names)):
                above = prefix + "/".join(names[:depth])
                if recursive or depth == 1:
                    oid = hashlib.sha1(above.encode()).hexdigest()
                    entries[above] = {"type": "directory", "oid": oid, "size": 0, "path": above}
            if recursive or len(names) == 1:
                entries[path] = _entry(path, files[path])
        first = int(query.get("cursor", ["0"])[0])
        page, headers = list(entries.values())[first : first + _PAGE], {}
        if first + _PAGE < len(entries):
            plain = "&".join(f"{name}={text[0]}" for name, text in query.items() if name != "cursor")
            where = f"{self.hub.url}{urlsplit(self.path).path}?{plain}&cursor={first + _PAGE}"
            headers["Link"] = f'<{where}>; rel="next"'
        return self._json(page, headers)

    def _json(self, value: Any, headers: Mapping[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _bytes(self, data: bytes, headers: Mapping[str, str]) -> None:
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        if found is None:
            return self._send(200, data, headers)
        start, last = int(found[1]), min(int(found[2]), len(data) - 1)
        where = f"bytes {start}-{last}/{len(data)}"
        return self._send(206, data[start : last + 1], {**headers, "Content-Range": where}, (start, last))

    def _send(
        self,
        status: int,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        span: tuple[int, int] | None = None,
    ) -> None:
        with self.hub.lock:
            self.hub.requests.append(Request(self.command, self.path, span, self._token, status))
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if self._cut is None else data[: self._cut])
        if self._cut is not None:
            self.close_connection = True


def _entry(path: str, data: bytes) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "file", "oid": _blob_id(data), "size": len(data), "path": path}
    if _is_large(path):
        etag = hashlib.sha256(data).hexdigest()
        made |= {"lfs": {"oid": etag, "size": len(data), "pointerSize": 134}, "xetHash": etag[::-1]}
    return made


@contextmanager
def open_hub() -> Iterator[Hub]:
    """Serve a hub until the block ends."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    # another name of the host, so that clients see another one
    hub.url, hub.cdn = (f"http://{host}:{server.server_port}" for host in ("127.0.0.1", "localhost"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
