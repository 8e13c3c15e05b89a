"""What a mixture adds to the driver: replies for rounds, in which windows of several sources have rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from windrow.core.errors import StateError
from windrow.pipeline.coordinator.buffered_windows import BufferedWindow
from windrow.pipeline.coordinator.divided_steps import DividedSteps
from windrow.pipeline.coordinator.requests import WindowReply
from windrow.pipeline.coordinator.scheduling.events import AttemptLost
from windrow.pipeline.coordinator.scheduling.scheduler import Scheduler
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.mixture_legs import MixtureLegs
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.shuffle.order.divided_rounds import DividedRounds
from windrow.shuffle.order.numbered_rounds import NumberedRounds
from windrow.shuffle.order.round_runs import RoundRuns
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_runs import StepRuns


def check_shares(
    legs: MixtureLegs, shard: int, cursor: Cursor, assignment: ShardAssignment, scheduler: Scheduler
) -> None:
    """Raise a StateError if another shard reads the same epoch of a mixture with other shares."""
    others = [
        other
        for other, place in scheduler.shards.progress.items()
        if other != shard and place.epoch == cursor.epoch
    ]
    is_open = scheduler.epochs.opened_assignment(cursor.epoch) is not None
    if others and is_open and legs.differs(cursor, assignment):
        row = cursor.row // legs.mixture.row_tokens
        raise StateError(
            f"shard {shard} goes on with the mixture at row {row:,} with other shares, in another order, or after "
            f"other rows than shard {others[0]}: call set_shares() with the same shares after the same step on all "
            "shards, and load the same state into all of them"
        )


def check_place(legs: MixtureLegs, trainer: TrainerStats) -> None:
    """Raise a StateError if a trainer has taken rows behind a change of shares that others have made."""
    if trainer.place is None:
        return
    changed = legs.passed_change(*trainer.place)
    if changed is not None:
        raise StateError(
            f"shard {trainer.name} has read up to row {trainer.place[1]:,} of the mixture without the set_shares() "
            f"that others called at row {changed:,}, so rows came twice or were left out: resume from a state of "
            f"row {changed:,} or before, and call set_shares() after the same steps on all shards"
        )


def reply_round(
    shard: int,
    key: Key,
    scheduler: Scheduler,
    buffered: Mapping[Key, BufferedWindow],
    have: Collection[int],
    divided: DividedSteps,
) -> WindowReply:
    """The reply to a shard that fetches a round, of which it has some parts.

    Parts are numbered through, window after window. Nothing is sent before all windows have been started: an attempt
    at the round is one at each of them.
    """
    epoch, number = key
    shape = scheduler.epochs.counts(epoch).shape
    needed = shape.windows_of(number)
    counts = [len(shape.windows[window]) for window in needed]
    windows = [buffered.get((epoch, window)) for window in needed]
    found = [window for window in windows if window is not None and window.places is not None]
    if not found or len(found) < len(needed):
        return WindowReply(attempt=-1, parts=sum(counts), layout=None, outputs={})
    first_part = 0
    layout: WindowRuns | StepRuns | None = None
    outputs: dict[int, list[Any]] = {}
    runs: dict[int, tuple[int, int]] = {}
    for count, window in zip(counts, found, strict=True):
        assert window.places is not None
        layouts = [each for each in window.places.layouts if isinstance(each, RoundRuns)]
        destination = next(i for i, each in enumerate(layouts) if shard in each.shards)
        own = layouts[destination]
        if layout is None and isinstance(own, DividedRounds):
            places = [each.places for each in found if each.places is not None]
            layout = divided.merge(key, places).for_shard(shard, own.shards)
        elif layout is None:
            layout = own.steps(number) if isinstance(own, NumberedRounds) else own.layout(number)
        for part, slices in window.outputs.items():
            if first_part + part not in have:
                outputs[first_part + part] = [slices[destination][own.slice_of(number)]]
                runs[first_part + part] = own.runs_of(number)
        first_part += count
    return WindowReply(
        attempt=max(window.attempt for window in found),
        parts=sum(counts),
        layout=layout,
        outputs=outputs,
        row_bytes=max(window.row_bytes for window in found),
        runs=runs,
    )


def find_placed(scheduler: Scheduler, buffered: Mapping[Key, BufferedWindow]) -> Iterator[AttemptLost]:
    """The attempts at all windows that have been placed, as if they were lost."""
    for key in scheduler.windows_ready:
        window, held = scheduler.window(*key), buffered.get(key)
        if window is not None and held is not None and held.places is not None:
            yield AttemptLost(*key, window.attempt)


def find_lost(scheduler: Scheduler, epoch: int, number: int, attempt: int) -> Iterator[AttemptLost]:
    """The attempts at windows that an attempt at a round consists of, if it is the latest."""
    states = [
        scheduler.window(epoch, window) for window in scheduler.epochs.counts(epoch).shape.windows_of(number)
    ]
    found = [state for state in states if state is not None]
    if max((state.attempt for state in found), default=-1) == attempt:
        for state in found:
            yield AttemptLost(epoch, state.window, state.attempt)
