"""Finds the window, prefetching and cache that suit a dataset and a memory limit, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from windrow.cli.file_facts import FEW_BLOCKS, describe_files, warn_of_files
from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError
from windrow.core.source import is_remote
from windrow.dataset.dataset import Dataset, DatasetPipeline
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.shuffle_report import shuffle_report
from windrow.io.catalog.file_source import FileSource
from windrow.pipeline.plan.explanation import Explanation
from windrow.pipeline.quality.shuffle_report import ShuffleReport

# A window of fewer blocks mixes few regions of the dataset, so smaller blocks are tried.
_ENOUGH_BLOCKS = 16
_SMALLER_BLOCKS = (16 * 2**20, 4 * 2**20, 2**20)
# A cache of less of the data saves little.
_WORTHWHILE = 0.25
_DISK_SHARE = 0.5
# that a cache on disk may cost
_MORE_WINDOWS = 2
_LIMIT_STEPS = 6
_SHOWN_SIZES = 4


@dataclass(frozen=True)
class Goal:
    """What the pipeline has to fit."""

    memory_bytes: int
    trainers: int = 1
    batch_size: int = 256
    epochs: int | None = None
    seed: int = 0
    executor: str = "threads"
    disk_bytes: int = 0  # free on the disk that a cache would use


@dataclass(frozen=True)
class Candidate:
    """A pipeline that fits, what running it takes, and how well it shuffles."""

    dataset: Dataset
    windows: int
    window_bytes: int | None  # None: the whole dataset is one window
    options: dict[str, Any]
    explanation: Explanation
    report: ShuffleReport | None = None

    @property
    def holds_windows(self) -> bool:
        """Whether the next window is held whole beside the current one, or there is no other."""
        return self.explanation.budget.slices == 1 and self.explanation.budget.windows > 1


@dataclass(frozen=True)
class Proposal:
    """The chosen pipeline, smaller windows to compare it with, and the reasons."""

    chosen: Candidate
    smaller: tuple[Candidate, ...]
    target_block_bytes: int | None  # if blocks have to be smaller
    reasons: tuple[str, ...]


def propose(dataset: Dataset, goal: Goal) -> Proposal:
    """Find the pipeline with the largest windows that fit twice: one to consume and one to read.

    Raises a `PlanError` if not even the smallest window fits.
    """
    search, chosen, target = _choose_blocks(dataset, goal)
    chosen, cache_reason = search.add_cache(chosen)
    chosen = search.measure(chosen)
    reasons = (
        _explain_window(search, chosen),
        *([_explain_blocks(chosen, target)] if target is not None else []),
        *_explain_mixing(chosen),
        *_explain_files(chosen),
        _explain_prefetch(chosen),
        cache_reason,
        f"shuffle: {chosen.report.verdict}"
        if chosen.report is not None
        else "shuffle: row counts are not stored, so its quality is unknown: windrow shuffle-report --count reads them",
    )
    return Proposal(chosen, search.find_smaller(chosen), target, reasons)


def _choose_blocks(dataset: Dataset, goal: Goal) -> tuple[_Search, Candidate, int | None]:
    """The largest windows of the dataset's blocks, or of smaller ones where windows hold too few or do not fit."""
    found: tuple[_Search, Candidate, int | None] | None = None
    problem = PlanError("the dataset has no rows, so there is nothing to tune: check the paths")
    blocks = 0
    for size in (None, *_SMALLER_BLOCKS):
        if found is not None and (found[1].windows == 1 or blocks >= _ENOUGH_BLOCKS * found[1].windows):
            break
        finer = dataset if size is None else _with_blocks(dataset, size)
        search = None if finer is None else _Search(finer, goal)
        if search is None or search.blocks <= blocks:
            continue
        blocks = search.blocks
        try:
            found = search, search.find_largest(), size
        except PlanError as error:
            problem = error
    if found is None:
        raise problem
    return found


