"""The place of a process on a mesh of devices: which shard it reads, and which of the shard's replicas it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer


@dataclass(frozen=True)
class MeshPlace:
    """A process's place on a mesh.

    Attributes
    ----------
    rank, world_size
        Index and number of shards: the place along the data dimensions.
    replica, replicas
        Index and number of the processes that read the same shard: the place along all other dimensions.
    sequence, sequences
        Index and number of the parts of a sequence: the place along the sequence dimensions.
    coordinates
        Index and size by name of each dimension.
    data_dims, sequence_dims
        The data dimensions and the sequence dimensions.
    """

    rank: int
    world_size: int
    replica: int
    replicas: int
    sequence: int = 0
    sequences: int = 1
    coordinates: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    data_dims: tuple[str, ...] = ()
    sequence_dims: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Number of processes on the mesh."""
        return self.world_size * self.replicas

    @property
    def name(self) -> str:
        """The replica for messages: its number and coordinates."""
        where = ", ".join(f"{name} {index} of {size}" for name, (index, size) in self.coordinates.items())
        return f"{self.replica} ({where})" if where else str(self.replica)

    def describe(self) -> str:
        """The mesh, and what its dimensions mean; empty without one."""
        if not self.coordinates:
            return ""
        shape = " x ".join(f"{name} {size}" for name, (_, size) in self.coordinates.items())
        parts = [f"ranks along {_list(self.data_dims)} get different rows"] if self.data_dims else []
        parts += [f"along {_list(self.sequence_dims)} parts of sequences"] if self.sequence_dims else []
        same = [name for name in self.coordinates if name not in {*self.data_dims, *self.sequence_dims}]
        parts += [f"along {_list(same)} the same"] if same else []
        return f"{shape}: {', '.join(parts)}"

    @property
    def part(self) -> tuple[int, int] | None:
        """Index and number of the parts of a sequence; None without sequence dimensions."""
        return (self.sequence, self.sequences) if self.sequence_dims else None


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def check_replica(replica: Any) -> tuple[int, int]:
    """Return a replica's index and the number of replicas; raise a PlanError for anything else."""
    index, count = (
        map(as_integer, replica) if isinstance(replica, (tuple, list)) and len(replica) == 2 else (None, None)
    )
    if index is None or count is None:
        raise PlanError(f"replica={replica!r} must be a pair of integers: (index, count)")
    if not 0 <= index < count:
        raise PlanError(f"replica={replica!r} must be (index, count) with an index from 0 to count - 1")
    return index, count
