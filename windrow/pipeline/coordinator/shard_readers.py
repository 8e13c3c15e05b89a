"""Which reader each shard is served to: the one that opened an epoch last, until it closes."""

from __future__ import annotations

from collections.abc import Collection

from windrow.core.errors import PlanError
from windrow.pipeline.coordinator.requests import OpenRequest


class ShardReaders:
    """The latest opening of each shard that is being read: ``opened``, by shard.

    Readers that have been replaced or have closed are remembered, since their late requests must not take the shard
    back.
    """

    def __init__(self) -> None:
        self.opened: dict[int, OpenRequest] = {}
        self._closed: dict[int, set[str]] = {}
        # shards first seen through a poll after a restart: their reader may have been replaced meanwhile
        self._recovered: set[int] = set()
        # by token of a replaced reader: the epoch that its successor opened
        self._replaced: dict[str, int] = {}

    def open(self, request: OpenRequest) -> None:
        """Make the reader of a request the only one of its shard, also after it has closed."""
        self._replaced.pop(request.token, None)
        opened = self.opened.get(request.shard)
        if opened is not None and opened.token != request.token:
            self._replaced[opened.token] = request.cursor.epoch
        self.opened[request.shard] = request
        if not request.goes_on:
            self._recovered.discard(request.shard)

    def recover(self, shard: int) -> None:
        """Note that a shard's opening was reconstructed from a poll."""
        self._recovered.add(shard)

    def close(self, shard: int, token: str) -> bool:
        """A reader has closed; returns whether its shard has no other."""
        self._closed.setdefault(shard, set()).add(token)
        opened = self.opened.get(shard)
        if opened is not None and opened.token != token:
            return False
        self.opened.pop(shard, None)
        return True

    def has_closed(self, request: OpenRequest) -> bool:
        """Whether the reader of a request has closed."""
        return request.token in self._closed.get(request.shard, ())

    @property
    def closed_shards(self) -> Collection[int]:
        """Shards that had readers, all of which have closed."""
        return self._closed.keys() - self.opened.keys()

    def is_current(self, request: OpenRequest) -> bool:
        """Whether a request is its shard's latest; False if its reader has moved on or closed."""
        self.check_not_replaced(request)
        opened = self.opened.get(request.shard)
        return not self.has_closed(request) if opened is None else not request.precedes(opened)

    def check_not_replaced(self, request: OpenRequest) -> None:
        """Raise a PlanError if another reader has opened the shard of a request after its own."""
        opened = self.opened.get(request.shard)
        replaced = self._replaced.get(request.token)
        if opened is not None and opened.token != request.token:
            is_later = request.shard in self._recovered and request.since > opened.since
            replaced = None if is_later else opened.cursor.epoch
        if replaced is not None:
            raise PlanError(
                f"shard {request.shard} is being iterated elsewhere: another copy of it has opened epoch "
                f"{replaced}. Send each shard to one reader only"
            )
