"""Ray Data's ``random_shuffle`` of blocks that were read into the object store once."""

from __future__ import annotations

from typing import Any

from bench.peers.ray_shuffle import RayShuffle

__all__ = ["RayMaterialize"]


class RayMaterialize(RayShuffle):
    """Like `RayShuffle`, but after ``materialize()``, which is part of the first epoch."""

    def read(self) -> Any:
        """Read everything into the object store."""
        return super().read().materialize()
