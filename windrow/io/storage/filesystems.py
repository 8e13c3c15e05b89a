"""Filesystem access: resolves paths to a filesystem, a root and relative paths; opens files."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Union

import pyarrow as pa
import pyarrow.fs as pa_fs

from windrow.core.errors import PlanError, SourceError
from windrow.io.storage.credentials import (
    check_options,
    filesystem_secrets,
    find_secrets,
    safe_cause,
    source_error,
    url_secrets,
    without_user,
)
from windrow.io.storage.error_causes import find_cause
from windrow.io.storage.file_versions import (
    Version,
    read_arrow_version,
    read_fsspec_version,
    read_hub_version,
    read_local_version,
)
from windrow.io.storage.forked_filesystems import in_this_process
from windrow.io.storage.hub import HubFiles, is_hub, is_hub_url, require_hub, with_revision
from windrow.io.storage.mapped_files import MappedFiles
from windrow.io.storage.range_reads import RemoteFile, read_ranges
from windrow.io.storage.retries import GaveUpError, Retries
from windrow.io.storage.s3_clients import (
    S3_SCHEMES,
    extract_url_keys,
    is_s3,
    open_arrow_s3,
    to_s3fs_options,
    uses_arrow_client,
)

# URL schemes of pyarrow's filesystems, whose own paths have none
_SCHEMES = {"s3": "s3", "gcs": "gs"}

Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
# the extras that install what a scheme needs
_EXTRAS = {
    **dict.fromkeys(("abfs", "abfss", "az"), "azure"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(S3_SCHEMES, "s3"),
    **dict.fromkeys(("http", "https"), "http"),
    **dict.fromkeys(("sftp", "ssh"), "sftp"),
}


def join_path(root: str, relative: str) -> str:
    """Join a relative path to a root, which can be empty or ``/``."""
    return f"{root.rstrip('/')}/{relative}" if root else relative


def is_visible(relative: str) -> bool:
    """Whether readers see a file: they skip '.x' and '_x', as Arrow and Spark do, but no partition '_year=2020'."""
    return all("=" in part or not part.startswith((".", "_")) for part in relative.split("/"))


@dataclass(frozen=True)
class Files:
    """The files under one root; small and picklable.

    ``filesystem`` is None for local disk, else a ``pyarrow.fs`` or fsspec one. It can hold credentials:
    pickling includes them, error messages and names never do. ``retries`` applies to object storage only.
    ``machine`` is the host that listed the files, ``opening`` a random id of the listing.
    """

    root: str
    filesystem: Any = field(default=None, repr=False)
    retries: Retries = field(default=Retries(), repr=False)
    machine: str = field(default_factory=platform.node, repr=False, compare=False)
    opening: str = field(default_factory=lambda: os.urandom(8).hex(), repr=False, compare=False)
    mapped: MappedFiles = field(default_factory=MappedFiles, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Files({self.url!r})"

    @property
    def local(self) -> bool:
        return self.filesystem is None

    @property
    def url(self) -> str:
        """The root as a user would write it, without credentials."""
        if self.local:
            return self.root
        if isinstance(self.filesystem, pa_fs.FileSystem):
            scheme = _SCHEMES.get(self.filesystem.type_name)
            return f"{scheme}://{self.root}" if scheme else self.root
        return without_user(str(self.filesystem.unstrip_protocol(self.root)))

    def path(self, relative: str) -> str:
        return join_path(self.root, relative)

    def name(self, relative: str) -> str:
        """The file's URL for messages, without credentials."""
        return without_user(join_path(self.url, relative))

    @property
    def comparable(self) -> bool:
        """Whether stamps from the listing can be compared with stamps taken in this process.

        Copies of a local file on several machines count as the same file, but have different stamps.
        """
        return not self.local or self.machine == platform.node()

    def open(self, relative: str) -> pa.NativeFile:
        """Open a local file for random access."""
        # not as `open_version`: Arrow copies selected columns of a record batch unless the file itself is mapped
        path = self.path(relative)
        return pa.memory_map(path) if os.path.getsize(path) else pa.BufferReader(b"")

    def open_version(self, relative: str) -> tuple[pa.NativeFile, Version]:
        """The same for a file that will be opened again; returns its version too."""
        return self.mapped.open(self.path(relative))

    def open_remote(self, relative: str, size_bytes: int) -> RemoteFile:
        """Create a range reader for a remote file of known size; sends no request yet."""
        return RemoteFile(read_ranges(self.filesystem, self.path(relative)), size_bytes, self.retries)

    def look(self, relative: str) -> Version:
        path = self.path(relative)
        if self.local:
            return read_local_version(path)
        read = read_fsspec_version
        if isinstance(self.filesystem, pa_fs.FileSystem):
            read = read_arrow_version
        elif isinstance(self.filesystem, HubFiles):
            read = read_hub_version
        filesystem = in_this_process(self.filesystem)
        return self.retries.read(lambda: read(filesystem, path), 0)

    def stamp(self, relative: str) -> bytes:
        """Bytes that change when the file is rewritten, as far as its filesystem reports that."""
        try:
            return f"{self.look(relative).stamp:016x}".encode()
        except Exception as error:
            fix = "check that it still exists, and read the dataset again"
            raise self.error(self.name(relative), error, fix) from self.cause(error)

    @contextmanager
    def mapped_errors(self, what: str, *, filters: bool = False) -> Iterator[None]:
        """Convert errors to a SourceError; ``what`` names what was being read, and ``filters``: also filtered."""
        try:
            yield
        except SourceError:
            raise
        except GaveUpError as error:
            fix = "check the object storage and the network, or allow more time: read_parquet(retry_seconds=)"
            raise self.error(f"{what}: cannot be read", error, fix) from self.cause(error)
        except Exception as error:
            if isinstance(error, MemoryError) and not isinstance(error, pa.ArrowException):
                raise
            cause = find_cause(error, local=self.local, filters=filters)
            raise self.error(f"{what}: {cause.what}", error, cause.fix) from self.cause(error)

    def error(self, what: str, error: BaseException, fix: str) -> SourceError:
        """Convert an error of a filesystem or of Arrow to a SourceError without credentials."""
        return source_error(what, error, fix, self._secrets())

    def cause(self, error: BaseException) -> BaseException | None:
        """Return the error for ``raise ... from``, or None if its text contains credentials."""
        return safe_cause(error, self._secrets())

    def _secrets(self) -> tuple[str, ...]:
        return (*filesystem_secrets(self.filesystem), *url_secrets(self.root))


