"""The job: all that a pipeline specifies, with its options, as one frozen value; and what an executor offers to it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.core.source import Source
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.tasks.key_columns import WindowSort
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.sequence_packing import SequencePacking
from windrow.shuffle.order.epoch_plan import WindowCut

_EXECUTORS = ("auto", "threads", "ray")
_ON_ERROR = ("raise", "skip")
_PROGRESS = ("auto", True, False)
_CACHES = (None, "memory", "disk")


class CustomExecutor(Protocol):
    """An `Executor` that the user brings. A job only carries it: executors run programs, which are made of jobs."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...


@dataclass(frozen=True)
class Options:
    """How a job runs: the arguments of ``Dataset.options()``, which describes them, checked."""

    executor: str | CustomExecutor = "auto"
    memory_limit: int | str | None = None
    prefetch_windows: int = 1
    on_error: Literal["raise", "skip"] = "raise"
    progress: bool | Literal["auto"] = "auto"
    profile: bool = True
    cache: Literal["memory", "disk"] | None = None
    cache_limit: int | str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    keep_cache: bool = False
    row_id_column: str | None = None
    stall_timeout: float | None = None

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
        if not isinstance(self.profile, bool):
            raise PlanError(f"profile={self.profile!r} must be True or False")
        self._check_stall_timeout()
        self._check_cache()

    def _check_stall_timeout(self) -> None:
        given = self.stall_timeout
        if given is None:
            return
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
            raise PlanError(f"stall_timeout={given!r} must be a number of seconds above 0, or None")

    def _set_size(self, name: str, given: int | str | None) -> None:
        """Check a size and normalise it. A string keeps its unit, since it is displayed."""
        if given is not None:
            size = parse_bytes(given, name)
            object.__setattr__(self, name, given if isinstance(given, str) else size)

    def _check_cache(self) -> None:
        if self.cache not in _CACHES:
            raise PlanError(f"cache={self.cache!r} must be None, 'memory' or 'disk'")
        self._set_size("cache_limit", self.cache_limit)
        if self.cache_limit is not None and self.cache is None:
            raise PlanError(
                f"cache_limit={self.cache_limit!r} has no effect without cache='memory' or 'disk'"
            )
        if self.cache_dir is not None and not isinstance(self.cache_dir, (str, os.PathLike)):
            raise PlanError(f"cache_dir={self.cache_dir!r} must be the path of a folder, or None")
        if self.cache_dir is not None and self.cache != "disk":
            raise PlanError(
                f"cache_dir={str(self.cache_dir)!r} needs cache='disk': only the disk cache writes files"
            )
        if not isinstance(self.keep_cache, bool):
            raise PlanError(f"keep_cache={self.keep_cache!r} must be True or False")
        if self.keep_cache and self.cache != "disk":
            raise PlanError("keep_cache=True needs cache='disk': a cache in memory ends with the run")
        if self.keep_cache and self.cache_dir is None:
            raise PlanError("keep_cache=True needs cache_dir=...: the directory that keeps the blocks")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_limit is None else parse_bytes(self.memory_limit, "memory_limit")

    @property
    def cache_bytes(self) -> int | None:
        return None if self.cache_limit is None else parse_bytes(self.cache_limit, "cache_limit")


@dataclass(frozen=True)
class Launch:
    """The processes that a launcher started together, each reading its own shard.

    If they share one run, they do not divide resources, and ``shared`` is all that is set.
    """

    local_world_size: int = 1  # number of them on this machine
    world_size: int = 1  # on all machines
    shared: bool = False  # whether they share one run

    def sharing(self, nodes: int) -> int:
        """The number of processes that share the resources of ``nodes`` machines."""
        return min(max(self.world_size, self.local_world_size), self.local_world_size * nodes)


