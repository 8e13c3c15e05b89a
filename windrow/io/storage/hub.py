"""Repositories of the Hugging Face Hub: a revision becomes its commit, ranges of files are read, errors explained.

huggingface_hub's own filesystem lists and writes. It does not read, since each of its reads fetches 5 MiB more than
was asked for, and every process would list a directory before it opens a file there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from windrow.core.errors import PlanError, SourceError
from windrow.core.optional_dependencies import require
from windrow.io.storage.credentials import safe_cause
from windrow.io.storage.range_reads import check_content_range
from windrow.io.storage.retries import find_status

# The Hub's names in URLs; without one, a repository is a model.
_TYPES = {"datasets/": "dataset", "spaces/": "space", "models/": "model", "": "model"}
_PATH = re.compile(
    r"(?P<type>(?:datasets|spaces|models)/|)(?P<repo>(?!(?:buckets|datasets|kernels|models|spaces)/)[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]*))?(?:/(?P<path>.*))?",
    re.DOTALL,
)
# The Hub's short names of branches that it writes itself: ~parquet is refs/convert/parquet.
_CONVERTED = re.compile(r"~(\w+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# of one request, without the bytes of its body
_SECONDS = 30.0
# How long a signed URL is used, of the hour for which it holds; and the answers to one that holds no more.
_LOCATION_SECONDS = 600.0
_OUTDATED = (401, 403, 404, 410)
_MAX_ANSWERS = 2**12
_TOKEN = "storage_options={'token': ...}, or the variable HF_TOKEN"


class HubPath(NamedTuple):
    """The parts of a path in a repository; ``revision`` is None for the main branch."""

    prefix: str  # datasets/, spaces/ or empty
    repo: str  # owner/name
    revision: str | None
    path: str

    @property
    def type(self) -> str:
        """The kind of repository, as huggingface_hub names it."""
        return _TYPES[self.prefix]

    def at(self, revision: str) -> str:
        """The path at a revision."""
        return f"{self.prefix}{self.repo}@{revision}" + (f"/{self.path}" if self.path else "")


def parse_hub_path(path: str) -> HubPath | None:
    """Split a path without its scheme; None for what lies in no repository, such as a bucket.

    >>> parse_hub_path("datasets/me/trips@~parquet/default/train")
    HubPath(prefix='datasets/', repo='me/trips', revision='refs/convert/parquet', path='default/train')
    >>> parse_hub_path("me/model@refs%2Fpr%2F3/weights.bin").revision
    'refs/pr/3'
    >>> parse_hub_path("buckets/me/store/x.parquet") is None
    True
    """
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    revision = _full_name(unquote(found["revision"] or "")) or None
    return HubPath(found["type"], found["repo"], revision, found["path"] or "")


def is_hub(filesystem: Any) -> bool:
    """Whether an fsspec filesystem is huggingface_hub's."""
    return getattr(filesystem, "protocol", None) == "hf"


def is_hub_url(url: str) -> bool:
    """Whether a URL is one of the Hugging Face Hub."""
    return url.startswith("hf://")


def require_hub(module: str = "huggingface_hub") -> Any:
    """Import huggingface_hub; a `PlanError` if it is not installed."""
    return require(module, "hub", "an hf:// path")


def with_revision(path: str, revision: object) -> str:
    """The path at the revision that storage options name; a `PlanError` if the path names another one.

    >>> with_revision("datasets/me/trips/data", "v1.0"), with_revision("datasets/me/trips/data", None)
    ('datasets/me/trips@v1.0/data', 'datasets/me/trips/data')
    """
    parts = parse_hub_path(path)
    if revision is None or parts is None:
        return path
    if not isinstance(revision, str) or not revision:
        raise PlanError(
            f"storage_options= has revision={revision!r}: give a branch, a tag or a commit as a string"
        )
    given = _full_name(revision)
    if parts.revision not in (None, given):
        raise PlanError(
            f"hf://{path} names the revision {parts.revision!r}, and storage_options= {revision!r}: give one of them"
        )
    return parts.at(quote(given, safe=""))


def _full_name(revision: str) -> str:
    short = _CONVERTED.fullmatch(revision)
    return revision if short is None else f"refs/convert/{short[1]}"


def hub_etag(info: Mapping[str, Any]) -> str:
    """The hash of a file's content in a listing, which is the ETag that the Hub sends with the file."""
    stored = info.get("lfs")
    found = stored.get("sha256") if isinstance(stored, Mapping) else getattr(stored, "sha256", None)
    return str(found or info["blob_id"])


def find_commit(lister: Any, place: HubPath) -> str:
    """Ask the Hub for the commit of a revision."""
    api = require_hub().HfApi(endpoint=lister.endpoint, token=lister.token)
    info = api.repo_info(place.repo, revision=place.revision, repo_type=place.type, timeout=_SECONDS)
    return str(info.sha)


class _Answer(NamedTuple):
    """What the headers of a file say, and where its bytes are until a time of the monotonic clock."""

    info: dict[str, Any]
    location: str
    until: float


