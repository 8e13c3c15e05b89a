"""Ray Data's ``random_shuffle`` of blocks that were read once into the object store."""

from __future__ import annotations

from typing import Any

from bench.peers.ray_shuffle import RayShuffle

__all__ = ["RayMaterialize"]


class RayMaterialize(RayShuffle):
    """As re-reading, after ``materialize()``; that call's time belongs to the first epoch."""

    def read(self) -> Any:
        """Read everything into the object store."""
        return super().read().materialize()
