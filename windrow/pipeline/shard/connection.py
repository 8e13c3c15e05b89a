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
        self._line: _Line | None = None
        self._closer: weakref.finalize[Any, Any] | None = None
        self._last = RunStats()

    def open(self, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """The feed, made anew if there is none."""
        if self._line is None:
            self._line = _Line(self._session.shard_client(self._shard, batch_rows, seed))
            self._closer = weakref.finalize(self, in_background, self._line.end)
        return self._line.shard_client

    @property
    def prefetch_loop(self) -> PrefetchLoop | None:
        """The latest walk, which may have gone on to an epoch that is not asked for yet."""
        return None if self._line is None else self._line.prefetch_loop

    def keep(self, prefetch_loop: PrefetchLoop) -> None:
        """Note the latest walk, which ends with the line."""
        line = self._line
        if line is not None:
            line.prefetch_loop = prefetch_loop
        if line is None or line is not self._line:
            # another thread has ended it meanwhile
            prefetch_loop.stop()

    def rest(self) -> None:
        """End what has gone on to an epoch that is not asked for yet: it may be read elsewhere."""
        if self._line is not None and self._line.prefetch_loop is not None:
            self._line.prefetch_loop.stop()

    def run_stats(self, *, spans: bool) -> RunStats:
        """What the run has done; once it is closed, what it had done before."""
        if self._line is None:
            return self._last
        stats = self._line.shard_client.run_stats(spans=spans)
        if spans:
            self._last = stats
        return stats

    def drop(self) -> None:
        """End the line, whatever it has to tell."""
        line, closer = self._line, self._closer
        self._line = self._closer = None
        # whoever detaches the closer closes the feed: two threads may end a shard at once
        if line is not None and closer is not None and closer.detach() is not None:
            line.end()

    def close(self) -> None:
        """End the line, and keep what the run had done, as far as it can be heard."""
        try:
            with suppress(StallError):
                self.run_stats(spans=True)
        finally:
            self.drop()


class _Line:
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