@dataclass(frozen=True)
class HubFiles:
    """Reads the files of repositories; small and picklable, with the token.

    A process asks the Hub once for the headers of a file at a commit, since these stay the same. They lead to the
    storage that has the bytes, under a URL that is signed for an hour: ranges are requested there, as the number of
    requests to the Hub is limited. A request that fails is not repeated here: see ``windrow.io.storage.retries``.
    """

    endpoint: str
    token: str | None = field(repr=False)

    @classmethod
    def of(cls, filesystem: Any) -> HubFiles:
        """The reader for huggingface_hub's filesystem, with the token that it would send."""
        headers = require_hub("huggingface_hub.utils").build_hf_headers(token=filesystem.token)
        # other processes can lack the variable or the file that the token is in
        bearer = headers.get("authorization")
        return cls(filesystem.endpoint, bearer.partition(" ")[2] if bearer else None)

    def reads(self, path: str) -> bool:
        """Whether the path lies in a repository."""
        return parse_hub_path(path) is not None

    def unstrip_protocol(self, path: str) -> str:
        return f"hf://{path}"

    def info(self, path: str) -> dict[str, Any]:
        """The size of a file and the hash of its content, as its response headers state them."""
        parts = parse_hub_path(path)
        known = _ANSWERS.get((self, path))
        if known is not None and parts is not None and _COMMIT.fullmatch(parts.revision or ""):
            return known.info
        return self._ask(path).info

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        known = _ANSWERS.get((self, path))
        if known is None or known.until < time.monotonic():
            known = self._ask(path)
        response = self._get(known.location, start, end)
        if response.status_code in _OUTDATED:
            response = self._get(self._ask(path).location, start, end)
        require_hub("huggingface_hub.utils").hf_raise_for_status(response)
        content: bytes = response.content
        if response.status_code == 206:
            check_content_range(response.headers.get("Content-Range"), start)
            return content
        # a server can ignore the range
        return content[start:end]

    def _ask(self, path: str) -> _Answer:
        """Request the headers of a file, which say where its bytes are."""
        parts = parse_hub_path(path)
        assert parts is not None, path
        hub = require_hub()
        url = hub.hf_hub_url(
            parts.repo, parts.path, repo_type=parts.type, revision=parts.revision, endpoint=self.endpoint
        )
        found = hub.get_hf_file_metadata(
            url, token=self.token or False, timeout=_SECONDS, endpoint=self.endpoint
        )
        if found.size is None:
            raise OSError("the Hub does not state the size of the file (Content-Length)")
        info = {"name": path, "type": "file", "size": found.size, "etag": found.etag}
        answer = _Answer(info, found.location, time.monotonic() + _LOCATION_SECONDS)
        if len(_ANSWERS) >= _MAX_ANSWERS:
            _ANSWERS.clear()
        _ANSWERS[self, path] = answer
        return answer

    def _get(self, url: str, start: int, end: int) -> Any:
        utils = require_hub("huggingface_hub.utils")
        # small files lie with the Hub itself; a URL that is signed takes no token
        is_own = urlsplit(url)[:2] == urlsplit(self.endpoint)[:2]
        headers = utils.build_hf_headers(token=(self.token or False) if is_own else False)
        # a compressed range would have other bytes
        headers |= {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        return utils.get_session().get(url, headers=headers, timeout=_SECONDS)


# by the reader and the path
_ANSWERS: dict[tuple[HubFiles, str], _Answer] = {}


@contextmanager
def hub_errors(place: HubPath, secrets: Collection[str]) -> Iterator[None]:
    """Map the errors of a request for a revision to a SourceError that says which of them it is."""
    try:
        yield
    except Exception as error:
        text = _explain_error(error, place)
        if text is None:
            raise
        raise SourceError(f"hf://{place.prefix}{place.repo}: {text}") from safe_cause(error, secrets)


def _explain_error(error: Exception, place: HubPath) -> str | None:
    if _is_hub_error(error, "GatedRepoError"):
        return (
            "the repository is gated: accept its conditions on its page of the Hub, and give a token of the same "
            f"account: {_TOKEN}"
        )
    if _is_hub_error(error, "RevisionNotFoundError"):
        if place.revision is not None and place.revision.startswith("refs/convert/"):
            return (
                f"there is no revision {place.revision!r}: the Hub has not converted this dataset (it converts "
                "public ones, some time after an upload); read its own files"
            )
        return f"there is no revision {place.revision!r}: give one of its branches, tags or commits"
    if _is_hub_error(error, "DisabledRepoError"):
        return "the Hub has disabled access to the repository: see its page"
    if _is_hub_error(error, "RepositoryNotFoundError"):
        kind = "" if place.type != "model" else " ('hf://datasets/' begins the path of a dataset)"
        return (
            f"there is no such {place.type}, or it is private: check the name{kind}, or give a token with access: "
            f"{_TOKEN}"
        )
    if _is_hub_error(error, "OfflineModeIsEnabled"):
        return "huggingface_hub is in offline mode: unset the variable HF_HUB_OFFLINE"
    status, _ = find_status(error)
    if status in (401, 403):
        return f"the Hub refuses the token (HTTP status {status}): give a valid one: {_TOKEN}"
    return None


def _is_hub_error(error: BaseException | None, name: str) -> bool:
    """Whether an error, or what caused it, is of this class of huggingface_hub, which need not be installed."""
    while error is not None:
        names = (
            kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("huggingface_hub")
        )
        if name in names:
            return True
        error = error.__cause__
    return False