@dataclass(frozen=True)
class Connection:
    """The filesystem of a user's paths and options: one object to list with, one to open with, and plain paths.

    The lister is fsspec's, also to write with; the opener of local files is None.
    """

    lister: Any = field(repr=False)
    opener: Any = field(repr=False)
    paths: tuple[str, ...] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


def connect(paths: Paths, filesystem: Any, storage_options: Mapping[str, Any] | None) -> Connection:
    """Find the filesystem for a user's paths and options; a `PlanError` if they name none, or more than one."""
    names = _path_names(paths)
    options = check_options(storage_options)
    if filesystem is not None and storage_options is not None:
        raise PlanError("filesystem= and storage_options= are mutually exclusive: give one of them")
    if filesystem is None:
        return _connect_urls(names, options)
    return _connect_given(names, filesystem)


def _path_names(paths: Paths) -> list[str]:
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    shown = without_user(repr(paths))
    try:
        names = [os.fspath(path) for path in given]
    except TypeError as error:
        raise PlanError(f"paths={shown}: give a path, or a list of paths") from error
    if not names or not all(isinstance(name, str) and name for name in names):
        raise PlanError(f"paths={shown}: give at least one path, as non-empty strings")
    return names


def _connect_urls(names: Sequence[str], options: dict[str, Any]) -> Connection:
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    revision = None
    if all(map(is_hub_url, names)):
        require_hub()
        revision = options.pop("revision", None)
    secrets = (*find_secrets(options), *(secret for name in names for secret in url_secrets(name)))
    try:
        if all(map(is_s3, names)):
            names, options = extract_url_keys(names, options)
            if uses_arrow_client(options):
                return _wrap_arrow(names, open_arrow_s3(options), secrets)
            options = to_s3fs_options(options)
        if all(map(_is_sftp, names)):
            from windrow.io.storage.sftp_files import connect_sftp

            files, plain_paths = connect_sftp(names, options)
            return Connection(files, files, tuple(plain_paths), secrets)
        connected = [url_to_fs(name, **options) for name in names]
    except PlanError:
        raise
    except Exception as error:
        fix = _connecting_fix(names[0], error)
        raise source_error(without_user(names[0]), error, fix, secrets) from safe_cause(error, secrets)
    lister = connected[0][0]
    for name, (other, _) in zip(names, connected, strict=True):
        if other != lister:
            first, this = without_user(names[0]), without_user(name)
            raise PlanError(f"{first} and {this} are on different filesystems: read them separately")
    plain = tuple(path for _, path in connected)
    if isinstance(lister, LocalFileSystem):
        return Connection(lister, None, plain, secrets)
    if is_hub(lister):
        return _connect_hub(lister, plain, revision, secrets)
    return _wrap_fsspec(names, lister, plain, secrets)


