"""Methods of a shard that tell or change where it goes on: states, skipped steps, the shares of a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow.core.errors import PlanError, StateError
from windrow.pipeline.checkpoint.mixed_state import change_shares, describe_mixture
from windrow.pipeline.checkpoint.resume import resume, skip_steps
from windrow.pipeline.checkpoint.state import describe_stream
from windrow.pipeline.delivery.delivery import choose_batches
from windrow.pipeline.plan.plan_leg import leg_at
from windrow.pipeline.shard.base_shard import BaseShard
from windrow.shuffle.order.balance import Balance


class PositionMethods(BaseShard):
    """Base class of Shard: how far it has come, and where it goes on."""

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint of the progress, to resume anywhere and with any number of shards.

        The state points just behind the last batch that was delivered, whether the loop ended with
        ``break``, an exception or `close`. It is identical on all shards at the same step, holds only JSON
        values and takes less than 1 KB. An epoch that was abandoned early counts as consumed once the next
        one is requested, by an ``iter_*`` call or ``next()`` on `iter_epochs`, or once `skip_epoch` is
        called. The state lists the numbers of the blocks skipped by ``on_error="skip"`` that every shard
        has reached.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> pipe = windrow.read_parquet("numbers.parquet").repeat(2)
        >>> batches = iter((shard := pipe.iterator()).iter_batches(batch_size=2))
        >>> next(batches)["x"].tolist()
        [0, 1]
        >>> state = shard.state_dict()
        >>> [batch["x"].tolist() for batch in pipe.iterator(state_dict=state).iter_batches(batch_size=4)]
        [[2, 3, 4, 5]]
        """
        if self._divided is not None:
            raise PlanError(
                f"shard {self._shard} is read through as_torch_dataset(): the dataset's state_after(batches) returns "
                "the state"
            )
        cursor = self._position.consumed
        if self._stream is None:
            self._stream = describe_stream(self._program.job)
        shards, batch_size = cursor.assigned or (self._program.shards, None)
        mixture = self._program.job.mixture
        mixed = None
        if mixture is not None:
            leg = leg_at(mixture, cursor)
            mixed = describe_mixture(mixture, leg, mixture.known_row(cursor), cursor.groups)
        return self._stream.at(cursor, shards=shards, batch_size=batch_size, mixture=mixed).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], *, allow_appended: bool = False) -> None:
        """Resume from a state: the next ``iter_*`` call reads the rest of its epoch.

        Load the same state into all shards of a ``split``, and on all ranks of a job. A pipeline whose seed was drawn
        at random adopts the state's seed.

        Parameters
        ----------
        state_dict
            A result of `state_dict`, from any shard, with any number of shards and any batch size.
        allow_appended
            Accept data to which files were appended since, after the earlier ones in listing order; the
            state must be at the start of an epoch.

        Raises
        ------
        StateError
            If an epoch is open, or the state is corrupt or belongs to another stream; the message names
            the difference.
        """
        with self._lock:
            if self._position.iterator is not None:
                raise StateError(
                    f"shard {self._shard} is being iterated (epoch {self._position.at.epoch}): finish or "
                    "close() the iterator before you load a state"
                )
            job, cursor = resume(self._program.job, state_dict, allow_appended=allow_appended)
            self._program = self._program.with_seed(job.seed)
            # earlier epochs do not determine the shard assignment of the state's epoch
            self._stream = self._lineage = self._latest = None
            # a new connection ignores late reports from the old position
            self._connection.disconnect()
            self._position.move(cursor)
            self._consumer.totals.move()

    def set_shares(self, shares: Mapping[str, float]) -> None:
        """Change the shares of a mixture's sources from the next step on.

        Call it on all shards after the same step, also within a loop over batches, which goes on with the new shares.
        No row is lost or comes twice, and a document that has begun goes on. The state has the new shares at once. The
        windows that are held are prepared again.

        Parameters
        ----------
        shares
            By source name, numbers of 0 or more, of which only the proportions count.

        Raises
        ------
        PlanError
            If the pipeline is no mixture, a share is invalid, or no source has the name; with ``group_by_length=m``,
            after a number of steps that is no multiple of m, since the rows of a group have been chosen by then.

        Notes
        -----
        If another shard has set other shares, or after another step, the next batch raises a `StateError` on the shard
        that comes later. A shard that does not call this while others do reads on with the old shares, for about two
        seconds, or three steps if those take longer. Then the next batch of each shard raises a `StateError`, and so
        does the end of the mixture on a shard that comes to it later. With ``executor="threads"`` in several processes,
        each reads by itself, and no process can detect it.

        Examples
        --------
        >>> import windrow
        >>> easy, hard = (windrow.range(1_000).repeat() for _ in range(2))
        >>> pipe = windrow.mixture({"easy": easy, "hard": hard}, {"easy": 1}, seed=7, source_column="of")
        >>> shard = pipe.iterator()
        >>> for step, batch in zip(range(3), shard.iter_batches(batch_size=100)):
        ...     print(int((batch["of"] == "hard").sum()))
        ...     shard.set_shares({"easy": 3 - step, "hard": 1 + step})
        0
        25
        50
        """
        mixture = self._program.job.mixture
        if mixture is None:
            raise PlanError("set_shares() is for mixtures, as windrow.mixture() makes them")
        with self._lock:
            if self._divided is not None:
                raise PlanError(
                    f"set_shares(): shard {self._shard} is read by DataLoader workers, each at a step of its own; "
                    "read it through iter_torch_batches()"
                )
            latest = None if self._latest is None else self._latest.assignment
            by_tokens = latest is not None and latest.ends_by_tokens
            step_rows = 0 if by_tokens else self._program.shards * (self._batch_size or 1)
            self._position.change(change_shares(mixture, self._position.consumed, step_rows, shares))

    def skip_epoch(self) -> None:
        """Skip the rest of the current epoch: states now point at the start of the next one.

        The current epoch is the one being iterated; else the one that was abandoned early, even at its
        last batch; else the one that would be read next. Call it on all shards. To abandon an epoch and
        continue with the next one, ``break`` is enough; `skip_epoch` is for a checkpoint between the two.

        Raises
        ------
        PlanError
            If all epochs have been read.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> shard = windrow.read_parquet("numbers.parquet").repeat(2).iterator()
        >>> for batch in shard.iter_batches(batch_size=2):
        ...     break
        >>> shard.state_dict()["row"]
        2
        >>> shard.skip_epoch()
        >>> state = shard.state_dict()
        >>> state["epoch"], state["row"]
        (1, 0)
        """
        if self._program.job.mixture is not None:
            raise PlanError("a mixture has a single epoch: skip_batches() skips a number of steps")
        with self._lock:
            self._position.end_dropped_readers()
            epoch, epochs = self._position.current, self._program.job.epochs
            if epochs is not None and epoch >= epochs:
                raise PlanError(
                    f"all {epochs} epochs of shard {self._shard} have been read: there is no epoch to skip"
                )
            self._position.leave(epoch)

    def skip_batches(
        self,
        count: int,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        balance: Balance | None = None,
        group_by_length: int | None = None,
    ) -> None:
        """Skip some steps without reading them, also across epochs, for example after a loss spike.

        Counting starts behind the last batch that was delivered, even in an epoch that was abandoned early;
        the next ``iter_*`` call starts behind the skipped steps. Call it with the same arguments on all
        shards.

        Parameters
        ----------
        count
            Number of steps; a step is one batch of every shard.
        batch_size
            Rows per batch; None: that of the last ``iter_*`` call, or of the loaded state.
        drop_last
            Whether epochs omit a short last step.
        balance, group_by_length
            As for the ``iter_*`` call that goes on behind the skipped steps; groups by length have other rows in each
            step. None: as for the last ``iter_*`` call.

        Raises
        ------
        PlanError
            If an epoch is open, or an argument is invalid.

        Notes
        -----
        If the row count of the epoch is not known yet (a filter, ``on_error="skip"`` or a format without row
        counts, before the first epoch was read), skipping stops at the end of the epoch, and the skipped rows
        are read to be counted.
        """
        with self._lock:
            self._check_free()
            at = self._position.at
            rows = self._batch_size if batch_size is None else batch_size
            if group_by_length is not None:
                _, balance = choose_batches(1, balance, None, group_by_length)
            elif balance is None and self._latest is not None:
                balance = self._latest.assignment.balance
            cursor = skip_steps(
                self._program,
                at,
                count,
                batch_rows=rows,
                drop_last=drop_last,
                total=self._total_rows(),
                balance=balance,
            )
            if self._position.is_left:
                # the shard already acknowledged all of this epoch
                self._connection.disconnect()
            self._position.move(cursor.skipping(at.corrupt))
