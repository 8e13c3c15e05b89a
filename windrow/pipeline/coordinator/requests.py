"""What a shard requests and gets: epochs, checked to agree with other shards' openings, windows, and why it waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError, StateError
from windrow.pipeline.coordinator.scheduling.scheduler import Scheduler
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.statistics.phases import Interval
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_runs import StepRuns


@dataclass(frozen=True)
class OpenRequest:
    """Everything that a coordinator, even a restarted one, needs to serve a shard's epoch.

    A shard is served to the reader of its latest ``token`` only. A restarted coordinator can receive
    the requests of a reader, and of its successor, in any order. It uses the latest: by ``number``, how
    many epochs the reader opened before, and by ``since``, when the reader was created (seconds of its
    machine's clock).

    A reader that continues from its last epoch by itself (``goes_on``) does not take the shard back from
    one that has replaced it. ``seed`` differs from the program's if a state brought another. ``shard`` is the number
    of a client, see `Program.shard_of`.
    """

    shard: int
    node: str
    token: str
    number: int
    cursor: Cursor
    batching: Batching
    goes_on: bool
    seed: int | None
    since: float = 0.0

    def precedes(self, other: OpenRequest) -> bool:
        """Whether a shard sent it before another: of one reader by number, of successive ones by start time."""
        return self.number < other.number if self.token == other.token else self.since < other.since


@dataclass(frozen=True)
class Ask:
    """What a shard asks of a window: the parts that it lacks.

    ``have`` lists the parts of the attempt that have arrived; ``lost`` names an attempt whose objects are
    considered lost: the window is prepared again.
    """

    attempt: str = ""
    have: frozenset[int] = frozenset()
    lost: str = ""


@dataclass(frozen=True)
class EpochFacts:
    """The reply to a shard that opens an epoch."""

    epoch: int
    # the window to start at, and the number of windows in the epoch
    first_window: int
    windows: int
    assignment: ShardAssignment
    # rows of a full run
    run_rows: int
    # rows of the epoch, or None while unknown
    total: int | None
    # to show before the first batch, one line each
    user_warnings: tuple[str, ...] = ()
    # number of extra prefetched windows
    extra_windows: int = 0
    # of a replica: runs that keep the workers of transforms busy, which its host waits for
    calls_ahead: int = 0

    @property
    def next_epoch(self) -> EpochFacts:
        """The expected facts of the next epoch, if its assignment is alike and no row count changes."""
        assignment = self.assignment.from_row(0, None)
        return replace(self, epoch=self.epoch + 1, first_window=0, assignment=assignment, user_warnings=())


class EpochStarts:
    """The earliest row that any shard started at, for each epoch that is being read."""

    def __init__(self) -> None:
        self._starts: dict[int, Cursor] = {}

    def open(self, shard: int, cursor: Cursor, rest: ShardAssignment, opened: ShardAssignment | None) -> None:
        """A shard starts an epoch at a cursor, or resumes it; ``rest`` is the epoch's assignment from there.

        Raises PlanError if the epoch has been ``opened`` with another batch size or ``drop_last``, and
        StateError if rows between the shards would be lost or read twice. They must be whole steps of
        this assignment apart, and the shard that is ahead must have got there by it.
        """
        if opened is not None and opened.groups != rest.groups and opened.batching == rest.batching:
            raise StateError(
                f"shard {shard} would go on in epoch {cursor.epoch} with rows grouped by length as "
                f"{rest.groups or 'none'}, and other shards as {opened.groups or 'none'}: load the same state into all "
                "shards"
            )
        start = cursor if opened is None else self._starts[cursor.epoch]
        earlier, later = sorted((start, cursor), key=lambda at: at.row)
        steps_apart = (later.row - earlier.row) % rest.step_rows == 0
        # where steps end by their tokens, the shard compares its row with them
        is_own = rest.ends_by_tokens or (steps_apart and later.assigned == (rest.shards, rest.batch_size))
        if earlier.row != later.row and not is_own:
            own, other = (at.row // rest.sequence_rows for at in (cursor, start))
            raise StateError(
                f"shard {shard} would go on at row {own:,} of epoch {cursor.epoch}, but another shard "
                f"reads that epoch from row {other:,}: load the same state into all shards; "
                "windrow.merge_state_dicts merges several into one"
            )
        if opened is not None and not opened.agrees_with(rest):
            raise PlanError(
                f"epoch {cursor.epoch} is being read with {opened.batching}; shard {shard} asks for "
                f"{rest.batching}. All shards must read an epoch with the same values: change them in "
                "the next epoch"
            )
        self._starts[cursor.epoch] = earlier


@dataclass(frozen=True)
class WindowReply:
    """What is ready of a window for one shard; parts of another ``attempt`` at it are void.

    ``outputs`` holds by part the handle of each slice of the shard's destination, None where every shard
    has acknowledged the slice. Where rows are counted as they are read, ``starts`` has the first row in
    the epoch of this window and of each later one that holds rows of its last step. ``corrupt`` has the
    blocks skipped so far: all in this window and earlier ones, possibly more.
    """

    attempt: int
    parts: int  # of the window
    layout: WindowRuns | StepRuns | None  # None until the runs are known
    outputs: dict[int, list[Any]]
    user_warnings: tuple[str, ...] = ()
    starts: tuple[tuple[int, int], ...] = ()
    corrupt: tuple[int, ...] = ()
    row_bytes: float = 0.0  # the largest mean of any part; 0 while nothing is ready
    # of a mixture's round: for each part the first run and the number of runs that belong to it; else all do
    runs: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    history: Sequence[Interval] = ()  # once it is complete, what the time until then went to


def group_by_nodes(places: Iterable[tuple[int, str]]) -> tuple[tuple[int, ...], ...]:
    """Group shards that are consumed on the same nodes; ``places`` has a shard once for each of its nodes."""
    nodes: dict[int, set[str]] = {}
    for shard, node in sorted(places):
        nodes.setdefault(shard, set()).add(node)
    groups: dict[frozenset[str], list[int]] = {}
    for shard, found in nodes.items():
        groups.setdefault(frozenset(found), []).append(shard)
    return tuple(tuple(group) for group in groups.values())


def diagnose(scheduler: Scheduler, shard: int, now: float) -> str:
    """Describe what a shard waits for; ``now`` is the time, as given to `Scheduler.handle`."""
    place = scheduler.shards.progress.get(shard)
    if place is None:
        return f"shard {shard} has been closed"
    where = f"epoch {place.epoch}, window {place.window}"
    window = scheduler.window(place.epoch, place.window)
    held = f"{format_bytes(scheduler.held_bytes)} of {format_bytes(scheduler.memory_bytes)} are held"
    if window is None or (not window.running and not window.complete):
        return f"shard {shard} waits at {where} for memory: {held}{_holders(scheduler, shard, now)}"
    if window.complete:
        return f"shard {shard} at {where}: all map tasks are done and its rows are being fetched"
    return (
        f"shard {shard} waits at {where} for {len(window.running)} running tasks; "
        f"{window.finished_parts} of {len(window.parts)} parts are ready; {held}"
    )


def _holders(scheduler: Scheduler, shard: int, now: float) -> str:
    others = [
        f"shard {other} (at epoch {place.epoch}, window {place.window}; "
        f"last heartbeat {scheduler.shards.format_heartbeat(other, now)})"
        for other, place in sorted(scheduler.shards.progress.items())
        if other != shard
    ]
    if not others:
        return ""
    return (
        f", some of it for {', '.join(others)}. Read all shards concurrently, or call "
        "pipe.shard(rank=, world_size=) where each process reads only its own"
    )