class _Search:
    """Tries pipelines over one dataset."""

    def __init__(self, dataset: Dataset, goal: Goal) -> None:
        self.dataset, self.goal = dataset, goal
        self.total_bytes = dataset.size_bytes()
        self.blocks = dataset.num_blocks() if int(dataset._plan.source.blocks.rows.sum()) else 0

    def find_largest(self) -> Candidate:
        """The fewest windows that are held whole with the next one, else that fit at all, else without prefetching."""
        for prefetch, fits in ((1, _holds), (1, _holds_one), (0, _holds_one)):
            found = self._fewest_windows({"prefetch_windows": prefetch}, fits)
            if found is not None:
                return found
        # the reason why even the smallest windows do not fit
        self._explain(self._size(self.blocks), {"prefetch_windows": 0}, self.goal.memory_bytes)
        raise PlanError(
            f"{format_bytes(self.goal.memory_bytes)} do not hold a window of one block beside the trainers' batches "
            "and the workers: give more memory, fewer trainers, or smaller blocks (--target-block-bytes)"
        )

    def _fewest_windows(self, options: dict[str, Any], fits: Callable[[Candidate], bool]) -> Candidate | None:
        def try_windows(windows: int) -> Candidate | None:
            found = self.try_size(self._size(windows), options)
            return found if found is not None and fits(found) else None

        few, many = 0, 1
        found = try_windows(1)
        # windows end at borders of blocks: of twice as many windows as blocks, each holds one block or none
        while found is None and many < 2 * self.blocks:
            few, many = many, min(2 * many, 2 * self.blocks)
            found = try_windows(many)
        while found is not None and many - few > 1:
            middle = (few + many) // 2
            better = try_windows(middle)
            few, many, found = (few, middle, better) if better is not None else (middle, many, found)
        return None if found is None else self._round(found, options, fits)

    def _round(
        self, found: Candidate, options: dict[str, Any], fits: Callable[[Candidate], bool]
    ) -> Candidate:
        """The same windows by a size that reads well, if there is one."""
        if found.window_bytes is None:
            return found
        rounded = self.try_size(_round_up(found.window_bytes), options)
        return rounded if rounded is not None and fits(rounded) else found

    def _size(self, windows: int) -> int | None:
        return None if windows <= 1 else max(1, -(-self.total_bytes // windows))

    def try_size(self, size: int | None, options: dict[str, Any]) -> Candidate | None:
        """The pipeline of a window size, if `explain` accepts it within the memory."""
        limit = self.goal.memory_bytes
        for _ in range(_LIMIT_STEPS):
            try:
                explanation = self._explain(size, options, limit)
            except PlanError:
                return None
            excess = explanation.budget.total_bytes - self.goal.memory_bytes
            if excess <= 0:
                given = {"memory_limit": limit, **options}
                return Candidate(self.dataset, explanation.windows, size, given, explanation)
            # what the limit does not cover, such as processes beside Ray's object store
            limit -= excess
            if limit <= 0:
                return None
        return None

    def _explain(self, size: int | None, options: dict[str, Any], limit: int) -> Explanation:
        goal = self.goal
        given = {"memory_limit": limit, "executor": goal.executor, **options}
        pipe = make_pipe(self.dataset, size, goal).options(**given)
        return pipe.explain(goal.trainers, equal=goal.trainers > 1, batch_size=goal.batch_size)

    def add_cache(self, chosen: Candidate) -> tuple[Candidate, str]:
        """Add the cache that the rest of the memory, or the disk, allows, and say why."""
        decoded = int(self.dataset._plan.source.blocks.memory_bytes.sum())
        if self.goal.epochs == 1:
            return chosen, "cache: none, since a single epoch reads no block twice"
        options = {name: value for name, value in chosen.options.items() if name != "memory_limit"}
        cached = self.try_size(chosen.window_bytes, {**options, "cache": "memory"})
        most = decoded * 5 // 4
        if cached is not None and cached.explanation.budget.cache_bytes > most:
            # where sizes are estimates, a cache without a limit takes most of what is left
            cached = self.try_size(
                chosen.window_bytes, {**options, "cache": "memory", "cache_limit": _round_up(most)}
            )
        share = cached.explanation.budget.cache_bytes / max(1, decoded) if cached is not None else 0.0
        if cached is not None and share >= _WORTHWHILE and cached.holds_windows == chosen.holds_windows:
            size = format_bytes(cached.explanation.budget.cache_bytes)
            part = "all blocks" if share >= 1 else f"{share:.0%} of the blocks"
            return cached, f"cache: memory, {size} of what windows leave hold {part} decoded for later epochs"
        disk = int(self.goal.disk_bytes * _DISK_SHARE)
        is_far = is_remote(self.dataset._plan.source.reader)
        if disk < _WORTHWHILE * decoded or not is_far:
            why = "the disk has too little free space" if is_far else "the files are local"
            return (
                chosen,
                f"cache: none, since windows leave too little memory for a quarter of the blocks, and {why}",
            )
        given = {**options, "cache": "disk", "cache_limit": min(_round_up(decoded * 9 // 8), disk)}
        # tasks hold blocks until they are stored, so windows can have to be a little smaller
        cached = self.try_size(chosen.window_bytes, given)
        if cached is None or cached.holds_windows != chosen.holds_windows:
            cached = self._fewest_windows(given, _holds if chosen.holds_windows else _holds_one)
        if cached is None or cached.windows > _MORE_WINDOWS * chosen.windows:
            return (
                chosen,
                "cache: none, since the tasks that fill one on disk would leave too little for windows",
            )
        return cached, (
            f"cache: disk, {format_bytes(given['cache_limit'])} for {format_bytes(decoded)} of decoded blocks, so that "
            "later epochs read less from the object storage"
        )

    def measure(self, candidate: Candidate) -> Candidate:
        """The same with a report on its shuffle, if row counts are known."""
        try:
            pipe = make_pipe(self.dataset, candidate.window_bytes, self.goal)
            report = shuffle_report(pipe, batch_size=self.goal.batch_size)
        except PlanError:
            return candidate
        return replace(candidate, report=report)

    def find_smaller(self, chosen: Candidate) -> tuple[Candidate, ...]:
        """Windows of a quarter, a sixteenth, ... of the size, that hold several blocks."""
        found: list[Candidate] = []
        windows = chosen.windows
        while len(found) < _SHOWN_SIZES - 1 and (windows := 4 * windows) <= self.blocks // 2:
            candidate = self.try_size(
                self._size(windows), {"prefetch_windows": chosen.options["prefetch_windows"]}
            )
            if candidate is not None:
                found.append(self.measure(candidate))
        return tuple(found)


def make_pipe(dataset: Dataset, window_bytes: int | None, goal: Goal) -> DatasetPipeline:
    """The shuffled pipeline of a window size, without options."""
    if window_bytes is None:
        pipe = dataset.repeat(goal.epochs)
    else:
        pipe = dataset.window(bytes_per_window=window_bytes).repeat(goal.epochs)
    return pipe.random_shuffle_each_window(seed=goal.seed)


def _holds(candidate: Candidate) -> bool:
    return candidate.holds_windows or _is_single_pass(candidate)


def _is_single_pass(candidate: Candidate) -> bool:
    """Whether there is no next window: one epoch of one window."""
    explanation = candidate.explanation
    return explanation.epochs == 1 and explanation.windows <= 1 and explanation.budget.slices == 1


def _holds_one(candidate: Candidate) -> bool:
    # where sizes are estimates, explain() leaves it to the run whether a window fits
    budget = candidate.explanation.budget
    return budget.window_bytes <= budget.windows_limit_bytes


def _with_blocks(dataset: Dataset, size: int) -> Dataset | None:
    source = dataset._plan.source
    if not isinstance(source, FileSource) or (source.block_bytes or size + 1) <= size:
        return None
    return Dataset(LogicalPlan(replace(source, target_block_bytes=size)))


def _round_up(size: int) -> int:
    """The next larger size of few digits and a unit.

    >>> _round_up(3_500_000_000) / 2**20, _round_up(64 * 2**30 + 1) / 2**30
    (3340.0, 65.0)
    """
    unit = 1
    while size >= 10 * 1024 * unit:
        unit *= 1024
    step = 10 * unit if size > 1000 * unit else unit
    return -(-size // step) * step


def format_size(size: int) -> int | str:
    """A size as an argument, with the largest unit in which it is whole.

    >>> format_size(3340 * 2**20), format_size(1001)
    ('3340MiB', 1001)
    """
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return size


def _explain_window(search: _Search, chosen: Candidate) -> str:
    budget = chosen.explanation.budget
    parts = {
        "runs": budget.runs_bytes,
        "tasks": budget.tasks_bytes,
        "processes": budget.processes_bytes,
    }
    taken = "".join(f" − {name} {format_bytes(size)}" for name, size in parts.items() if size)
    left = search.goal.memory_bytes - sum(parts.values())
    budgeted = (
        f"{format_bytes(search.goal.memory_bytes)}{taken} leave {format_bytes(max(0, left))}, and a window takes "
        f"{format_bytes(budget.window_bytes)} in memory"
    )
    if chosen.window_bytes is None:
        times = "twice" if chosen.holds_windows else "once"
        return f"window: the whole dataset, a full shuffle, since it fits {times}: {budgeted}"
    if chosen.holds_windows:
        return f"window: the largest of which the current and the next one fit: {budgeted}"
    if chosen.options["prefetch_windows"]:
        return f"window: two do not fit, so the next one is prepared in slices: {budgeted}"
    return f"window: the largest that fits alone: {budgeted}"


def _explain_blocks(chosen: Candidate, target: int) -> str:
    return (
        f"blocks: row groups are joined up to {format_bytes(target)} only, so that a window holds "
        f"{chosen.explanation.blocks / max(1, chosen.windows):.0f} of them and mixes more of the dataset"
    )


def _explain_mixing(chosen: Candidate) -> list[str]:
    """What is wrong with windows of few blocks, where no smaller blocks can be had."""
    blocks, windows = chosen.explanation.blocks, chosen.windows
    if windows <= 1 or blocks >= FEW_BLOCKS * windows:
        return []
    return [
        f"blocks: a window holds about {max(1, round(blocks / windows))} of {blocks:,}, which mixes little, and there "
        "are no smaller ones. Write smaller row groups, or the data once in a random order with windrow premix"
    ]


def _explain_files(chosen: Candidate) -> list[str]:
    source = chosen.dataset._plan.source
    if not isinstance(source, FileSource):
        return []
    return [f"files: {warning}" for warning in warn_of_files(describe_files(source))]


def _explain_prefetch(chosen: Candidate) -> str:
    if chosen.options["prefetch_windows"]:
        next_one = "epoch" if chosen.windows == 1 else "window"
        return f"prefetch_windows: 1, so that the next {next_one} is read while one is consumed; 2 would shrink windows"
    return "prefetch_windows: 0, since two windows do not fit: trainers wait while each window is read"
