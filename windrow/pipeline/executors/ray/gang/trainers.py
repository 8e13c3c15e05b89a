"""Starts the trainers of a gang, watches them, and starts them again after a failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from windrow.core.errors import PlanError, StallError, TransformError
from windrow.core.tracebacks import trims_traceback
from windrow.core.user_warnings import warn_user
from windrow.pipeline.executors.ray.cluster import this_node
from windrow.pipeline.executors.ray.executor import start_ray
from windrow.pipeline.executors.ray.gang.actors import Checkpoint, MeetingActor, TrainerActor, assign_seats
from windrow.shuffle.order.shard_assignment import Equal

logger = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
# each trainer waits in one call at a time
_MORE_CALLS = 16


@dataclass(frozen=True)
class GangPlan:
    """The checked arguments of `run_gang`.

    Each trainer calls ``train`` with what it knows of itself and of the gang, by name.
    """

    train: Callable[..., Any]
    size: int
    datasets: Mapping[str, Any]
    equal: Equal
    resources: Mapping[str, float]
    strategy: str
    max_restarts: int
    states: Mapping[str, Any]
    start_timeout: float


class _TrainerError(Exception):
    """A trainer raised or died."""

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(rank, error)
        self.rank = rank
        self.error = error

    def __str__(self) -> str:
        if isinstance(self.error, ray.exceptions.RayError):
            return f"the process of rank {self.rank} ended. Ray says: {_last_line(self.error)}"
        return f"rank {self.rank} raised {type(self.error).__name__}: {self.error}"


def _last_line(error: ray.exceptions.RayError) -> str:
    """What Ray says of this death, without its general advice."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].partition(" Some common causes")[0]


@trims_traceback
def run_trainers(plan: GangPlan) -> list[Any]:
    """Run a gang to its end; returns what its trainers return, by rank."""
    start_ray()
    meeting = (
        ray.remote(MeetingActor)
        .options(
            num_cpus=0,
            # its checkpoint must outlive the trainers' nodes
            scheduling_strategy=NodeAffinitySchedulingStrategy(this_node(), soft=False),
            max_concurrency=plan.size + _MORE_CALLS,
        )
        .remote(plan.size)
    )
    try:
        for attempt in range(plan.max_restarts + 1):
            try:
                return _run_attempt(plan, meeting, attempt)
            except _TrainerError as failure:
                # the same use of windrow would fail again
                final = isinstance(failure.error, PlanError) or attempt == plan.max_restarts
                if final:
                    tried = f" in attempt {attempt + 1}" if attempt else ""
                    raise TransformError(f"run_gang(): {failure}{tried}") from failure.error
                logger.warning("%s; all %d trainers start again", failure, plan.size)
                warn_user(
                    f"run_gang(): {failure}; all {plan.size} trainers start again from their last save (restart "
                    f"{attempt + 1} of {plan.max_restarts})"
                )
        raise AssertionError("unreachable")
    finally:
        ray.kill(meeting)


def _run_attempt(plan: GangPlan, meeting: Any, attempt: int) -> list[Any]:
    checkpoint = ray.get(meeting.begin.remote(attempt))
    with ExitStack() as calls:
        group = placement_group([dict(plan.resources)] * plan.size, strategy=plan.strategy)
        calls.callback(remove_placement_group, group)
        _await_group(group, plan)
        trainers = [_start_trainer(plan, group, rank) for rank in range(plan.size)]
        for trainer in trainers:
            calls.callback(ray.kill, trainer)
        places = _gather(
            {trainer.place.remote(): rank for rank, trainer in enumerate(trainers)}, plan.start_timeout
        )
        seats = assign_seats(places)
        shards = _split(plan, [place.node for place in places], checkpoint)
        for named in shards:
            for shard in named.values():
                calls.callback(shard.close)
        values = [None] * plan.size if checkpoint is None else checkpoint.values
        running = {
            trainer.run.remote(plan.train, seats[rank], attempt, shards[rank], values[rank], meeting): rank
            for rank, trainer in enumerate(trainers)
        }
        return _gather(running, leave=lambda rank: meeting.leave.remote(attempt, rank))


def _start_trainer(plan: GangPlan, group: PlacementGroup, rank: int) -> Any:
    needs = dict(plan.resources)
    return (
        ray.remote(TrainerActor)
        .options(
            num_cpus=needs.pop("CPU", 0),
            num_gpus=needs.pop("GPU", 0),
            resources=needs,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
        )
        .remote()
    )


def _await_group(group: PlacementGroup, plan: GangPlan) -> None:
    """Wait until everything that the trainers reserve is free."""
    needed = {name: amount * plan.size for name, amount in plan.resources.items()}
    lacking = _describe(needed, ray.cluster_resources())
    if lacking:
        warn_user(
            f"run_gang(): {plan.size} trainers need {lacking} of the whole cluster; waiting {plan.start_timeout:g} s "
            "for more nodes"
        )
    if not group.wait(plan.start_timeout):
        free = _describe(needed, ray.available_resources()) or "enough, but not where the strategy needs it"
        raise StallError(
            f"run_gang(): {plan.size} trainers could not start together within {plan.start_timeout:g} s, with "
            f"strategy={plan.strategy!r} and {_amounts(plan.resources)} each: they need {free} free in the cluster. "
            "Use fewer trainers, let each reserve less, or end what holds these resources"
        )


def _describe(needed: Mapping[str, float], found: Mapping[str, float]) -> str:
    short = {name: amount for name, amount in needed.items() if found.get(name, 0) < amount}
    return ", ".join(
        f"{name} {amount:g} where there is {found.get(name, 0):g}" for name, amount in short.items()
    )


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


def _split(plan: GangPlan, nodes: list[str], checkpoint: Checkpoint | None) -> list[dict[str, Any]]:
    """The shards of each trainer by name, from the checkpoint or the state to begin with."""
    states = plan.states if checkpoint is None else checkpoint.states
    found: list[dict[str, Any]] = [{} for _ in range(plan.size)]
    for name, dataset in plan.datasets.items():
        shards = dataset.split(plan.size, equal=plan.equal, locality_hints=nodes)
        for named, shard in zip(found, shards, strict=True):
            if name in states:
                shard.load_state_dict(states[name])
            named[name] = shard
    return found


def _gather(running: dict[Any, int], timeout: float | None = None, leave: Any = None) -> list[Any]:
    """The results by rank; raises for the first trainer that fails, or a StallError after ``timeout`` seconds."""
    results: dict[int, Any] = {}
    left = timeout
    while running:
        done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
        for answer in done:
            rank = running.pop(answer)
            try:
                results[rank] = ray.get(answer)
            except ray.exceptions.RayTaskError as error:
                raise _TrainerError(rank, error.cause) from None
            except ray.exceptions.RayError as error:
                raise _TrainerError(rank, error) from None
            if leave is not None:
                leave(rank)
        if left is not None and not done:
            left -= _POLL_SECONDS
            if left <= 0:
                ranks = ", ".join(map(str, sorted(running.values())))
                raise StallError(
                    f"run_gang(): the processes of ranks {ranks} did not start within {timeout:g} s: see Ray's logs"
                )
    return [results[rank] for rank in sorted(results)]