@dataclass(frozen=True)
class Job:
    """Everything that a pipeline specifies."""

    source: Source
    cut: WindowCut = WindowCut()
    epochs: int | None = 1  # None: endless
    seed: int | None = None  # None: no shuffle
    before: tuple[MapBatches, ...] = ()  # transforms before the shuffle
    after: tuple[MapBatches, ...] = ()
    options: Options = field(default_factory=Options)
    # whether each epoch starts only when requested: nothing of the next is prefetched
    on_demand: bool = False
    seed_drawn: bool = False  # whether the seed was drawn at random, so that a state can replace it
    launch: Launch = Launch()  # the processes that share memory and cores with this one
    # Packs shuffled documents into sequences. Tokens are then the rows that are counted, placed and assigned.
    packing: SequencePacking | None = None
    shuffles_blocks: bool = False  # whether the shuffle leaves the rows of each block in order
    sort: WindowSort | None = None  # of the rows of each window, after the shuffle
    mixture: Mixture | None = None  # of the source's rows, which come from several sources

    @property
    def row_seed(self) -> int | None:
        """The seed by which the rows of each window are shuffled; None: they keep the order of their blocks."""
        return None if self.shuffles_blocks else self.seed

    def with_seed(self, seed: int | None) -> Job:
        return self if seed == self.seed else replace(self, seed=seed)

    @property
    def cache(self) -> Literal["memory", "disk"] | None:
        """Where decoded blocks are cached; None also where no block would be read a second time."""
        return self.options.cache if self.epochs != 1 or self.options.keep_cache else None

    @property
    def skips_corrupt(self) -> bool:
        return self.options.on_error == "skip"

    @property
    def sequence_rows(self) -> int:
        """How many rows, that is tokens, make one row that is delivered: 1 without packing."""
        return 1 if self.packing is None else self.packing.seq_len

    @property
    def pads_sequences(self) -> bool:
        """Whether documents are packed whole: windows, and so epochs, then have as many rows as their lengths need."""
        return self.packing is not None and not self.packing.split_documents

    @property
    def delivers_stored_rows(self) -> bool:
        """Whether rows are delivered as the source has them."""
        return not self.before and not self.after and self.packing is None

    @property
    def rows_stated(self) -> bool:
        """Whether the source states how many rows each readable block delivers."""
        preserved = self.packing is None and all(stage.preserves_rows for stage in self.before)
        return self.source.blocks.rows_known and preserved

    @property
    def rows_known(self) -> bool:
        """Whether row counts are known before anything is read."""
        if self.mixture is not None and self.mixture.joined is not None:
            # its tokens have been counted
            return True
        return self.rows_stated and not self.skips_corrupt

    @property
    def holds_blocks(self) -> bool:
        """Whether blocks are held as they were read until other blocks tell where their rows go."""
        return not self.rows_known or self.sort is not None

    def leads_on(self, epoch: int) -> bool:
        """Whether a reader continues from an epoch into the next one before that is requested.

        It does so only where the next epoch's layout is fully known in advance, and is prefetched.
        """
        if self.mixture is not None:
            return False
        is_last = self.epochs is not None and epoch + 1 >= self.epochs
        prepared = self.options.prefetch_windows > 0 and not self.on_demand
        return self.rows_known and prepared and not is_last


@dataclass(frozen=True)
class Resources:
    """The resources that an executor offers."""

    # its name, and why it was chosen
    executor: str
    # number of tasks that run concurrently
    workers: int
    # the memory limit if the user sets none, and whether runs, decoded blocks and processes count against it too
    memory_bytes: int
    limit_covers_all: bool
    # copies of each window in memory: rows that move between nodes are stored on both
    copies: float = 1.0
    # one line each
    user_warnings: tuple[str, ...] = ()
    # memory of processes other than data: of all workers, and of each shard's process
    processes_bytes: int = 0
    shard_bytes: int = 0
    # number of machines that can read shards
    nodes: int = 1
    # the part of processes_bytes that one worker adds
    worker_bytes: int = 0
    # the CPUs that a task requests
    task_cpus: float = 1.0
    # If all buffered windows, a few extra ones included, take no more than this together, the coordinator
    # holds the extra ones, so that shards can batch their acknowledgements.
    small_windows_bytes: int = 0
    # number of processes that share the machine or cluster; the values above are one's share
    processes: int = 1
    # the most nodes that read one shard for its replicas
    replica_nodes: int = 1

    def with_replicas(self, nodes: int) -> Resources:
        """The same for a run in which replicas of a shard are on up to ``nodes`` nodes, which all hold its rows."""
        return replace(self, replica_nodes=nodes, copies=max(self.copies, nodes))
