"""A shard's connection to the coordinator: opened on first read, closed exactly once."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

from windrow.core.errors import StallError
from windrow.pipeline.coordinator.stats import RunStats
from windrow.pipeline.executors.base import CoordinatorClient, Session
from windrow.pipeline.shard.finalizers import in_background
from windrow.pipeline.shard.prefetch_loop import PrefetchLoop

__all__ = ["Connection"]

_JOIN_SECONDS = 1.0


class Connection:
    """One shard's coordinator client and prefetch loop.

    Parameters
    ----------
    session
        Creates the coordinator client.
    shard
        The shard's number.
    """

    def __init__(self, session: Session, shard: int) -> None:
        self._session = session
        self._shard = shard
        self._resources: _Resources | None = None
        self._closer: weakref.finalize[Any, Any] | None = None
        self._last_stats = RunStats()

    def open(self, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Return the coordinator client, creating it if the shard is not connected."""
        if self._resources is None:
            self._resources = _Resources(self._session.shard_client(self._shard, batch_rows, seed))
            self._closer = weakref.finalize(self, in_background, self._resources.end)
        return self._resources.shard_client

    @property
    def prefetch_loop(self) -> PrefetchLoop | None:
        """The latest prefetch loop, which can already be in an epoch that the consumer has not opened."""
        return None if self._resources is None else self._resources.prefetch_loop

    def set_prefetch_loop(self, prefetch_loop: PrefetchLoop) -> None:
        """Register the latest prefetch loop, which stops when the connection closes."""
        resources = self._resources
        if resources is not None:
            resources.prefetch_loop = prefetch_loop
        if resources is None or resources is not self._resources:
            # another thread has closed the connection in the meantime
            prefetch_loop.stop()

    def stop_prefetch(self) -> None:
        """Stop prefetching into the next epoch, since another process may read that epoch."""
        if self._resources is not None and self._resources.prefetch_loop is not None:
            self._resources.prefetch_loop.stop()

    def run_stats(self, *, spans: bool) -> RunStats:
        """Return the job's statistics; once disconnected, the last ones fetched with spans."""
        if self._resources is None:
            return self._last_stats
        stats = self._resources.shard_client.run_stats(spans=spans)
        if spans:
            self._last_stats = stats
        return stats

    def disconnect(self) -> None:
        """Close the connection without fetching statistics."""
        resources, closer = self._resources, self._closer
        self._resources = self._closer = None
        # two threads can close a shard simultaneously: the one that detaches the finalizer closes the client
        if resources is not None and closer is not None and closer.detach() is not None:
            resources.end()

    def close(self) -> None:
        """Close the connection, and keep the job's final statistics if the coordinator answers."""
        try:
            with suppress(StallError):
                self.run_stats(spans=True)
        finally:
            self.disconnect()


class _Resources:
    """What must be released when the connection closes; does not refer to the `Connection`."""

    def __init__(self, shard_client: CoordinatorClient) -> None:
        self.shard_client = shard_client
        self.prefetch_loop: PrefetchLoop | None = None

    def end(self) -> None:
        if self.prefetch_loop is not None:
            self.prefetch_loop.stop()
        self.shard_client.close()
        if self.prefetch_loop is not None:
            self.prefetch_loop.join(_JOIN_SECONDS)
