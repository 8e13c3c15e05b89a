"""Decoded blocks on the disk of a machine, for all of its processes."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import uuid
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from windrow.pipeline.plan.job import Job
from windrow.pipeline.tasks.cache.block_file import CorruptCachedBlockError
from windrow.pipeline.tasks.cache.cache_report import CacheReport
from windrow.pipeline.tasks.cache.job_store import JobStore
from windrow.pipeline.tasks.cache.persistent_store import PersistentStore
from windrow.pipeline.tasks.cache.shared_folder import end_folder, sweep_folders

__all__ = ["DiskCache", "open_disk"]

# What files hold: a change of what this version writes into them is a new number.
_VERSION = 3
_JOB_PREFIX = "windrow-run-"
_PERSISTENT_PREFIX = f"windrow-kept-{_VERSION}-"
_WATCH_SECONDS = 1.0
_ERRORS = (OSError, MemoryError, pa.ArrowException)


@dataclass
class DiskCache:
    """Blocks on disk, in a folder of one run or, where they are kept, of the data's contents.

    Small and picklable: each process that uses it finds the folder of its own machine. No fault of the
    disk ends a run: after an error this process writes nothing more, and without a folder it reads
    nothing either. What cannot be read, or is corrupt, is read from the source.

    Attributes
    ----------
    parent, name
        The folder's parent, and its name.
    contents
        A digest of what the blocks hold.
    limit_bytes
        What the folder may take; None: half of what is free.
    persistent
        Whether it stays after the run.
    borrowed
        Whether another process removes the folder when the run ends.
    failure
        Why nothing more is written; empty where nothing is wrong.
    """

    parent: str
    name: str
    contents: str
    limit_bytes: int | None
    persistent: bool
    borrowed: bool = False
    failure: str = ""
    _full: bool = field(default=False, repr=False)
    _ended: bool = field(default=False, repr=False)
    _store: JobStore | PersistentStore | None = field(default=None, repr=False)
    _report: CacheReport = field(default=CacheReport(), repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)
    _report_lock: Any = field(default_factory=threading.Lock, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskCache, (self.parent, self.name, self.contents, self.limit_bytes, self.persistent, True)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.parent, self.name)

    @property
    def accepts_blocks(self) -> bool:
        """Whether a block may be kept; once one did not fit, none is taken any more."""
        return not (self._full or self._ended or self.failure)

    def contains(self, block: int) -> bool:
        """Whether a block is kept, as far as is known without looking at it."""
        store = self._open()
        return store is not None and store.contains(block)

    def find(self, block: int) -> list[pa.Table] | None:
        """The tables of a block; None where it is not kept, or cannot be read."""
        store = self._open()
        if store is None:
            return None
        try:
            return store.find(block)
        except CorruptCachedBlockError as error:
            self._record_corrupt_block(store, block, error)
        except _ERRORS as error:
            self._record_error(store, error)
        return None

    @contextmanager
    def reading(self, block: int) -> Iterator[None]:
        """Be the only one on this machine that reads a block; whoever waited finds it kept, as a rule."""
        with ExitStack() as locks:
            store = self._open()
            if store is not None:
                # where it cannot be had, the worst is that a block is read twice
                try:
                    locks.enter_context(store.folder.lock_block(block))
                except OSError as error:
                    self._record_error(store, error)
            del store
            yield

    def put(self, block: int, tables: list[pa.Table]) -> int:
        """Keep the tables of a block, if they fit; returns the bytes written."""
        store = self._open() if tables and self.accepts_blocks else None
        if store is None:
            return 0
        try:
            written = store.put(block, tables, self.limit_bytes)
        except CorruptCachedBlockError as error:
            self._record_corrupt_block(store, block, error)
            return 0
        except _ERRORS as error:
            self._record_error(store, error)
            return 0
        self._full = self._full or written is None
        return written or 0

    def take_report(self) -> CacheReport:
        """The errors and corrupt blocks of this process that no task has reported yet."""
        with self._report_lock:
            report, self._report = self._report, CacheReport()
        return report

    def remove(self) -> None:
        """End the run on this machine: remove the folder, unless it is to stay."""
        with self._lock:
            self._store, self._ended = None, True
        if not self.persistent:
            end_folder(self.path)

    def is_in_use(self) -> bool:
        """Whether the folder is still there; otherwise what this process holds of it is released."""
        store = self._store
        if store is None:
            return False
        with suppress(OSError):
            if not store.folder.is_there:
                if not store.folder.has_ended:
                    self._record_failure(f"decoded blocks are no longer kept: {self.path} has been removed")
                with self._lock:
                    self._store, self._ended = None, True
                return False
        return True

    def _open(self) -> JobStore | PersistentStore | None:
        """The folder, opened once; None where there is none, or none any more."""
        if self._store is not None or self._ended:
            return self._store
        with self._lock:
            if self._store is None and not self._ended:
                try:
                    sweep_folders(Path(self.parent), _JOB_PREFIX)
                    kind = PersistentStore if self.persistent else JobStore
                    self._store = kind(self.path, self._key)
                    if self.borrowed and not self.persistent:
                        _start_watching(self)
                except (OSError, RuntimeError) as error:
                    self._store, self._ended = None, True
                    self._record_failure(
                        f"decoded blocks are not kept, as {self.path} cannot be made: {error}"
                    )
            return self._store

    def _key(self, block: int, token: str) -> bytes:
        return hashlib.sha256(f"{_VERSION} {self.contents} {token} {block}".encode()).digest()

    def _record_error(self, store: JobStore | PersistentStore, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError) and store.folder.has_ended:
            # this is a late task of a run that has ended elsewhere
            self._ended = True
            return
        self._record_failure(f"decoded blocks are no longer kept in {self.path}: {error}")

    def _record_failure(self, failure: str) -> None:
        self.failure = self.failure or f"{failure}. The run goes on, and reads them from the source"
        self._add_report(CacheReport(errors=1, first_error=self.failure))

    def _record_corrupt_block(
        self, store: JobStore | PersistentStore, block: int, error: CorruptCachedBlockError
    ) -> None:
        text = (
            f"a decoded block in {self.path} is corrupt ({error}) and is read from the source again; "
            "stats() counts all of them"
        )
        self._add_report(CacheReport(corrupt_blocks=1, first_corruption=text))
        try:
            store.evict(block)
        except OSError as failed:
            self._record_error(store, failed)

    def _add_report(self, report: CacheReport) -> None:
        with self._report_lock:
            self._report = self._report.add(report)


def _start_watching(disk: DiskCache) -> None:
    """Have a process release a run's folder once the folder is gone, also while the process has no tasks."""
    collected = threading.Event()
    weakref.finalize(disk, collected.set)
    arguments = weakref.ref(disk), collected
    threading.Thread(target=_watch, args=arguments, name="windrow-cache", daemon=True).start()


def _watch(reference: weakref.ReferenceType[DiskCache], collected: threading.Event) -> None:
    while not collected.wait(_WATCH_SECONDS):
        disk = reference()
        if disk is None or not disk.is_in_use():
            return
        del disk


def open_disk(job: Job) -> DiskCache | None:
    """The cache on disk that a job asks for, or None; nothing is made before a block is kept."""
    if job.cache != "disk":
        return None
    options = job.options
    parent = os.path.abspath(options.cache_dir or tempfile.gettempdir())
    if not options.keep_cache:
        # its own name tells the data: nobody else knows it
        return DiskCache(parent, _JOB_PREFIX + uuid.uuid4().hex, "", options.cache_bytes, persistent=False)
    contents = job.source.contents
    return DiskCache(
        parent, _PERSISTENT_PREFIX + contents[:32], contents, options.cache_bytes, persistent=True
    )
