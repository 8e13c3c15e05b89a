"""What a shard says when it opens an epoch."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.pipeline.cursor import Cursor

__all__ = ["OpenRequest"]


@dataclass(frozen=True)
class OpenRequest:
    """Everything a coordinator needs to serve a shard's epoch, even one that was restarted.

    Attributes
    ----------
    seed
        What the shard goes by: another than the program's where a state brought one.
    token
        Who reads: a shard is served to the latest token only.
    """

    shard: int
    node: str
    token: str
    cursor: Cursor
    batch_rows: int
    drop_last: bool
    seed: int | None
