"""The request with which a shard opens an epoch."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.pipeline.checkpoint.cursor import Cursor

__all__ = ["OpenRequest"]


@dataclass(frozen=True)
class OpenRequest:
    """Everything that a coordinator, even a restarted one, needs to serve a shard's epoch.

    Attributes
    ----------
    token
        Identifies the reader: a shard is served to its latest token only.
    number
        How many epochs this reader opened before. A restarted coordinator can receive its requests in
        any order, and uses the latest.
    goes_on
        Whether the reader continued from its last epoch by itself. Such a request does not take the
        shard back from a reader that has replaced this one.
    seed
        The seed that the shard reads by; differs from the program's if a state brought another.
    since
        When the reader was created, in seconds of its machine's clock. A restarted coordinator can
        receive requests of a reader and of its successor in any order, and uses the later one.
    """

    shard: int
    node: str
    token: str
    number: int
    cursor: Cursor
    batch_rows: int
    drop_last: bool
    goes_on: bool
    seed: int | None
    since: float = 0.0
