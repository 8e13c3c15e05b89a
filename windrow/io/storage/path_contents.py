"""Reads whole files by the paths that a column holds; remote ones concurrently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from windrow.io.storage.credentials import without_user
from windrow.io.storage.filesystems import Connection, Files, connect
from windrow.io.storage.retries import call_ahead

# Remote files that are read concurrently, each with one request for its size and one for its bytes.
_READ_THREADS = 32

Load = Callable[[], Any]


@dataclass(frozen=True)
class PathReader:
    """Reads the files of paths or URLs, which can all lie on one filesystem only; small and picklable."""

    filesystem: Any = field(default=None, hash=False, repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)

    def loads(self, paths: Sequence[str | None]) -> Iterator[Load | None]:
        """For each path a function that returns the bytes or raises a `SourceError`; None for None."""
        present = [path for path in paths if path is not None]
        if not present:
            yield from (None for _ in paths)
            return
        connection = connect(present, self.filesystem, self.storage_options)
        plain = iter(connection.paths)
        found = [None if path is None else (path, next(plain)) for path in paths]
        if connection.opener is None:
            for pair in found:
                yield None if pair is None else partial(_read_local, *pair)
            return
        calls = [partial(_read_remote, connection, *pair) for pair in found if pair is not None]
        futures = call_ahead(calls, _READ_THREADS, "windrow-files")
        remaining = iter(futures)
        try:
            for pair in found:
                yield None if pair is None else next(remaining).result
        except BaseException:  # what is left unread when the caller stops
            for future in futures:
                future.cancel()
            raise


def _read_local(path: str, plain: str) -> bytes:
    with Files("").mapped_errors(path), open(plain, "rb") as file:
        return file.read()


def _read_remote(connection: Connection, path: str, plain: str) -> Any:
    files = Files("", connection.opener)
    with files.mapped_errors(without_user(path)):
        size_bytes = files.look(plain).size_bytes
        return files.open_remote(plain, size_bytes).read(size_bytes)
