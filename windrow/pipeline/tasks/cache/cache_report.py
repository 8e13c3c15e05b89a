"""`CacheReport`: a task's cache hits, misses and errors."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheReport"]


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
