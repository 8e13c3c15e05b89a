"""Lists the files of paths, directories and globs, and finds their common root."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from windrow.core.errors import PlanError, SourceError, WindrowError
from windrow.io.catalog.globs import Glob, has_wildcards, split_glob
from windrow.io.catalog.hub_folders import is_data_file, make_no_files_error
from windrow.io.storage.credentials import safe_cause, source_error
from windrow.io.storage.error_causes import is_forbidden
from windrow.io.storage.filesystems import Connection, Files, Paths, connect, is_visible, join_path
from windrow.io.storage.hub import HubFiles, HubPath, find_commit, hub_errors, is_hub, parse_hub_path
from windrow.io.storage.retries import DEFAULT_RETRIES, GaveUpError, Retries, call_within, is_transient

# fsspec's info of each path
_Infos = dict[str, Mapping[str, Any]]

# of Windows; alone it stands for the current folder there
_DRIVE = re.compile("[A-Za-z]:")
_LISTING_THREADS = 16
# The first request to object storage has a short timeout: a mistyped endpoint should not take minutes to be
# reported, and clients alone wait for minutes.
_CONTACT_SECONDS = 15.0
_LISTING_SECONDS = 30.0
# A page of 1,000 files takes a request.
_HUB_SECONDS = 600.0


def list_files(
    paths: Paths,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries = DEFAULT_RETRIES,
    format_name: str | None = None,
) -> tuple[Files, list[str], list[Mapping[str, Any]]]:
    """Resolve paths to files, relative to the root that they share, and fsspec's info of each.

    The root is the given directory, the part of a glob before its first wildcard, or the common directory of
    all given files, above its ``key=value`` segments. Repositories of the Hugging Face Hub are listed at the
    commit of their revision, and their directories have the files of a format alone.
    """
    connection = _at_commits(connect(paths, filesystem, storage_options), retries)
    connection.lister.invalidate_cache()
    known = check_connection(connection, retries)
    with ThreadPoolExecutor(_LISTING_THREADS) as threads:
        expand = partial(_expand, connection, retries, known, format_name)
        expanded = list(threads.map(expand, connection.paths))
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
    """Find the root of ``paths`` for files whose relative paths are ``known``.

    Sends no request, except for the commit of a revision of the Hugging Face Hub. With ``known=None`` the single
    path is the root itself.
    """
    connection = _at_commits(connect(paths, filesystem, storage_options), retries)
    if known is None:
        return Files(connection.paths[0], connection.opener, retries)
    # only what costs no request
    exists = os.path.lexists if connection.opener is None else lambda _: False
    roots = [_lexical_root(path, known, exists) for path in connection.paths]
    return Files(_common_root(roots), connection.opener, retries)


def _lexical_root(path: str, known: Collection[str], exists: Callable[[str], bool]) -> str:
    glob = split_glob(path, exists)
    if glob is not None and path.rpartition("/")[2] not in known:
        return _as_root(glob.root)
    parts = path.split("/")
    for cut in range(1, len(parts)):
        if "/".join(parts[cut:]) in known:
            return _as_root("/".join(parts[:cut])) or "/"
    return path


def _at_commits(connection: Connection, retries: Retries) -> Connection:
    """Replace the revisions in paths of the Hugging Face Hub by their commits, so that all that follows reads these."""
    if not isinstance(connection.opener, HubFiles):
        return connection
    deadline = time.monotonic() + _CONTACT_SECONDS
    commits: dict[HubPath, str] = {}

    def pin(path: str) -> str:
        place = parse_hub_path(path)
        assert place is not None, path
        whole = place._replace(path="")

        def ask() -> str:
            remaining = max(0.0, deadline - time.monotonic())
            return call_within(remaining, lambda: find_commit(connection.lister, whole))

        if whole not in commits:
            with _mapped_errors(connection, path), hub_errors(place, connection.secrets):
                brief = replace(retries, seconds=min(retries.seconds, _CONTACT_SECONDS))
                commits[whole] = brief.call(ask)
        return place.at(commits[whole])

    return replace(connection, paths=tuple(map(pin, connection.paths)))


def check_connection(connection: Connection, retries: Retries) -> _Infos:
    """Check that object storage responds at all; returns the info of the first path.

    An error response counts as a response: the listing that follows handles it.
    """
    if connection.opener is None or isinstance(connection.opener, HubFiles):
        # of the Hub, the request for commits was the first
        return {}
    path = connection.paths[0]
    glob = split_glob(path, lambda _: False)
    probed = path if glob is None else _as_root(glob.root)
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


def _expand(
    connection: Connection, retries: Retries, known: _Infos, format_name: str | None, path: str
) -> tuple[str, _Infos]:
    """The root and the files of one given path."""
    seconds = 0 if connection.opener is None else min(retries.seconds, _LISTING_SECONDS)
    find = partial(_find_files, connection, path, known, format_name)
    if isinstance(connection.opener, HubFiles):
        # its client repeats requests itself, and waits as long as the Hub says
        find = partial(call_within, _HUB_SECONDS, find)
    with _mapped_errors(connection, path):
        return replace(retries, seconds=seconds).call(find)


@contextmanager
def _mapped_errors(connection: Connection, path: str) -> Iterator[None]:
    try:
        yield
    except WindrowError:
        raise
    except FileNotFoundError as error:
        why = "no file has such a name" if has_wildcards(path) else "no such file or directory"
        raise SourceError(f"{_url(connection, path)} matches nothing: {why}; check the path") from safe_cause(
            error, connection.secrets
        )
    except Exception as error:
        fix = "check the path, the credentials and the permissions"
        if isinstance(error, GaveUpError):
            fix = "check the endpoint and the network, or try later"
        elif is_forbidden(error):
            fix = "grant the permission to list it, or check the credentials"
        what = f"{_url(connection, path)} cannot be listed"
        raise source_error(what, error, fix, connection.secrets) from safe_cause(error, connection.secrets)


def _find_files(
    connection: Connection, path: str, known: _Infos, format_name: str | None
) -> tuple[str, _Infos]:
    list_directory = partial(_list_directory, connection.lister, format_name)
    glob = split_glob(path, partial(_exists, connection.lister))
    if glob is not None:
        return _as_root(glob.root), _glob(connection, path, glob, list_directory)
    info = known.get(path) or connection.lister.info(path)
    if info["type"] == "directory":
        found, hidden = list_directory(path)
        if not found and isinstance(connection.opener, HubFiles):
            raise make_no_files_error(path, _list_directory(connection.lister, None, path)[0], format_name)
        if not found and hidden:
            raise _make_hidden_error(f"{_url(connection, path)} is a directory without data files", hidden)
        if not found:
            raise SourceError(f"{_url(connection, path)} is a directory without data files: check the path")
        return path, found
    return _above_partitions(posixpath.dirname(path)), {path: info}


def _exists(lister: Any, path: str) -> bool:
    """Whether a name with wildcards is that of a file or folder; not if the server does not say it."""
    try:
        lister.info(path)
    except Exception as error:
        if is_transient(error):
            raise
        return False
    return True


def _glob(
    connection: Connection, path: str, glob: Glob, list_directory: Callable[[str], tuple[_Infos, list[str]]]
) -> _Infos:
    found, left_out = _Infos(), list[str]()
    for name, info in sorted(_list_all(connection.lister.glob, glob.pattern, detail=True).items()):
        if not glob.shows(_relative(name, glob.root)):
            left_out.append(name)
        elif info["type"] == "directory":
            below, hidden = list_directory(name)
            found.update(below)
            left_out += hidden
        else:
            found[name] = info
    # a glob with ** finds a directory and also the files in it, which the dict deduplicates
    names = {_relative(name, glob.root): info for name, info in found.items()}
    if not names and left_out:
        raise _make_hidden_error(f"{_url(connection, path)} matches no data files", left_out)
    if not names:
        # globs of filesystems take a failed request for an empty folder; this raises it
        connection.lister.info(path)
        raise FileNotFoundError(path)
    return {join_path(glob.root, name): names[name] for name in _sorted_files(names)}


def _make_hidden_error(what: str, hidden: Sequence[str]) -> SourceError:
    rest = f" and {len(hidden) - 1:,} more" if len(hidden) > 1 else ""
    return SourceError(
        f"{what}: names of files and folders that begin with '.' or '_' are left out, here {hidden[0]}{rest}. Rename "
        "them, give a list of files, or write the '.' or '_' into a glob, as in '_*.parquet'"
    )


def _list_directory(lister: Any, format_name: str | None, directory: str) -> tuple[_Infos, list[str]]:
    """The visible files below a directory, of the Hub those of a format, and the names of the hidden ones."""
    infos = _list_all(lister.find, directory, detail=True)
    names = {_relative(path, directory): info for path, info in infos.items()}
    files = _sorted_files(names)
    found = {join_path(directory, name): names[name] for name in files if is_visible(name)}
    if format_name is not None and is_hub(lister):
        found = {path: info for path, info in found.items() if is_data_file(path, format_name)}
    return found, [join_path(directory, name) for name in files if not is_visible(name)]


def _sorted_files(names: Iterable[str]) -> list[str]:
    # consoles and Hadoop mark the folders of object storage by empty objects: "folder/"
    return sorted(name for name in names if name and not name.endswith("/"))


def _list_all(method: Callable[..., Any], path: str, **options: Any) -> Any:
    """Call a listing method of fsspec so that it raises if a directory cannot be listed, instead of omitting it."""
    try:
        return method(path, on_error="raise", **options)
    except TypeError:
        # filesystems that list a tree with one request lack the parameter, and omit nothing
        return method(path, **options)


def _above_partitions(directory: str) -> str:
    while "=" in posixpath.basename(directory):
        directory = posixpath.dirname(directory)
    return _as_root(directory)


def _as_root(directory: str) -> str:
    return f"{directory}/" if _DRIVE.fullmatch(directory) else directory


def _common_root(roots: Iterable[str]) -> str:
    unique = sorted(set(roots))
    if len(unique) == 1:
        return unique[0]
    try:
        return _above_partitions(posixpath.commonpath(unique))
    except ValueError as error:
        # a drive of Windows, and a share of another machine
        raise PlanError(
            f"{unique[0]} and {unique[-1]} have no folder in common: read them separately, and join them with union()"
        ) from error


def _relative(path: str, root: str) -> str:
    # some filesystems list "a/b" below "/a"
    path, root = path.lstrip("/"), root.lstrip("/")
    # one slash alone: object storage can have a folder without a name
    return path[len(root) :].removeprefix("/") if path.startswith(root) else path


def _url(connection: Connection, path: str) -> str:
    return Files(path, connection.opener).url
