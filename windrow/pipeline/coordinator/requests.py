"""What a shard says when it opens an epoch."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.pipeline.checkpoint.cursor import Cursor

__all__ = ["OpenRequest"]


@dataclass(frozen=True)
class OpenRequest:
    """Everything a coordinator needs to serve a shard's epoch, even one that was restarted.

    Attributes
    ----------
    token
        Who reads: a shard is served to the latest token only.
    number
        How many epochs this reader has opened before: a coordinator that begins anew may hear
        of them in any order, and goes by the latest.
    goes_on
        Whether the reader has gone on from its last epoch by itself: if another one has taken its
        place meanwhile, it does not take it back.
    seed
        What the shard goes by: another than the program's where a state brought one.
    since
        When the reader was made, in seconds of its machine's clock. A coordinator that was restarted hears
        the questions of a reader and of its successor in any order, and goes by the later one.
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
