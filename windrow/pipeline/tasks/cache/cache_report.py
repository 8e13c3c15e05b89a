"""What a task reports of the decoded blocks that it found and kept."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheReport"]


@dataclass(frozen=True)
class CacheReport:
    """What a task, or several together, did with the cache.

    Attributes
    ----------
    hits, misses
        Blocks that were kept, and that the source was asked for.
    cached_bytes
        Bytes of each block that the task was to keep in memory.
    disk_bytes
        What it wrote to disk.
    errors
        Calls to the operating system that failed and made the cache do without something.
    corrupt_blocks
        Cached blocks that failed verification.
    first_error
        The first error in words; empty where there was none.
    first_corruption
        The first corrupt block in words; empty where there was none.
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
        """What several tasks report together; sizes of single blocks are left out."""
        return CacheReport(
            hits=self.hits + other.hits,
            misses=self.misses + other.misses,
            disk_bytes=self.disk_bytes + other.disk_bytes,
            errors=self.errors + other.errors,
            corrupt_blocks=self.corrupt_blocks + other.corrupt_blocks,
            first_error=self.first_error or other.first_error,
            first_corruption=self.first_corruption or other.first_corruption,
        )
