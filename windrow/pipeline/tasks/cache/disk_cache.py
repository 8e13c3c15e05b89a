"""The disk cache of decoded blocks, shared by all processes of a machine, with two kinds of stores, and its reports."""

from __future__ import annotations

import hashlib
import logging
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

from windrow.core.finalizers import in_background
from windrow.core.terminal_text import escape_controls
from windrow.pipeline.tasks.cache.block_file import CorruptCachedBlockError
from windrow.pipeline.tasks.cache.job_store import JobStore
from windrow.pipeline.tasks.cache.persistent_store import PersistentStore
from windrow.pipeline.tasks.cache.shared_folder import end_folder, sweep_folders

logger = logging.getLogger(__name__)
# The version of the file format; increase it with every change of what is written.
_VERSION = 3
_JOB_PREFIX = "windrow-run-"
_PERSISTENT_PREFIX = f"windrow-kept-{_VERSION}-"
_WATCH_SECONDS = 1.0
_ERRORS = (OSError, MemoryError, pa.ArrowException)


@dataclass(frozen=True)
class CacheReport:
    """Cache statistics of one task, or of several together."""

    # blocks read from the cache, and from the source
    hits: int = 0
    misses: int = 0
    # bytes of each block that the task returned for the memory cache
    cached_bytes: tuple[int, ...] = ()
    # bytes written to the disk cache
    disk_bytes: int = 0
    # failed calls to the operating system; the cache goes on without the block or the folder
    errors: int = 0
    # cached blocks that failed verification
    corrupt_blocks: int = 0
    # the first messages, empty if there was none
    first_error: str = ""
    first_corruption: str = ""

    def add(self, other: CacheReport) -> CacheReport:
        """The sum of two reports, without ``cached_bytes``."""
        return CacheReport(
            hits=self.hits + other.hits,
            misses=self.misses + other.misses,
            disk_bytes=self.disk_bytes + other.disk_bytes,
            errors=self.errors + other.errors,
            corrupt_blocks=self.corrupt_blocks + other.corrupt_blocks,
            first_error=self.first_error or other.first_error,
            first_corruption=self.first_corruption or other.first_corruption,
        )


@dataclass
class DiskCache:
    """A cache folder: one per job or, if persistent, one per contents of the data.

    It is small and picklable; each process that unpickles it uses the folder on its own machine. Disk
    errors never end a job: after an error this process writes no more blocks, and if the folder is
    unusable it reads none either. Unreadable and corrupt blocks are read from the source.
    """

    parent: str
    name: str
    # a digest of the contents of all blocks
    contents: str
    # of the folder; None: half of the free disk space
    limit_bytes: int | None
    # whether the folder outlives the job
    persistent: bool
    # whether another process removes the folder when the job ends
    borrowed: bool = False
    # why no more blocks are written; empty if there was no error
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
        return Path(self.parent, self.name)

    @property
    def accepts_blocks(self) -> bool:
        """Whether blocks are still written; after the first one that does not fit, none are."""
        return not (self._full or self._ended or self.failure)

    def contains(self, block: int) -> bool:
        """Whether a block is cached, without reading or verifying it."""
        store = self._open()
        return store is not None and store.contains(block)

    def find(self, block: int) -> list[pa.Table] | None:
        """The tables of a block; None if it is not cached, or cannot be read."""
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
        """Hold the machine-wide lock for reading a block from its source.

        A process that waited for the lock usually finds the block cached.
        """
        with ExitStack() as locks:
            store = self._open()
            if store is not None:
                # without the lock, a block is read twice at worst
                try:
                    locks.enter_context(store.folder.lock_block(block))
                except OSError as error:
                    self._record_error(store, error)
            del store
            yield

    def put(self, block: int, tables: list[pa.Table]) -> int:
        """Write the tables of a block, if they fit; returns the bytes written."""
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
        """Take the errors and corrupt blocks of this process that were not reported yet."""
        with self._report_lock:
            report, self._report = self._report, CacheReport()
        return report

    def remove(self) -> None:
        """End the job on this machine: remove the folder, unless it is persistent."""
        with self._lock:
            self._store, self._ended = None, True
        if not self.persistent:
            end_folder(self.path)

    def is_in_use(self) -> bool:
        """Whether the folder still exists; if not, this process closes its files."""
        store = self._store
        if store is None:
            return False
        with suppress(OSError):
            if not store.folder.is_there:
                if not store.folder.has_ended:
                    self._record_failure(
                        f"decoded blocks are no longer cached: {self._shown_path} was removed"
                    )
                with self._lock:
                    self._store, self._ended = None, True
                return False
        return True

    def _open(self) -> JobStore | PersistentStore | None:
        """Open the folder on the first call; None if that failed, or the folder was removed."""
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
                        f"decoded blocks are not cached: {self._shown_path} cannot be created: {error}"
                    )
            return self._store

    def _key(self, block: int, token: str) -> bytes:
        return hashlib.sha256(f"{_VERSION} {self.contents} {token} {block}".encode()).digest()

    @property
    def _shown_path(self) -> str:
        """The path for warnings and logs."""
        return escape_controls(str(self.path))

    def _record_error(self, store: JobStore | PersistentStore, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError) and store.folder.has_ended:
            # a late task of a job that has ended: its folder was removed
            self._ended = True
            return
        self._record_failure(f"decoded blocks are no longer cached in {self._shown_path}: {error}")

    def _record_failure(self, failure: str) -> None:
        if not self.failure:
            logger.warning("%s", failure)
            self.failure = f"{failure}. The job continues and reads them from the source"
        self._add_report(CacheReport(errors=1, first_error=self.failure))

    def _record_corrupt_block(
        self, store: JobStore | PersistentStore, block: int, error: CorruptCachedBlockError
    ) -> None:
        text = (
            f"a cached block in {self._shown_path} is corrupt ({error}); it is read from the source again. "
            "stats() counts all corrupt ones"
        )
        logger.warning(
            "cached block %d in %s is corrupt (%s): it is read again", block, self._shown_path, error
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
    """Start a thread that closes the files of a job's folder once it is removed, also in an idle process."""
    collected = threading.Event()
    weakref.finalize(disk, in_background, collected.set)
    arguments = weakref.ref(disk), collected
    threading.Thread(target=_watch, args=arguments, name="windrow-cache", daemon=True).start()


def _watch(reference: weakref.ReferenceType[DiskCache], collected: threading.Event) -> None:
    while not collected.wait(_WATCH_SECONDS):
        disk = reference()
        if disk is None or not disk.is_in_use():
            return
        del disk


def open_disk(
    parent: str | os.PathLike[str] | None, limit_bytes: int | None, contents: str | None
) -> DiskCache:
    """A disk cache; its folder is created below ``parent`` when it is first used.

    ``contents`` identifies the data whose blocks outlive the job; None: the job removes them.
    """
    parent = os.path.abspath(parent or tempfile.gettempdir())
    if contents is None:
        # the random name identifies the data: no other job uses the folder
        return DiskCache(parent, _JOB_PREFIX + uuid.uuid4().hex, "", limit_bytes, persistent=False)
    return DiskCache(parent, _PERSISTENT_PREFIX + contents[:32], contents, limit_bytes, persistent=True)
