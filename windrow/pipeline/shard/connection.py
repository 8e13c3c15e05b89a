"""A shard's connection to its run: made when it is first read, and ended once."""

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
    """The line between one shard and the run behind it.

    Parameters
    ----------
    session
        What makes the line.
    shard
        Whose it is.
    """

    def __init__(self, session: Session, shard: int) -> None:
        self._session = session
        self._shard = shard
        self._resources: _Resources | None = None
        self._closer: weakref.finalize[Any, Any] | None = None
        self._last_stats = RunStats()

    def open(self, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """The feed, made anew if there is none."""
        if self._resources is None:
            self._resources = _Resources(self._session.shard_client(self._shard, batch_rows, seed))
            self._closer = weakref.finalize(self, in_background, self._resources.end)
        return self._resources.shard_client

    @property
    def prefetch_loop(self) -> PrefetchLoop | None:
        """The latest walk, which may have gone on to an epoch that is not asked for yet."""
        return None if self._resources is None else self._resources.prefetch_loop

    def set_prefetch_loop(self, prefetch_loop: PrefetchLoop) -> None:
        """Note the latest walk, which ends with the line."""
        resources = self._resources
        if resources is not None:
            resources.prefetch_loop = prefetch_loop
        if resources is None or resources is not self._resources:
            # another thread has ended it meanwhile
            prefetch_loop.stop()

    def stop_prefetch(self) -> None:
        """End what has gone on to an epoch that is not asked for yet: it may be read elsewhere."""
        if self._resources is not None and self._resources.prefetch_loop is not None:
            self._resources.prefetch_loop.stop()

    def run_stats(self, *, spans: bool) -> RunStats:
        """What the run has done; once it is closed, what it had done before."""
        if self._resources is None:
            return self._last_stats
        stats = self._resources.shard_client.run_stats(spans=spans)
        if spans:
            self._last_stats = stats
        return stats

    def disconnect(self) -> None:
        """End the line, whatever it has to tell."""
        resources, closer = self._resources, self._closer
        self._resources = self._closer = None
        # whoever detaches the closer closes the feed: two threads may end a shard at once
        if resources is not None and closer is not None and closer.detach() is not None:
            resources.end()

    def close(self) -> None:
        """End the line, and keep what the run had done, as far as it can be heard."""
        try:
            with suppress(StallError):
                self.run_stats(spans=True)
        finally:
            self.disconnect()


class _Resources:
    """What has to be ended."""

    def __init__(self, shard_client: CoordinatorClient) -> None:
        self.shard_client = shard_client
        self.prefetch_loop: PrefetchLoop | None = None

    def end(self) -> None:
        if self.prefetch_loop is not None:
            self.prefetch_loop.stop()
        self.shard_client.close()
        if self.prefetch_loop is not None:
            self.prefetch_loop.join(_JOIN_SECONDS)
