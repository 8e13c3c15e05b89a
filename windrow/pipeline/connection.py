"""A shard's connection to its run: made when it is first read, and ended once."""

from __future__ import annotations

import weakref
from typing import Any

from windrow.pipeline.executors.seam import Feed, Session
from windrow.pipeline.finalizing import in_background
from windrow.pipeline.stats import RunStats

__all__ = ["Connection"]


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
        self._feed: Feed | None = None
        self._closer: weakref.finalize[Any, Any] | None = None
        self._last = RunStats()

    def open(self, batch_rows: int, seed: int | None) -> Feed:
        """The feed, made anew if there is none."""
        if self._feed is None:
            self._feed = self._session.feed(self._shard, batch_rows, seed)
            self._closer = weakref.finalize(self, in_background, self._feed.close)
        return self._feed

    def run_stats(self, *, spans: bool) -> RunStats:
        """What the run has done; once it is closed, what it had done before."""
        if self._feed is None:
            return self._last
        stats = self._feed.run_stats(spans=spans)
        if spans:
            self._last = stats
        return stats

    def drop(self) -> None:
        """End the line, whatever it has to tell."""
        feed, closer = self._feed, self._closer
        self._feed = self._closer = None
        # whoever detaches the closer closes the feed: two threads may end a shard at once
        if feed is not None and closer is not None and closer.detach() is not None:
            feed.close()

    def close(self) -> None:
        """End the line, and keep what the run had done."""
        try:
            self.run_stats(spans=True)
        finally:
            self.drop()
