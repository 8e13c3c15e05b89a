"""DatasetPipeline: epochs of windows, shuffled anew each time, as a user holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from windrow.core.errors import PlanError
from windrow.core.source import RowOrigin
from windrow.dataset.argument_checks import check_count, check_hints
from windrow.dataset.epoch_iteration import read_epochs
from windrow.dataset.iteration_methods import Readable
from windrow.dataset.launcher import find_launch, find_place
from windrow.dataset.write.write_epochs import write_epochs
from windrow.dataset.write.write_job import WriteRequest
from windrow.io.sinks.written_manifest import WriteResult
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.checkpoint.lineage import Lineage
from windrow.pipeline.checkpoint.state import resume
from windrow.pipeline.delivery.batch_formats import BatchFormat
from windrow.pipeline.plan.explain import Explanation, explain_job
from windrow.pipeline.plan.job import Job
from windrow.pipeline.shard.epoch import Epoch
from windrow.pipeline.shard.shard import Shard, open_shard, open_shards
from windrow.pipeline.tasks.transforms import MapBatches
from windrow.shuffle.order.shard_assignment import Equal, check_equal

__all__ = ["DatasetPipeline"]


@dataclass(frozen=True, repr=False)
class DatasetPipeline(Readable):
    """Epochs of a dataset, cut into windows and shuffled: a description that holds no data.

    Make one with ``Dataset.window`` or ``Dataset.repeat``. It is immutable, can be
    pickled and read again and again; each method that changes something returns a new
    one. ``window``, ``repeat`` and ``random_shuffle_each_window`` mean the same in any
    order. Without a shuffle every epoch has the stored order.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet", row_group_size=2)
    >>> ds = windrow.read_parquet("numbers.parquet")
    >>> pipe = ds.window(bytes_per_window="1GiB").repeat(2).random_shuffle_each_window(seed=7)
    >>> for epoch in pipe.iter_epochs():
    ...     print(epoch.number, sorted(row["x"] for row in epoch.iter_rows()))
    0 [0, 1, 2, 3, 4, 5]
    1 [0, 1, 2, 3, 4, 5]
    """

    def map_batches(
        self,
        fn: Callable[..., Any],
        *,
        batch_format: BatchFormat = "numpy",
        batch_size: int | None = None,
        fn_args: tuple[Any, ...] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        preserves_rows: bool = True,
    ) -> DatasetPipeline:
        """Apply a function to batches of rows, in every epoch.

        Called before ``random_shuffle_each_window`` it works on blocks as they are
        read, as `Dataset.map_batches` does. Called after it, it works on shuffled rows:
        it must return a row for each, ``batch_size`` is an upper limit, and which rows
        come together is not specified.

        Parameters
        ----------
        fn
            Called as ``fn(batch, *fn_args, **fn_kwargs)``; returns a dict of arrays, a
            DataFrame or a Table. It must be pure and may run in several threads. The
            arrays that it gets are read-only.
        batch_format
            What it gets: ``"numpy"`` (a dict of arrays, (rows, ...) each), ``"pandas"``
            or ``"pyarrow"``.
        batch_size
            Rows of a batch; None: as they come.
        fn_args, fn_kwargs
            Further arguments.
        preserves_rows
            Whether row i out comes from row i in; must be True after the shuffle.

        Raises
        ------
        PlanError
            For a wrong argument, or ``preserves_rows=False`` after the shuffle.
        """
        stage = MapBatches(
            fn, batch_format, batch_size, fn_args, {} if fn_kwargs is None else fn_kwargs, preserves_rows
        )
        return DatasetPipeline(self._plan.mapped(stage))

    def window(
        self, *, blocks_per_window: int | None = None, bytes_per_window: int | str | None = None
    ) -> DatasetPipeline:
        """Cut each epoch into windows, as `Dataset.window` does; once a chain.

        Raises
        ------
        PlanError
            If the chain has a window already, both sizes are given, or one is no size.
        """
        return DatasetPipeline(self._plan.windowed(blocks_per_window, bytes_per_window))

    def repeat(self, times: int | None = None) -> DatasetPipeline:
        """Deliver every epoch so far ``times`` times; repeats multiply.

        None: for ever. Every epoch is shuffled anew.

        Raises
        ------
        PlanError
            If ``times`` is no integer of 1 or more.
        """
        return DatasetPipeline(self._plan.repeated(times))

    def random_shuffle_each_window(self, *, seed: int | None = None) -> DatasetPipeline:
        """Shuffle the rows of each window, in a new order every epoch; once a chain.

        Each epoch also permutes the blocks before they are cut into windows, so that a
        window mixes rows from all over the dataset.

        Parameters
        ----------
        seed
            Any integer: the same data, windows and seed give the same order everywhere.
            None: one is drawn now, and shown by ``repr``.

        Raises
        ------
        PlanError
            If the chain shuffles already, or the seed is no integer.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> pipe = windrow.read_parquet("numbers.parquet").repeat()
        >>> pipe.random_shuffle_each_window(seed=7)
        DatasetPipeline
          Parquet('...': 1 fragments, 1 row groups; 1 of 1 columns)
          .repeat()
          .random_shuffle_each_window(seed=7)
        """
        return DatasetPipeline(self._plan.shuffled(seed))

    def split(
        self,
        n: int,
        *,
        equal: Equal = False,
        locality_hints: Sequence[Any] | None = None,
        state_dict: Mapping[str, Any] | None = None,
        admit_appended: bool = False,
    ) -> list[Shard]:
        """Deal the rows of every epoch to ``n`` shards, one for each trainer.

        Batch s of shard t is rows [s·n·B + t·B, s·n·B + (t+1)·B) of the epoch, B being
        the batch size, so a step's rows are the same whatever n is, as long as n·B is.

        Parameters
        ----------
        n
            How many shards.
        equal
            What happens to the rows of the last step when they do not fill it: False
            gives the first shards one more, True leaves out at most n - 1 rows,
            ``"pad"`` repeats at most n - 1.
        locality_hints
            (n,) where each shard will be read: an actor handle, a node id, or None.
        state_dict
            From ``Shard.state_dict()``: go on from there, whatever n and batch size it was saved
            with. A seed that was drawn gives way to the state's.
        admit_appended
            Accept data that has grown since by files after those of then, in listing order;
            the state must be at an epoch's start.

        Raises
        ------
        PlanError
            For a wrong argument, or a window that cannot fit into memory; it names the
            largest that can.
        StateError
            If the state is corrupt, or not of this stream; says what differs.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> left, right = windrow.read_parquet("numbers.parquet").repeat(1).split(2)
        >>> [batch["x"].tolist() for batch in left.iter_batches(batch_size=2)]
        [[0, 1], [4]]
        >>> [batch["x"].tolist() for batch in right.iter_batches(batch_size=2)]
        [[2, 3], [5]]
        """
        shards = check_count(n, "n")
        hints = check_hints(locality_hints, shards)
        job, start = self._resume(state_dict, admit_appended)
        return open_shards(job, shards, equal=check_equal(equal), locality_hints=hints, start=start)

    def iterator(self, *, state_dict: Mapping[str, Any] | None = None, admit_appended: bool = False) -> Shard:
        """Return everything as one shard, which remembers how far it has been read.

        ``state_dict`` and ``admit_appended`` are as in `split`.

        Raises
        ------
        StateError
            If the state is corrupt, or not of this stream; says what differs.
        """
        return self.split(1, state_dict=state_dict, admit_appended=admit_appended)[0]

    def shard(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        equal: Equal = False,
        state_dict: Mapping[str, Any] | None = None,
        admit_appended: bool = False,
    ) -> Shard:
        """Return this process's shard, where nobody calls ``split`` for all (torchrun).

        Every process makes the same chain and reads its own part of the same order,
        without talking to the others. Where the launcher says how many processes run on this machine
        (LOCAL_WORLD_SIZE, or what Open MPI or SLURM's srun sets), they divide its cores and its memory;
        a limit given by ``options(memory_limit=...)`` is each process' own.

        Parameters
        ----------
        rank, world_size
            Which shard of how many. None: as torch.distributed says where it is
            initialised, else as the variables RANK and WORLD_SIZE do.
        equal
            As in `split`.
        state_dict, admit_appended
            As in `split`; all processes give the same state.

        Raises
        ------
        PlanError
            If rank and world size are unknown or do not fit, or the world has several
            processes and the seed was drawn, since each would have drawn its own.
        StateError
            If the state is corrupt, or not of this stream; says what differs.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> pipe = windrow.read_parquet("numbers.parquet").repeat(1)
        >>> shard = pipe.shard(rank=0, world_size=1)
        >>> sum(len(batch["x"]) for batch in shard.iter_batches())
        6
        """
        own_rank, size = find_place(rank, world_size)
        job, start = self._resume(state_dict, admit_appended)
        if size > 1 and self._plan.seed_drawn and state_dict is None:
            raise PlanError(
                f"shard() of a world of {size} needs a seed that all processes share, and "
                "random_shuffle_each_window() has drawn one for this process alone: give it seed=..."
            )
        job = replace(job, launch=find_launch(size))
        return open_shard(job, rank=own_rank, world_size=size, equal=check_equal(equal), start=start)

    def epoch_lineage(self, epoch: int, start: int, stop: int) -> list[RowOrigin]:
        """Tell where rows [start, stop) of an epoch's order are stored, from the plan.

        Nothing is read where the manifest tells how many rows there are; with a filter, the
        columns that it needs are. Blocks that ``on_error="skip"`` leaves out are not known here:
        ``shard.step_lineage`` goes by them.

        Returns
        -------
        list[RowOrigin]
            (stop - start,) path, row group and row of each.

        Raises
        ------
        PlanError
            If there are no such rows, or a transform makes rows that are stored nowhere.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet", row_group_size=2)
        >>> pipe = windrow.read_parquet("numbers.parquet").repeat(1).random_shuffle_each_window(seed=7)
        >>> row = next(iter(pipe.iter_rows()))
        >>> origin = pipe.epoch_lineage(0, 0, 1)[0]
        >>> 2 * origin.row_group + origin.row == row["x"]
        True
        """
        return Lineage(self._job()).epoch_lineage(epoch, start, stop)

    def iter_epochs(self, max_epoch: int = -1) -> Iterator[Epoch]:
        """Iterate over the epochs, each one pass over all rows, as one shard.

        Parameters
        ----------
        max_epoch
            Stop before the epoch of this number, counted from 0; -1: at the end.

        Raises
        ------
        PlanError
            If ``max_epoch`` is neither -1 nor an integer of 1 or more.
        """
        job = self._job()
        if max_epoch != -1:
            stop = check_count(max_epoch, "max_epoch", "or -1 for all")
            job = replace(job, epochs=stop if job.epochs is None else min(stop, job.epochs))
        return read_epochs(job)

    def explain(self, n: int = 1, *, equal: Equal = False, batch_size: int | None = None) -> Explanation:
        """Tell what running this chain means, before anything runs: a value that prints well.

        Parameters
        ----------
        n, equal
            As in `split`. Where a launcher has started several processes on this machine, memory and workers
            are those of `shard` in one of them.
        batch_size
            Rows of a batch, to tell the number of steps; None: they are left out.

        Raises
        ------
        PlanError
            If a window cannot fit into memory; names the largest that can.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> pipe = windrow.read_parquet("numbers.parquet").repeat(2).random_shuffle_each_window(seed=7)
        >>> print(pipe.explain(2, batch_size=2))
        2 epochs, seed 7, order v1, executor threads...
        rows     6 an epoch; 1 fragments, 1 row groups; 1 of 1 columns
        ...
        """
        rows = None if batch_size is None else check_count(batch_size, "batch_size")
        shards = check_count(n, "n")
        job = replace(self._job(), launch=find_launch(shards))
        return explain_job(job, shards, equal=check_equal(equal), batch_rows=rows)

    def _resume(self, state_dict: Mapping[str, Any] | None, admit_appended: bool) -> tuple[Job, Cursor]:
        job = self._job()
        return (
            (job, Cursor()) if state_dict is None else resume(job, state_dict, admit_appended=admit_appended)
        )

    def _write(self, request: WriteRequest) -> WriteResult:
        return write_epochs(self._plan, request)

    def _job(self) -> Job:
        return self._plan.job()