def _connect_given(names: Sequence[str], filesystem: Any) -> Connection:
    from fsspec import AbstractFileSystem
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(filesystem, pa_fs.PyFileSystem) and isinstance(filesystem.handler, pa_fs.FSSpecHandler):
        filesystem = filesystem.handler.fs
    if isinstance(filesystem, (pa_fs.LocalFileSystem, LocalFileSystem)):
        return _connect_urls([name if "://" in name else os.path.abspath(name) for name in names], {})
    if isinstance(filesystem, pa_fs.FileSystem):
        url_credentials = tuple(secret for name in names for secret in url_secrets(name))
        return _wrap_arrow(names, filesystem, (*filesystem_secrets(filesystem), *url_credentials))
    if isinstance(filesystem, AbstractFileSystem):
        filesystem = in_this_process(filesystem)
        plain = tuple(str(filesystem._strip_protocol(name)) for name in names)
        if is_hub(filesystem):
            return _connect_hub(filesystem, plain, None, filesystem_secrets(filesystem))
        secrets = (*filesystem_secrets(filesystem), *(text for name in names for text in url_secrets(name)))
        return _wrap_fsspec(names, filesystem, plain, secrets)
    kind = type(filesystem).__name__
    raise PlanError(f"filesystem= is a {kind}: give an fsspec or a pyarrow.fs filesystem")


def _connect_hub(lister: Any, plain: tuple[str, ...], revision: Any, secrets: tuple[str, ...]) -> Connection:
    """Repositories of the Hugging Face Hub are read by `HubFiles`, with a token of the environment too."""
    try:
        opener = HubFiles.of(lister)
    except OSError as error:
        fix = "give a token: storage_options={'token': ...}, or the variable HF_TOKEN"
        raise source_error(f"hf://{plain[0]}", error, fix, secrets) from safe_cause(error, secrets)
    secrets = tuple(dict.fromkeys([*secrets, *filesystem_secrets(opener)]))
    paths = tuple(with_revision(path, revision) for path in plain)
    return Connection(lister, opener if all(map(opener.reads, paths)) else lister, paths, secrets)


def _wrap_fsspec(
    names: Sequence[str], filesystem: Any, paths: tuple[str, ...], secrets: tuple[str, ...]
) -> Connection:
    """Connect through a filesystem of fsspec; those of HTTP and SFTP servers lack much of what reading needs."""
    protocol = filesystem.protocol
    protocols = {protocol} if isinstance(protocol, str) else set(protocol)
    wrapped = filesystem
    if "https" in protocols and hasattr(filesystem, "encode_url"):
        from windrow.io.storage.http_files import connect_http

        wrapped, found = connect_http(filesystem, names)
        paths = tuple(found)
    elif "sftp" in protocols and hasattr(filesystem, "ftp"):
        from windrow.io.storage.sftp_files import SftpFiles

        wrapped = SftpFiles.of(filesystem)
    return Connection(wrapped, wrapped, paths, secrets)


def _is_sftp(url: str) -> bool:
    return url.startswith(("sftp://", "ssh://"))


def _connecting_fix(name: str, error: Exception) -> str:
    """What to do where no filesystem can be made for a URL."""
    scheme = name.partition("://")[0]
    # of an s3:// URL, a ValueError is one of its options
    kinds = (ImportError,) if scheme in S3_SCHEMES else (ImportError, ValueError)
    if isinstance(error, kinds) and scheme in _EXTRAS:
        return f'check storage_options=, and pip install "windrow[{_EXTRAS[scheme]}]"'
    return "check the URL's scheme and storage_options=, and that the scheme's package is installed"


def _wrap_arrow(names: Sequence[str], filesystem: Any, secrets: tuple[str, ...]) -> Connection:
    from fsspec.implementations.arrow import ArrowFSWrapper

    plain = tuple(re.sub(r"^\w+://([^/@]*@)?", "", name).rstrip("/") or name for name in names)
    return Connection(ArrowFSWrapper(filesystem), filesystem, plain, secrets)
