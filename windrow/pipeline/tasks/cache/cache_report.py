"""`CacheReport`: a task's cache hits, misses and errors."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheReport"]


@dataclass(frozen=True)
class CacheReport:
    """Cache statistics of one task, or of several together.

    Attributes
    ----------
    hits, misses
        Blocks read from the cache, and from the source.
    cached_bytes
        Bytes of each block that the task returned for the memory cache.
    disk_bytes
        Bytes written to the disk cache.
    errors
        Failed calls to the operating system; the cache goes on without the block or the folder.
    corrupt_blocks
        Cached blocks that failed verification.
    first_error
        The message of the first error; empty if there was none.
    first_corruption
        The message about the first corrupt block; empty if there was none.
    """

    hits: int = 0
    misses: int = 0
    cached_bytes: tuple[int, ...] = ()
    disk_bytes: int = 0
    errors: int = 0
    corrupt_blocks: int = 0
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
