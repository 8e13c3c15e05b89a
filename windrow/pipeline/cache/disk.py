"""Decoded blocks in files of a machine, for all of its processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from windrow.pipeline.cache.block_file import estimate_bytes, read_block, write_block
from windrow.pipeline.cache.folder import UNFINISHED, SharedFolder, sweep_folders
from windrow.pipeline.job import Job

__all__ = ["DiskCache", "open_disk"]

# What files hold: a change of what this version writes into them is a new number.
_VERSION = 2
_RUN_PREFIX = "windrow-run-"
_KEPT_PREFIX = "windrow-kept-"


@dataclass
class DiskCache:
    """Blocks on disk, in a folder of one run or, where they are kept, of the data's contents.

    Small and picklable: each process that uses it finds the folder of its own machine. A
    failing disk is no reason to fail: the cache stops growing, and says why.

    Attributes
    ----------
    parent, name
        The folder's parent, and its name.
    contents
        A digest of what the blocks hold.
    limit_bytes
        What the folder may take; None: half of what is free.
    kept
        Whether it stays after the run.
    trouble
        Why nothing more is written; empty where nothing is wrong.
    """

    parent: str
    name: str
    contents: str
    limit_bytes: int | None
    kept: bool
    trouble: str = ""
    _full: bool = field(default=False, repr=False)
    _ended: bool = field(default=False, repr=False)
    _folder: SharedFolder | None = field(default=None, repr=False)
    _trusted: set[int] = field(default_factory=set, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskCache, (self.parent, self.name, self.contents, self.limit_bytes, self.kept)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.parent, self.name)

    @property
    def has_room(self) -> bool:
        """Whether a block may be kept; once one did not fit, none is taken any more."""
        return not (self._full or self._ended or self.trouble)

    def has(self, block: int) -> bool:
        """Whether there is a file of a block, whole or not."""
        return not self._ended and (self.path / f"{block}.arrows").exists()

    def find(self, block: int) -> list[pa.Table] | None:
        """The tables of a block, mapped into memory; None where it is not kept."""
        if self._ended:
            return None
        try:
            folder = self._open()
            # files of an earlier run may have been damaged since
            verify = self.kept and block not in self._trusted
            tables = read_block(self._path(folder, block), self._key(block), verify=verify)
        except (OSError, pa.ArrowException):
            return None
        if tables is not None:
            self._trusted.add(block)
        return tables

    @contextmanager
    def reading(self, block: int) -> Iterator[None]:
        """Be the only one on this machine that reads a block; whoever waited finds it kept, as a rule."""
        with ExitStack() as alone:
            # where it cannot be had, the worst is that a block is read twice
            with suppress(OSError):
                alone.enter_context(self._open().only_one(block))
            yield

    def keep(self, block: int, tables: list[pa.Table]) -> int:
        """Keep the tables of a block, if they fit; returns the bytes written."""
        if not tables or not self.has_room:
            return 0
        try:
            folder = self._open()
        except OSError as error:
            self.trouble = f"decoded blocks are not kept, as {self.path} cannot be made: {error}"
            return 0
        try:
            return self._write(folder, block, tables)
        except FileNotFoundError:
            # the run has ended elsewhere, and this is a late task of it
            self._folder = None
        except (OSError, pa.ArrowException) as error:
            self.trouble = f"decoded blocks are no longer kept in {self.path}: {error}"
        return 0

    def remove(self) -> None:
        """End the run on this machine: remove the folder, unless it is to stay."""
        self._folder, self._ended = None, True
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)

    def _open(self) -> SharedFolder:
        with self._lock:
            if self._folder is None:
                sweep_folders(Path(self.parent), _RUN_PREFIX)
                self._folder = SharedFolder(self.path)
            return self._folder

    def _write(self, folder: SharedFolder, block: int, tables: list[pa.Table]) -> int:
        estimate = estimate_bytes(tables)
        if not folder.take(estimate, self.limit_bytes):
            self._full = True
            return 0
        path = self._path(folder, block)
        unfinished = path.with_name(f"{block}-{uuid.uuid4().hex}{UNFINISHED}")
        try:
            size = write_block(unfinished, tables, self._key(block), durable=self.kept)
            old = path.stat().st_size if path.exists() else 0
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            folder.give_back(estimate)
            raise
        folder.give_back(estimate - size + old)
        self._trusted.add(block)
        return size

    def _path(self, folder: SharedFolder, block: int) -> Path:
        return folder.path / f"{block}.arrows"

    def _key(self, block: int) -> bytes:
        return hashlib.sha256(f"{_VERSION} {self.contents} {block}".encode()).digest()


def open_disk(job: Job) -> DiskCache | None:
    """The cache on disk that a job asks for, or None; nothing is made before a block is kept."""
    if job.cache != "disk":
        return None
    options = job.options
    parent = os.path.abspath(options.cache_dir or tempfile.gettempdir())
    if not options.keep_cache:
        # its own name tells the data: nobody else knows it
        return DiskCache(parent, _RUN_PREFIX + uuid.uuid4().hex, "", options.cache_bytes, kept=False)
    contents = job.source.contents
    return DiskCache(parent, _KEPT_PREFIX + contents[:32], contents, options.cache_bytes, kept=True)
