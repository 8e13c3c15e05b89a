"""Lists the files of paths, directories and globs, and finds their common root."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from windrow.core.errors import SourceError, WindrowError
from windrow.io.storage.credentials import safe_cause, source_error
from windrow.io.storage.error_causes import is_forbidden
from windrow.io.storage.filesystems import Connection, Files, Paths, connect, is_visible, join_path
from windrow.io.storage.retries import DEFAULT_RETRIES, GaveUpError, Retries, call_within, is_transient

# fsspec's info of each path
_Infos = dict[str, Mapping[str, Any]]

_MAGIC = re.compile(r"[*?\[]")
_LISTING_THREADS = 16
# The first request to object storage has a short timeout: a mistyped endpoint should not take minutes to be
# reported, and clients alone wait for minutes.
_CONTACT_SECONDS = 15.0
_LISTING_SECONDS = 30.0


def list_files(
    paths: Paths,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries = DEFAULT_RETRIES,
) -> tuple[Files, list[str], list[Mapping[str, Any]]]:
    """Resolve paths to files, relative to the root that they share, and fsspec's info of each.

    The root is the given directory, the part of a glob before its first wildcard, or the common directory of
    all given files, above its ``key=value`` segments.
    """
    connection = connect(paths, filesystem, storage_options)
    connection.lister.invalidate_cache()
    known = _check_connection(connection, retries) if connection.opener is not None else {}
    with ThreadPoolExecutor(_LISTING_THREADS) as threads:
        expanded = list(threads.map(lambda path: _expand(connection, path, retries, known), connection.paths))
    root = _common_root([root for root, _ in expanded])
    found = [pair for _, some in expanded for pair in some.items()]
    listed = [_relative(path, root) for path, _ in found]
    return Files(root, connection.opener, retries), listed, [info for _, info in found]


def locate_root(
    paths: Paths,
    known: Collection[str] | None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries = DEFAULT_RETRIES,
) -> Files:
    """Find the root of ``paths`` for files whose relative paths are ``known``; sends no request.

    With ``known=None`` the single path is the root itself.
    """
    connection = connect(paths, filesystem, storage_options)
    if known is None:
        return Files(connection.paths[0], connection.opener, retries)
    roots = [_lexical_root(path, known) for path in connection.paths]
    return Files(_common_root(roots), connection.opener, retries)


def _lexical_root(path: str, known: Collection[str]) -> str:
    if _MAGIC.search(path):
        return _glob_root(path)
    parts = path.split("/")
    for cut in range(1, len(parts)):
        if "/".join(parts[cut:]) in known:
            return "/".join(parts[:cut]) or "/"
    return path


def _check_connection(connection: Connection, retries: Retries) -> _Infos:
    """Check that object storage responds at all; returns the info of the first path.

    An error response counts as a response: the listing that follows handles it.
    """
    path = connection.paths[0]
    probed = _glob_root(path) if _MAGIC.search(path) else path
    deadline = time.monotonic() + _CONTACT_SECONDS

    def ask() -> _Infos:
        try:
            remaining = max(0.0, deadline - time.monotonic())
            return {probed: call_within(remaining, lambda: connection.lister.info(probed))}
        except Exception as error:
            if is_transient(error):
                raise
            return {}

    with _mapped_errors(connection, path):
        return replace(retries, seconds=min(retries.seconds, _CONTACT_SECONDS)).call(ask)


def _expand(connection: Connection, path: str, retries: Retries, known: _Infos) -> tuple[str, _Infos]:
    """The root and the files of one given path."""
    seconds = 0 if connection.opener is None else min(retries.seconds, _LISTING_SECONDS)
    with _mapped_errors(connection, path):
        return replace(retries, seconds=seconds).call(lambda: _find_files(connection, path, known))


@contextmanager
def _mapped_errors(connection: Connection, path: str) -> Iterator[None]:
    try:
        yield
    except WindrowError:
        raise
    except FileNotFoundError as error:
        kind = "glob" if _MAGIC.search(path) else "file or directory"
        raise SourceError(
            f"{_url(connection, path)} matches nothing: no such {kind}; check the path"
        ) from safe_cause(error, connection.secrets)
    except Exception as error:
        fix = "check the path, the credentials and the permissions"
        if isinstance(error, GaveUpError):
            fix = "check the endpoint and the network, or try later"
        elif is_forbidden(error):
            fix = "grant the permission to list it, or check the credentials"
        what = f"{_url(connection, path)} cannot be listed"
        raise source_error(what, error, fix, connection.secrets) from safe_cause(error, connection.secrets)


def _find_files(connection: Connection, path: str, known: _Infos) -> tuple[str, _Infos]:
    if _MAGIC.search(path):
        found = _glob(connection.lister, path)
        if found:
            return _glob_root(path), found
    info = known.get(path) or connection.lister.info(path)
    if info["type"] == "directory":
        found = _list_directory(connection.lister, path)
        if not found:
            raise SourceError(
                f"{_url(connection, path)} is a directory without data files (names that begin "
                f"with '.' or '_' are skipped): check the path"
            )
        return path, found
    return _above_partitions(posixpath.dirname(path)), {path: info}


def _glob(lister: Any, pattern: str) -> _Infos:
    found: _Infos = {}
    root = _glob_root(pattern)
    for path, info in sorted(_list_all(lister.glob, pattern, detail=True).items()):
        if info["type"] == "directory":
            found.update(_list_directory(lister, path))
        else:
            found[path] = info
    # a glob with ** finds a directory and also the files in it, which the dict deduplicates
    return _visible_below(root, found)


def _list_directory(lister: Any, directory: str) -> _Infos:
    return _visible_below(directory, _list_all(lister.find, directory, detail=True))


def _visible_below(root: str, found: _Infos) -> _Infos:
    """The files that are not hidden, sorted by their path relative to a root."""
    names = {_relative(path, root): info for path, info in found.items()}
    return {join_path(root, name): names[name] for name in sorted(names) if is_visible(name)}


def _list_all(method: Callable[..., Any], path: str, **options: Any) -> Any:
    """Call a listing method of fsspec so that it raises if a directory cannot be listed, instead of omitting it."""
    try:
        return method(path, on_error="raise", **options)
    except TypeError:
        # filesystems that list a tree with one request lack the parameter, and omit nothing
        return method(path, **options)


def _glob_root(pattern: str) -> str:
    parts = pattern.split("/")
    first = next(place for place, part in enumerate(parts) if _MAGIC.search(part))
    return "/".join(parts[:first]) or ("/" if pattern.startswith("/") else "")


def _above_partitions(directory: str) -> str:
    while "=" in posixpath.basename(directory):
        directory = posixpath.dirname(directory)
    return directory


def _common_root(roots: Iterable[str]) -> str:
    unique = sorted(set(roots))
    return unique[0] if len(unique) == 1 else _above_partitions(posixpath.commonpath(unique))


def _relative(path: str, root: str) -> str:
    # some filesystems list "a/b" below "/a"
    path, root = path.lstrip("/"), root.lstrip("/")
    return path[len(root) :].lstrip("/") if path.startswith(root) else path


def _url(connection: Connection, path: str) -> str:
    return Files(path, connection.opener).url
