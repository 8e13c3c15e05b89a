"""Methods of DatasetPipeline that run it, or tell what a run does: shards, epochs, explain(), lineage, timeline()."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

from windrow.core.errors import PlanError
from windrow.core.integers import check_count
from windrow.core.source import RowOrigin
from windrow.dataset.argument_checks import check_hints
from windrow.dataset.epoch_iteration import Passes, read_epochs
from windrow.dataset.readable import Readable
from windrow.pipeline.checkpoint.lineage import Lineage
from windrow.pipeline.checkpoint.resume import resume
from windrow.pipeline.delivery.delivery import BatchIterator, Delivery
from windrow.pipeline.executors.choose_executor import find_resources
from windrow.pipeline.launch.attachment import FirstRead, attached_place, attachment_for, will_share
from windrow.pipeline.launch.launcher import find_launch, find_rank
from windrow.pipeline.launch.mesh import find_place
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.explain import explain_job
from windrow.pipeline.plan.explanation import Explanation
from windrow.pipeline.plan.job import Job, Launch
from windrow.pipeline.plan.mesh_place import MeshPlace, check_replica
from windrow.pipeline.shard.epoch import Epoch
from windrow.pipeline.shard.open_shards import open_replicas, open_shard, open_shards
from windrow.pipeline.shard.run_record import LatestRun
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.shard_assignment import Equal, check_equal

if TYPE_CHECKING:
    from windrow.pipeline.timeline.timeline import Timeline


@dataclass(frozen=True, repr=False)
class ShardMethods(Readable):
    """Base class of DatasetPipeline: opens shards, and notes the runs that it starts."""

    _latest: LatestRun = field(default_factory=LatestRun, init=False, repr=False, compare=False)

    @overload
    def split(
        self,
        n: int,
        *,
        equal: Equal = ...,
        locality_hints: Sequence[Any] | None = ...,
        replicas: None = ...,
        state_dict: Mapping[str, Any] | None = ...,
        allow_appended: bool = ...,
    ) -> list[Shard]: ...

    @overload
    def split(
        self,
        n: int,
        *,
        replicas: int,
        equal: Equal = ...,
        locality_hints: Sequence[Any] | None = ...,
        state_dict: Mapping[str, Any] | None = ...,
        allow_appended: bool = ...,
    ) -> list[list[Shard]]: ...

    def split(
        self,
        n: int,
        *,
        equal: Equal = False,
        locality_hints: Sequence[Any] | None = None,
        replicas: int | None = None,
        state_dict: Mapping[str, Any] | None = None,
        allow_appended: bool = False,
    ) -> list[Shard] | list[list[Shard]]:
        """Split the rows of every epoch into ``n`` shards, one for each trainer.

        With batch size B, batch s of shard t holds rows [s·n·B + t·B, s·n·B + (t+1)·B) of the
        epoch. The rows of a step therefore depend only on n·B, not on n.

        Parameters
        ----------
        n
            Number of shards.
        equal
            How to treat a last step that is not full: False gives the first shards one row
            more, True drops at most n - 1 rows, ``"pad"`` repeats at most n - 1 rows.
        locality_hints
            (n,) where each shard will be read: an actor handle, a node id, or None; with ``replicas``,
            (n, replicas).
        replicas
            Number of trainers that get the same rows of each shard, such as the ranks of a tensor-parallel group.
            On a node, the rows of a shard are placed once for all of its replicas. They read at about the same
            pace: one that is some batches ahead waits for the others.
        state_dict
            A checkpoint from ``Shard.state_dict()`` to resume from; it can have been saved with
            another n and batch size. If the pipeline's seed was drawn, the state's seed replaces it.
        allow_appended
            Accept files added since the checkpoint if they come after the old ones in listing
            order. The state must be at the start of an epoch.

        Raises
        ------
        PlanError
            If an argument is invalid, or a window does not fit into memory; the message names the
            largest size that fits.
        StateError
            If the state is corrupt or belongs to another stream; the message names the difference.

        Returns
        -------
        list[Shard], or with ``replicas`` list[list[Shard]]
            (n,) shards, or (n, replicas).

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
        count = None if replicas is None else check_count(replicas, "replicas")
        hints = check_hints(locality_hints, shards, count)
        job, start = self._resume(state_dict, allow_appended)
        options: Any = {
            "equal": check_equal(equal),
            "locality_hints": hints,
            "start": start,
            "latest": self._latest,
        }
        if count is not None:
            return open_replicas(job, shards, count, **options)
        return open_shards(job, shards, **options)

    def iterator(self, *, state_dict: Mapping[str, Any] | None = None, allow_appended: bool = False) -> Shard:
        """Return all rows as one shard, whose progress can be checkpointed.

        ``state_dict`` and ``allow_appended`` are as in `split`.

        Raises
        ------
        StateError
            If the state is corrupt or belongs to another stream; the message names the difference.
        """
        return self.split(1, state_dict=state_dict, allow_appended=allow_appended)[0]

    def shard(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        replica: tuple[int, int] | None = None,
        mesh: Any = None,
        data_dims: Sequence[str] | None = None,
        sequence_dims: Sequence[str] = (),
        equal: Equal = True,
        state_dict: Mapping[str, Any] | None = None,
        allow_appended: bool = False,
    ) -> Shard:
        """Return this process's shard, for jobs without a process that calls ``split`` (torchrun).

        Every process builds the same pipeline, calls this equally often, and delivers its own shard of the
        order of ``split``. Where Ray is installed and the ranks can find each other, all of them share one
        run on Ray that decodes each block once; see `windrow.attach`. The call waits for the other ranks. Ranks
        with given places share it too, if there are as many of them as the launcher has started.

        On a mesh, ranks that differ only in other than data dimensions are replicas of one shard: they get the same
        batches, which are placed once for each node that has some of them.

        Otherwise, or with ``options(executor="threads")``, this process reads for itself: it decodes every block of
        every window, also blocks without a row of its shard. Processes on one machine then divide its cores and
        memory, if the launcher
        sets their number (LOCAL_WORLD_SIZE, or the variables of Open MPI or SLURM's srun); a limit given by
        ``options(memory_limit=...)`` applies to each.

        Parameters
        ----------
        rank, world_size
            Index of this shard and number of shards. None: taken from the attachment, from torch.distributed
            if it is initialised, else from the launcher's variables, such as RANK and WORLD_SIZE.
        replica
            (index, count): which of the ``count`` readers of the same shard this is, where ``rank`` and ``world_size``
            are those of the data-parallel group, and the job has ``world_size * count`` ranks.
        mesh
            The ``torch.distributed.device_mesh.DeviceMesh`` of the job, from which rank, world size and replica follow.
        data_dims
            The dimensions of the mesh along which ranks get different rows. None: those whose names begin with
            ``dp``, ``fsdp``, ``data`` or ``batch``.
        sequence_dims
            The dimensions along which ranks get parts of each sequence: ``iter_*`` then deliver this rank's part, as
            `windrow.SequenceSlice` does, of which they take the layout and columns.
        equal
            As in `split`, but True by default: with unequal numbers of steps, collectives such as DDP's
            would hang. At most ``world_size - 1`` rows of an epoch are dropped.
        state_dict, allow_appended
            As in `split`; all processes must pass the same state.

        Raises
        ------
        PlanError
            If rank and world size are unknown or invalid, if none of the mesh's dimensions is known to be a data
            dimension, if ranks build different pipelines or read in the same place, or if the seed
            was drawn and there are several processes, since each would have drawn its own.
        StallError
            If another rank does not call this within the stall timeout; the message names it.
        StateError
            If the state is corrupt or belongs to another stream; the message names the difference.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> pipe = windrow.read_parquet("numbers.parquet").repeat(1)
        >>> shard = pipe.shard(rank=0, world_size=1)
        >>> sum(len(batch["x"]) for batch in shard.iter_batches())
        6
        """
        if mesh is None:
            if data_dims is not None or sequence_dims:
                raise PlanError("data_dims= and sequence_dims= name dimensions of a mesh: pass mesh= too")
            place = _find_place(rank, world_size, replica)
        elif (rank, world_size, replica) != (None, None, None):
            raise PlanError("the mesh tells rank, world size and replica: give mesh=, or these three")
        else:
            place = find_place(mesh, data_dims, sequence_dims)
        job, start = self._resume(state_dict, allow_appended)
        if place.ranks > 1 and self._plan.seed_drawn and state_dict is None:
            raise PlanError(
                f"shard() in a world of {place.ranks} needs a seed that all processes share, and "
                "random_shuffle_each_window() drew one for this process alone: pass it seed=..."
            )
        attachment = attachment_for(job.options, place.ranks)
        if attachment is None:
            job = replace(job, launch=find_launch(place.ranks))
        return open_shard(
            job,
            place,
            equal=check_equal(equal),
            start=start,
            sessions=None if attachment is None else attachment.session,
            first_read=FirstRead(place.ranks, attachment is not None),
            latest=self._latest,
        )

    def iter_epochs(self, max_epoch: int = -1) -> Iterator[Epoch]:
        """Iterate over the epochs in this process; each is one pass over all rows.

        Parameters
        ----------
        max_epoch
            Stop before the epoch with this number, counted from 0; -1: iterate over all.

        Raises
        ------
        PlanError
            If ``max_epoch`` is neither -1 nor an integer of 1 or more.
        """
        job = self._job()
        if max_epoch != -1:
            stop = check_count(max_epoch, "max_epoch", "or -1 for all")
            job = replace(job, epochs=stop if job.epochs is None else min(stop, job.epochs))
        return read_epochs(job, self._latest)

    def explain(
        self,
        n: int = 1,
        *,
        equal: Equal = False,
        batch_size: int | None = None,
        replicas: int = 1,
        mesh: Any = None,
        data_dims: Sequence[str] | None = None,
        sequence_dims: Sequence[str] = (),
    ) -> Explanation:
        """Return a printable execution plan (rows, windows, steps, memory) without running the pipeline.

        Parameters
        ----------
        n, equal
            As in `split`. A pipeline does not know how it will be split: pass what `split` gets, and
            ``equal=True`` for `shard`, whose default that is. Under a launcher with ``n`` processes, memory and
            workers are those of the run that they share, or of one process if each reads for itself.
        batch_size
            Rows per batch, needed to compute the number of steps; None: steps are omitted.
        replicas
            As in `split`.
        mesh, data_dims, sequence_dims
            As in `shard`: the numbers of shards and replicas then follow from the mesh.

        Raises
        ------
        PlanError
            If a window does not fit into memory; the message names the largest size that fits.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> pipe = windrow.read_parquet("numbers.parquet").repeat(2).random_shuffle_each_window(seed=7)
        >>> print(pipe.explain(2, batch_size=2))
        2 epochs, seed 7, order v1, executor threads...
        rows     6 an epoch; 1 fragment, 1 row group; 1 of 1 column
        ...
        >>> pipe.explain(4, batch_size=2).steps, pipe.explain(4, equal=True, batch_size=2).left_out_rows
        (1, 2)
        """
        rows = None if batch_size is None else check_count(batch_size, "batch_size")
        place = MeshPlace(0, check_count(n, "n"), 0, check_count(replicas, "replicas"))
        if mesh is not None:
            place = find_place(mesh, data_dims, sequence_dims)
        job = self._job()
        if will_share(job.options, place.ranks):
            job = replace(job, options=replace(job.options, executor="ray"), launch=Launch(shared=True))
        else:
            job = replace(job, launch=find_launch(place.ranks))
        return explain_job(job, place, find_resources(job), equal=check_equal(equal), batch_rows=rows)

    def epoch_lineage(self, epoch: int, start: int, stop: int) -> list[RowOrigin]:
        """Return where rows [start, stop) of an epoch's order are stored, computed from the plan.

        Nothing is read if the manifest holds the row counts; with a filter, its columns are read.
        Blocks skipped by ``on_error="skip"`` are unknown here; ``shard.step_lineage`` accounts for them.

        Returns
        -------
        list[RowOrigin]
            (stop - start,) path, row group and row of each.

        Raises
        ------
        PlanError
            If there are no such rows, or a transform has ``preserves_rows=False``.

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

    def timeline(self) -> Timeline:
        """Return the timeline of the latest run that this pipeline has started in this process.

        That run is the latest call of ``split``, ``iterator``, ``shard``, ``iter_epochs`` or another ``iter_*``, during
        the run or after it. All of its shards count, also those that other processes read. For these, keep the list
        that ``split`` returned: the coordinator on Ray ends with the last reference to its shards, and with it what it
        knows. Runs of DataLoader workers are not included.

        Returns
        -------
        Timeline
            Save it as JSON for Perfetto, or as a picture.

        Raises
        ------
        PlanError
            If this pipeline has not been read in this process. A method that changes a pipeline returns another one.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.range(100).repeat(1).random_shuffle_each_window(seed=7)
        >>> rows = list(pipe.iter_rows())
        >>> pipe.timeline().save("run.json")
        """
        return self._latest.timeline()

    def _deliver(self, delivery: Delivery) -> BatchIterator:
        return Passes(self._job(), delivery, self._latest)

    def _resume(self, state_dict: Mapping[str, Any] | None, allow_appended: bool) -> tuple[Job, Cursor]:
        job = self._job()
        return (
            (job, Cursor()) if state_dict is None else resume(job, state_dict, allow_appended=allow_appended)
        )

    def _job(self) -> Job:
        return self._plan.job()


def _find_place(rank: int | None, world_size: int | None, replica: tuple[int, int] | None) -> MeshPlace:
    """The place of this process without a mesh."""
    if rank is None and world_size is None:
        if replica is not None:
            raise PlanError(
                f"replica={replica!r}: give rank= and world_size= too, those of the data-parallel group"
            )
        return MeshPlace(*(attached_place() or find_rank(None, None)), 0, 1)
    return MeshPlace(*find_rank(rank, world_size), *((0, 1) if replica is None else check_replica(replica)))
