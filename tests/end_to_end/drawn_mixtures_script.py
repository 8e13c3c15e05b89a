"""What a rank does in the test of drawn mixtures: it reads each case in legs, each resumed from the last."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist

import windrow
from tests.end_to_end.mesh_models import read_cases, report
from tests.laws.joined_mixtures import JoinedCase
from tests.laws.measured_mixtures import begin_measured
from tests.laws.mixture_cases import MixedCase
from tests.laws.reading import take_microbatches
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import Equal


@dataclass(frozen=True)
class Leg:
    """A mixture, on so many shards: some steps, other shares if there are some, and as many steps once more.

    With ``balance``, its column has been measured first; with ``joined``, documents are joined.
    """

    case: MixedCase
    shards: int
    batch_rows: int
    steps: int
    equal: Equal = False
    shares: dict[str, float] = field(default_factory=dict)
    balance: Balance | None = None
    joined: JoinedCase | None = None

    def begin(self, shard: Shard) -> Iterator[Any]:
        """The batches of a shard."""
        if self.balance is not None and self.joined is None:
            return begin_measured(shard, self.batch_rows, self.balance)
        return iter(shard.iter_batches(self.batch_rows, balance=self.balance))

    def pipeline(self, executor: str) -> windrow.DatasetPipeline:
        """The pipeline of its mixture."""
        if self.joined is not None:
            return self.joined.pipeline(executor)
        return self.case.pipeline(executor, None if self.balance is None else self.balance.column)

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
            batches = leg.begin(shard)
        except windrow.PlanError:
            # the mixture has ended; the test knows whether it has
            found.append([])
            continue
        found.append([take_microbatches(batch) for batch in islice(batches, leg.steps)])
    return found


def main() -> None:
    """Read all cases."""
    read_cases(pickle.loads(Path(sys.argv[1]).read_bytes()), _read_case)


def _read_case(legs: list[Leg]) -> None:
    state = None
    for leg in legs:
        count = dist.get_world_size() // leg.shards
        rank, replica = divmod(dist.get_rank(), count)
        shard = leg.pipeline("auto").shard(
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
