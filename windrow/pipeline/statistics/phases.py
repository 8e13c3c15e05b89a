"""What tasks and trainers spend their time on: phases, profiles of tasks, intervals of waiting, totals of trainers.

Everything here is a value or a pure function. Times are seconds; those of intervals are Unix times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

# of map tasks
STORAGE, DECODE, TRANSFORM, SHUFFLE = "storage", "decode", "transform", "shuffle"
# in the order in which a task does most of each
TASK_PHASES = (STORAGE, DECODE, TRANSFORM, SHUFFLE)
# of a trainer's process, beside the part of the shuffle that places rows
TRANSFER, PREPARE, COLLATE, DEVICE = "transfer", "prepare", "collate", "device"
# why tasks do not run
MEMORY, CPUS = "memory", "cpus"
# before the first task, and what is none of these
START, OTHER = "start", "other"

# the phases of a clock that are transforms: this and the name of each
TRANSFORM_PREFIX = "transform:"

# in the order in which tables show them
LABELS = {
    START: "starting the run",
    STORAGE: "reading from storage",
    DECODE: "decoding",
    TRANSFORM: "transforms before the shuffle",
    SHUFFLE: "shuffling",
    TRANSFER: "transfer to the trainer",
    PREPARE: "transforms after the shuffle",
    COLLATE: "making batches",
    DEVICE: "copying to the device",
    MEMORY: "memory",
    CPUS: "free CPUs",
    OTHER: "other",
}


@dataclass(frozen=True)
class TaskProfile:
    """What one task, or all tasks together, spent its time on.

    Attributes
    ----------
    phases
        Seconds of storage, decode, transform and shuffle; they add up to the task's duration.
    cpu_seconds
        CPU time of all but transforms; decode and shuffle never wait for anything but a core, the GIL or a local disk.
    functions
        Seconds by the transform's name, of those before the shuffle.
    requests, requested_bytes, retries
        Requests to object storage, their bytes, and attempts repeated after transient errors.
    cores
        Cores of the machine that its process can use.
    """

    phases: Mapping[str, float] = field(default_factory=dict, hash=False)
    cpu_seconds: float = 0.0
    functions: Mapping[str, float] = field(default_factory=dict, hash=False)
    requests: int = 0
    requested_bytes: int = 0
    retries: int = 0
    cores: int = 0

    @classmethod
    def sum(cls, profiles: Sequence[TaskProfile]) -> TaskProfile:
        """The sum of at least one profile, with the largest number of cores."""
        return cls(
            add_seconds(*[profile.phases for profile in profiles]),
            sum([profile.cpu_seconds for profile in profiles]),
            add_seconds(*[profile.functions for profile in profiles]),
            sum([profile.requests for profile in profiles]),
            sum([profile.requested_bytes for profile in profiles]),
            sum([profile.retries for profile in profiles]),
            max([profile.cores for profile in profiles]),
        )


class Interval(NamedTuple):
    """A time during which something was waited for, and the seconds of it by phase, which add up to its length."""

    start: float
    stop: float
    phases: Mapping[str, float]

    def divide(self, start: float, stop: float) -> Mapping[str, float]:
        """Divide a part of it by phase."""
        return scale_to(stop - start, self.phases)


class Dividable(Protocol):
    """A time of which any part can be divided by phase, as that of an `Interval`."""

    @property
    def start(self) -> float: ...
    @property
    def stop(self) -> float: ...
    def divide(self, start: float, stop: float) -> Mapping[str, float]: ...


# a tuple, since a run makes thousands of them, and a frozen dataclass takes five times as long to make
class Span(NamedTuple):
    """An interval of work or waiting.

    Attributes
    ----------
    kind
        ``"map"``, ``"read"``, ``"place"`` (tasks), ``"transfer"`` (map outputs on their way to the trainer's
        node), ``"reduce"`` (placing a run's rows), ``"collate"`` (making batches), ``"device"`` (copying them),
        ``"wait"`` (a trainer waited for a batch) and ``"work"`` (it did not).
    epoch, window
        The window it belongs to.
    start_time, stop_time
        Unix time in seconds.
    lane
        The worker or shard that spent it.
    submit_time
        When a task was handed to the executor; ``start_time`` of others.
    phases
        Pairs of a phase and its seconds, such as ``("decode", 0.2)``: of a task, its storage, decode, transform and
        shuffle; of a wait, what it was for.
    source
        Of a task of a mixture: the source that it reads. Its ``window`` is one of a source then, and that of other
        spans is a round of the mixture.
    """

    kind: str
    epoch: int
    window: int
    start_time: float
    stop_time: float
    lane: str
    submit_time: float = 0.0
    phases: tuple[tuple[str, float], ...] = ()
    source: str = ""


@dataclass(frozen=True)
class TrainerStats:
    """What a trainer has received, and where its waiting time went.

    Attributes
    ----------
    shard
        The shard that it reads.
    batches, rows, bytes
        Received so far; ``bytes`` in memory.
    work_seconds
        Time that the trainer spent between batches, with what it does.
    waits
        Seconds that it waited for batches, by phase (`LABELS` has the phases).
    replica
        The name of the replica that it reads for; empty where a shard has one reader.
    place
        ``(epoch, row)``: its epoch, and the row of it where the last step ends of which it has received a batch. None
        before the first one.
    spans
        In a report to the coordinator: what was not reported before.
    sent
        In a report to the coordinator: when its reader began, in Unix seconds, and how many reports it had sent before.
        Reports can overtake each other, and the greatest has the latest totals.
    """

    shard: int
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    work_seconds: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict, hash=False)
    replica: str = ""
    place: tuple[int, int] | None = None
    spans: tuple[Span, ...] = field(default=(), repr=False, compare=False)
    sent: tuple[float, int] = field(default=(0.0, 0), repr=False, compare=False)

    @property
    def key(self) -> tuple[int, int, str]:
        """Tells trainers apart; sorts them by shard, and then by replica."""
        number = self.replica.partition(" ")[0]
        return self.shard, int(number) if number.isdecimal() else -1, self.replica

    @property
    def name(self) -> str:
        """Its shard, and the replica if there are several.

        >>> TrainerStats(3).name, TrainerStats(3, replica="1 (tp 1 of 2)").name
        ('3', '3, replica 1 (tp 1 of 2)')
        """
        return f"{self.shard}, replica {self.replica}" if self.replica else str(self.shard)

    @property
    def wait_seconds(self) -> float:
        """Seconds that the trainer waited for batches, the start included."""
        return sum(self.waits.values())

    @property
    def seconds(self) -> float:
        """Seconds of work and waiting."""
        return self.work_seconds + self.wait_seconds

    @property
    def rows_per_second(self) -> float:
        """Mean rate since the trainer has begun."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Mean rate since the trainer has begun, by the size in memory."""
        return self.bytes / self.seconds if self.seconds else 0.0


def add_seconds(*mappings: Mapping[str, float]) -> dict[str, float]:
    """Add seconds by phase.

    >>> add_seconds({"decode": 1.0}, {"decode": 2.0, "storage": 1.0})
    {'decode': 3.0, 'storage': 1.0}
    """
    total: dict[str, float] = {}
    for mapping in mappings:
        for name, seconds in mapping.items():
            total[name] = total[name] + seconds if name in total else seconds
    return total


def scale_to(seconds: float, phases: Mapping[str, float], otherwise: str = OTHER) -> dict[str, float]:
    """Divide seconds in the proportions of some phases; all are ``otherwise`` if there are none.

    >>> scale_to(1.0, {"decode": 3.0, "storage": 1.0})
    {'decode': 0.75, 'storage': 0.25}
    """
    total = sum(phases.values())
    if total <= 0:
        return {otherwise: seconds}
    if len(phases) == 1:
        return dict.fromkeys(phases, seconds)
    return {name: seconds * share / total for name, share in phases.items() if share > 0}


def attribute(
    start: float, stop: float, intervals: Iterable[Dividable], otherwise: str = OTHER
) -> dict[str, float]:
    """Divide the time from ``start`` to ``stop`` by what happened in it; the intervals must not overlap.

    >>> attribute(0.0, 4.0, [Interval(-1.0, 1.0, {"storage": 2.0}), Interval(1.0, 3.0, {"decode": 2.0})])
    {'storage': 1.0, 'decode': 2.0, 'other': 1.0}
    """
    found: dict[str, float] = {}
    left = stop - start
    # this runs for every wait of a trainer: comparisons cost a tenth of calls of min and max
    for interval in intervals:
        begin, end = interval.start, interval.stop
        if end <= start or begin >= stop:
            continue
        begin, end = begin if begin > start else start, end if end < stop else stop
        left -= end - begin
        for name, share in interval.divide(begin, end).items():
            found[name] = found[name] + share if name in found else share
    if left > 1e-9:
        found[otherwise] = found.get(otherwise, 0.0) + left
    return found


def cover(upper: Sequence[Interval], lower: Iterable[Interval]) -> list[Interval]:
    """Merge intervals in order of time; where both have one, the upper one counts.

    >>> [(i.start, i.stop) for i in cover([Interval(2.0, 3.0, {})], [Interval(0.0, 4.0, {})])]
    [(0.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
    """
    pieces = list(upper)
    for interval in lower:
        start = interval.start
        for above in sorted(upper, key=lambda one: one.start):
            if above.stop <= start or above.start >= interval.stop:
                continue
            if above.start > start:
                pieces.append(_cut(interval, start, above.start))
            start = above.stop
        if start < interval.stop:
            pieces.append(_cut(interval, start, interval.stop))
    return sorted(pieces, key=lambda one: one.start)


def _cut(interval: Interval, start: float, stop: float) -> Interval:
    return Interval(start, stop, scale_to(stop - start, interval.phases))
