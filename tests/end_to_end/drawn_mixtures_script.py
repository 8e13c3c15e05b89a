"""What a rank does in the test of drawn mixtures: it reads each case in legs, each resumed from the last."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist

import windrow
from tests.end_to_end.mesh_models import read_cases, report
from tests.laws.mixture_cases import MixedCase
from tests.laws.reading import take_rows
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.shard_assignment import Equal


@dataclass(frozen=True)
class Leg:
    """A mixture, on so many shards: some steps, other shares if there are some, and as many steps once more."""

    case: MixedCase
    shards: int
    batch_rows: int
    steps: int
    equal: Equal = False
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def stretches(self) -> int:
        """How often its steps are read."""
        return 1 + bool(self.shares)


def read(shard: Shard, leg: Leg) -> list[list[Any]]:
    """The rows of each batch of a leg, by stretch."""
    found: list[list[Any]] = []
    for number in range(leg.stretches):
        if number:
            shard.set_shares(leg.shares)
        try:
            batches = shard.iter_batches(leg.batch_rows)
        except windrow.PlanError:
            # the mixture has ended; the test knows whether it has
            found.append([])
            continue
        found.append([take_rows(batch) for batch in islice(batches, leg.steps)])
    return found


def main() -> None:
    """Read all cases."""
    read_cases(pickle.loads(Path(sys.argv[1]).read_bytes()), _read_case)


def _read_case(legs: list[Leg]) -> None:
    state = None
    for leg in legs:
        count = dist.get_world_size() // leg.shards
        rank, replica = divmod(dist.get_rank(), count)
        shard = leg.case.pipeline("auto").shard(
            rank=rank,
            world_size=leg.shards,
            replica=(replica, count),
            equal=leg.equal,
            state_dict=state,
        )
        with shard:
            found = read(shard, leg)
            state = shard.state_dict()
        report([rank, found, state])


if __name__ == "__main__":
    main()
