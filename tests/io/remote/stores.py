"""One interface to each kind of remote store: data that can be put, replaced and read, and faults on the way."""

from __future__ import annotations

import itertools
import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import windrow
from tests.faults.proxy import Fault, Proxy
from tests.io.remote.tcp_proxy import TcpProxy
from windrow import Dataset

__all__ = [
    "FILES",
    "ROWS",
    "WRONG",
    "RemoteStore",
    "client_of",
    "content",
    "memory_store",
    "over_sftp",
    "put_in",
    "remove_from",
    "through",
]

FILES, ROWS = 3, 400
WRONG = "wrong-and-not-shown"
_NEXT = itertools.count(1)


def content(part: int, shift: int = 0, groups: int = 4) -> bytes:
    """A Parquet file of 400 rows in row groups; files with another shift differ in their pages alone."""
    numbers = np.roll(np.arange(part * ROWS, (part + 1) * ROWS).reshape(4, -1), shift, axis=1).ravel()
    noise = np.random.Generator(np.random.Philox(part)).random((20, ROWS))
    table = pa.table({"x": numbers, "y": numbers * (1 - 2 * (shift > 0))})
    for number, values in enumerate(noise):
        table = table.append_column(f"c{number}", pa.array(values))
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(table, sink, row_group_size=ROWS // groups, **options)
    return bytes(sink.getvalue())


@dataclass
class RemoteStore:
    """A store with a folder for one test; ``put`` and ``remove`` bypass the proxy."""

    name: str
    root: str
    options: dict[str, Any]
    put: Callable[[str, bytes], None]
    remove: Callable[[str], None]
    proxy: Proxy | TcpProxy | None = None
    secrets: tuple[str, ...] = ()
    can_write: bool = True
    has_ranges: bool = True
    # the same with credentials that are not valid
    wrong: tuple[str, dict[str, Any]] | None = None

    def read(self, path: str = "", **arguments: Any) -> Dataset:
        """A dataset of the folder, or of what lies in it."""
        return windrow.read_parquet(self.url(path), **{**self.reading, **arguments})

    @property
    def reading(self) -> dict[str, Any]:
        return {"storage_options": self.options, "target_block_bytes": 1}

    def url(self, path: str) -> str:
        """The URL of a path in the folder."""
        root, mark, query = self.root.partition("?")
        named = quote(path, safe="/*=") if self.root.startswith("http") else path
        return f"{root}{named}{mark}{query}"

    def fill(self, folder: Path | None = None, shift: int = 0) -> None:
        """Put the three files there, and into a local folder."""
        for part in range(FILES):
            self.put(f"{part}.parquet", content(part, shift))
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{part}.parquet").write_bytes(content(part, shift))

    def fail(self, kind: str, path: str = "", *, times: float = 1, share: float = 1.0) -> None:
        """Let the first requests for the same bytes fail; of stores without requests, the next connections."""
        if isinstance(self.proxy, TcpProxy):
            # after the handshake, and within a file
            self.proxy.cut(4 if times == 1 else times, 9_000 if times == 1 else 0)
        elif self.proxy is not None:
            self.proxy.set(Fault(kind, times=times, share=share, seed=7, path=path))

    def fail_writes(self) -> None:
        """Let the first attempts at half of the requests that change something fail."""
        assert isinstance(self.proxy, Proxy), "other stores are not written through it"
        self.proxy.set(Fault("unavailable", share=0.5, seed=7, methods=("PUT", "POST", "DELETE")))

    def mend(self) -> None:
        """Let nothing fail any more."""
        if isinstance(self.proxy, TcpProxy):
            self.proxy.cut(0, 0)
        elif self.proxy is not None:
            self.proxy.set(None)

    @property
    def struck(self) -> int:
        return 0 if self.proxy is None else self.proxy.struck


def put_in(directory: Path) -> Callable[[str, bytes], None]:
    """A function that replaces files of a directory; each has another time, in whole seconds."""

    def put(name: str, data: bytes) -> None:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = directory.parent / ".new"
        new.write_bytes(data)
        at = _next_time()
        os.utime(new, (at, at))
        os.replace(new, path)

    return put


def _next_time() -> int:
    """Another time of the last change, in whole seconds."""
    return 1_700_000_000 + 10 * next(_NEXT)


def over_sftp(filesystem: Any, root: str) -> tuple[Callable[[str, bytes], None], Callable[[str], None]]:
    """The same two functions, by the server, which keeps what it has listed."""

    def put(name: str, data: bytes) -> None:
        path, at = f"{root}{name}", _next_time()
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        with filesystem.ftp.open(f"{path}.new", "wb") as file:
            file.write(data)
        filesystem.ftp.utime(f"{path}.new", (at, at))
        filesystem.mv(f"{path}.new", path)

    return put, lambda name: filesystem.ftp.remove(f"{root}{name}")


def remove_from(directory: Path) -> Callable[[str], None]:
    """A function that removes files of a directory."""
    return lambda name: (directory / name).unlink()


def through(filesystem: Any, root: str) -> tuple[Callable[[str, bytes], None], Callable[[str], None]]:
    """The same two functions, by a client of fsspec."""

    def put(name: str, data: bytes) -> None:
        filesystem.pipe_file(f"{root}{name}", data)

    return put, lambda name: filesystem.rm(f"{root}{name}")


async def _make_client(certificate: str, **options: Any) -> Any:
    import aiohttp

    context = ssl.create_default_context(cafile=certificate)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), **options)


def client_of(certificate: Path) -> Any:
    """What makes HTTP clients that trust a certificate; picklable."""
    return partial(_make_client, str(certificate))


def memory_store(name: str) -> Iterator[RemoteStore]:
    """A folder of fsspec's filesystem in memory."""
    memory = fsspec.filesystem("memory")
    put, remove = through(memory, f"/{name}/")
    yield RemoteStore("memory", f"memory://{name}/", {}, put, remove)
    if memory.exists(f"/{name}"):
        memory.rm(f"/{name}", recursive=True)
