"""A job: everything that a chain asks for, as one frozen value."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.core.source import Source
from windrow.shuffle.order.epoch_plan import WindowCut

if TYPE_CHECKING:
    from windrow.pipeline.executors.base import Executor
    from windrow.pipeline.tasks.transforms import MapBatches

__all__ = ["Job", "Options"]

_EXECUTORS = ("auto", "threads", "ray")
_ON_ERROR = ("raise", "skip")
_PROGRESS = ("auto", True, False)
_CACHES = (None, "memory", "disk")


@dataclass(frozen=True)
class Options:
    """How a job runs; nothing here changes the order of rows.

    Attributes
    ----------
    executor
        ``"auto"`` (Ray where it is initialised, else threads), ``"threads"``, ``"ray"``,
        or an executor of one's own.
    memory_limit
        Bytes that the run may hold, as an integer or a string such as ``"8GiB"``. None:
        80 % of the object store, or half of the free memory on threads.
    prefetch_windows
        Windows prepared beyond the one being consumed; of small ones more, within the same memory.
    on_error
        ``"raise"``: the first error ends the run. ``"skip"``: blocks that are corrupt count as
        having no rows.
    progress
        Show a progress line: ``"auto"`` where standard error is a terminal.
    cache
        Where decoded blocks are kept from epoch to epoch: ``"memory"``, ``"disk"``, or
        None: nowhere.
    cache_limit
        Bytes that they may take, on disk those of each machine. None: in memory 80 % of
        what windows leave of the memory limit, on disk half of what is free.
    cache_dir
        The folder for ``"disk"``; None: the system's folder for temporary files.
    keep_cache
        Whether they stay on disk after the run, for later runs over the same data.
    row_id
        The name of a column to add that numbers rows as stored, or None.
    """

    executor: str | Executor = "auto"
    memory_limit: int | str | None = None
    prefetch_windows: int = 1
    on_error: Literal["raise", "skip"] = "raise"
    progress: bool | Literal["auto"] = "auto"
    cache: Literal["memory", "disk"] | None = None
    cache_limit: int | str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    keep_cache: bool = False
    row_id: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.executor, str) and self.executor not in _EXECUTORS:
            raise PlanError(f"executor={self.executor!r} must be one of {', '.join(map(repr, _EXECUTORS))}")
        self._set_size("memory_limit", self.memory_limit)
        windows = as_integer(self.prefetch_windows)
        if windows is None or windows < 0:
            raise PlanError(f"prefetch_windows={self.prefetch_windows!r} must be an integer of 0 or more")
        object.__setattr__(self, "prefetch_windows", windows)
        if self.on_error not in _ON_ERROR:
            raise PlanError(f"on_error={self.on_error!r} must be 'raise' or 'skip'")
        if self.progress not in _PROGRESS:
            raise PlanError(f"progress={self.progress!r} must be 'auto', True or False")
        self._check_cache()

    def _set_size(self, name: str, given: int | str | None) -> None:
        """Check a size; one with a unit stays as it was written, since it is shown."""
        if given is not None:
            size = parse_bytes(given, name)
            object.__setattr__(self, name, given if isinstance(given, str) else size)

    def _check_cache(self) -> None:
        if self.cache not in _CACHES:
            raise PlanError(f"cache={self.cache!r} must be None, 'memory' or 'disk'")
        self._set_size("cache_limit", self.cache_limit)
        if self.cache_limit is not None and self.cache is None:
            raise PlanError(
                f"cache_limit={self.cache_limit!r} limits nothing without cache='memory' or 'disk'"
            )
        if self.cache_dir is not None and not isinstance(self.cache_dir, (str, os.PathLike)):
            raise PlanError(f"cache_dir={self.cache_dir!r} must be the path of a folder, or None")
        if self.cache_dir is not None and self.cache != "disk":
            raise PlanError(
                f"cache_dir={str(self.cache_dir)!r} needs cache='disk': nothing else writes there"
            )
        if not isinstance(self.keep_cache, bool):
            raise PlanError(f"keep_cache={self.keep_cache!r} must be True or False")
        if self.keep_cache and self.cache != "disk":
            raise PlanError("keep_cache=True needs cache='disk': memory ends with the run")
        if self.keep_cache and self.cache_dir is None:
            raise PlanError("keep_cache=True needs cache_dir=...: say where the blocks are to stay")

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit in bytes, or None."""
        return None if self.memory_limit is None else parse_bytes(self.memory_limit, "memory_limit")

    @property
    def cache_bytes(self) -> int | None:
        """The cache's limit in bytes, or None."""
        return None if self.cache_limit is None else parse_bytes(self.cache_limit, "cache_limit")


@dataclass(frozen=True)
class Launch:
    """The processes that a launcher has started together, each of which runs its own shard.

    Attributes
    ----------
    local_world_size
        How many of them run on this machine.
    world_size
        How many there are on all machines.
    """

    local_world_size: int = 1
    world_size: int = 1

    def sharing(self, nodes: int) -> int:
        """How many of them share the resources of so many machines."""
        return min(max(self.world_size, self.local_world_size), self.local_world_size * nodes)


@dataclass(frozen=True)
class Job:
    """What a chain asks for.

    Attributes
    ----------
    source
        The data at rest.
    cut
        How epochs are cut into windows.
    epochs
        How many passes; None: for ever.
    seed
        The shuffle's seed; None: no shuffle.
    before, after
        Transforms before and after the shuffle.
    options
        How to run.
    on_demand
        Every pass is asked for by itself: nothing of the next is prepared ahead.
    seed_drawn
        Whether the seed was drawn rather than given, so that a state may bring another.
    launch
        The processes that divide memory and cores with this one.
    """

    source: Source
    cut: WindowCut = WindowCut()
    epochs: int | None = 1
    seed: int | None = None
    before: tuple[MapBatches, ...] = ()
    after: tuple[MapBatches, ...] = ()
    options: Options = field(default_factory=Options)
    on_demand: bool = False
    seed_drawn: bool = False
    launch: Launch = Launch()

    def with_seed(self, seed: int | None) -> Job:
        """The same job with another seed."""
        return self if seed == self.seed else replace(self, seed=seed)

    @property
    def cache(self) -> Literal["memory", "disk"] | None:
        """Where decoded blocks are kept; nowhere when they would never be read again."""
        return self.options.cache if self.epochs != 1 or self.options.keep_cache else None

    @property
    def skips_corrupt(self) -> bool:
        """Whether blocks that are corrupt count as having no rows."""
        return self.options.on_error == "skip"

    @property
    def rows_stated(self) -> bool:
        """Whether the source states the rows that each block delivers, if it can be read."""
        return self.source.blocks.rows_known and all(stage.preserves_rows for stage in self.before)

    @property
    def rows_known(self) -> bool:
        """Whether row counts are known before anything is read."""
        return self.rows_stated and not self.skips_corrupt

    def leads_on(self, epoch: int) -> bool:
        """Whether a reader goes on from an epoch to the next one, before that is asked for.

        Only where all of it is known before it is opened, and where it is prepared ahead.
        """
        is_last = self.epochs is not None and epoch + 1 >= self.epochs
        prepared = self.options.prefetch_windows > 0 and not self.on_demand
        return self.rows_known and prepared and not is_last
