"""`ReplicaHost`: reads one shard for all of its replicas on a node, and places each run once.

The host is the shard's only client of the coordinator. Replicas ask it for windows and runs, each at its own pace.
What the slowest of them still needs is held; a replica that is `max_ahead` runs ahead of another waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from dataclasses import replace

import pyarrow as pa

from windrow.core.errors import StallError, StateError
from windrow.core.shared_batches import SharedBatch, share_batch
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.replicas.host_windows import HostWindows
from windrow.pipeline.executors.replicas.placed_runs import HeldWindow, PlacedRun
from windrow.pipeline.executors.replicas.replica_states import (
    Opening,
    Reader,
    ReplicaState,
    find_disagreement,
)
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import Run

_LOOK_SECONDS = 0.5
_OPEN_LOOK_SECONDS = 0.1
# replicas that read different epochs, or in different ways, may be about to load a state
_AGREE_SECONDS = 10.0


class ReplicaHost(HostWindows):
    """Serves the replicas of a shard; thread-safe."""

    # --- opening

    @property
    def is_closed(self) -> bool:
        """Whether every replica has stopped reading."""
        with self._changed:
            return all(state.is_absent for state in self._replicas)

    def connect(self, replica: int) -> Reader:
        """A replica starts, or starts again."""
        with self._changed:
            number = self._replicas[replica].begin(time.monotonic())
            self._changed.notify_all()
            return Reader(replica, number)

    @property
    def connected(self) -> list[int]:
        """The replicas that read from this host."""
        with self._changed:
            return [
                number
                for number, state in enumerate(self._replicas)
                if state.is_connected and not state.is_absent
            ]

    @property
    def closed(self) -> list[int]:
        """The replicas that have stopped reading from this host."""
        with self._changed:
            return [number for number, state in enumerate(self._replicas) if state.is_closed]

    @property
    def awaits_replicas(self) -> bool:
        """Whether a replica has not been heard of, here or on another node."""
        with self._changed:
            return any(not state.is_connected and not state.is_absent for state in self._replicas)

    def note_elsewhere(self, replicas: Collection[int]) -> None:
        """Some replicas read on other nodes: this host does not wait for them."""
        with self._changed:
            found = [self._replicas[number] for number in replicas]
            changed = [state for state in found if not state.is_connected and not state.is_absent]
            for state in changed:
                state.forget()
                state.is_elsewhere = True
            if changed:
                self._advance()

    def open_epoch(self, reader: Reader, opening: Opening, *, goes_on: bool = False) -> EpochFacts:
        """A replica opens an epoch at a cursor, the first time or again, and says what it wants of the rows.

        ``goes_on``: it is the next one, and what the replica has taken of it stays valid.
        """
        cursor, stays_valid = opening.cursor, goes_on
        with self._changed:
            if not goes_on:
                self._forget_failures()
            self._raise_failure()
            state = self._find(reader)
            before = state.opening
            goes_on = goes_on or (before is not None and before.cursor.epoch < cursor.epoch)
            state.enter(opening, stays_valid=stays_valid)
            self._changed.notify_all()
            state.is_opening = True
            try:
                self._wait_for_others(reader, opening, goes_on=goes_on)
            finally:
                state.is_opening = False
            facts = self._known_facts(opening)
            if facts is not None:
                self._fetch_wanted()
                self._advance()
                return facts
            self._is_opening = True
        try:
            return self._open(opening)
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
            raise
        finally:
            with self._changed:
                self._is_opening = False
                self._changed.notify_all()

    def _wait_for_others(self, reader: Reader, opening: Opening, *, goes_on: bool) -> None:
        """Wait until an epoch can be opened, or need not be; a failure of all replicas if they disagree.

        ``goes_on``: this reader has read an earlier epoch, which others may still read. Otherwise it comes from a
        state, which others may be about to load.
        """
        began = time.monotonic()
        while True:
            self._raise_failure()
            state = self._find(reader)
            disagreement, others = None, []
            # what is open already suits it, even where epochs without windows let others run ahead
            if self._known_facts(opening) is None:
                disagreement = find_disagreement(self._replicas, reader.replica, opening, self._shard)
                others = self._find_behind(opening, goes_on=goes_on)
            waited = time.monotonic() - began
            if disagreement is None and not (
                others or self._is_opening or self._awaits_wishes(opening, waited)
            ):
                return
            # a replica that goes on from epoch to epoch may just be far ahead
            is_sure = disagreement is not None and not (goes_on and isinstance(disagreement, StateError))
            if is_sure and waited >= min(_AGREE_SECONDS, self.fail_seconds):
                self._disagrees = True
                self._fail(disagreement)
                continue
            if waited >= self.fail_seconds:
                names = ", ".join(other.name for other in others) or "another one"
                raise StallError(
                    f"replica {state.name} of shard {self._shard} has waited {self.fail_seconds:,.0f} s to open epoch "
                    f"{opening.cursor.epoch}: replica {names} has not read the one before it"
                )
            self._changed.wait(_OPEN_LOOK_SECONDS)

    def _forget_failures(self) -> None:
        """A replica opens an epoch again: what failed for other reasons than the replicas' is tried again."""
        if self._failure is not None and not self._disagrees:
            self._failure = self._facts = None
        for window in self._windows.values():
            window.runs = {name: placed for name, placed in window.runs.items() if not placed.has_failed}

    # --- windows and runs of replicas

    def window(self, reader: Reader, epoch: int, window: int, stop: threading.Event) -> WindowData | None:
        """Wait for a window; its slices have no map outputs. None if ``stop`` is set first."""
        key = epoch, window
        with self._changed:
            while not stop.is_set():
                self._raise_failure()
                state = self._find(reader)
                state.is_paused = False
                found = self._windows.get(key)
                self._fetch_again()
                if found is not None and self._fits(state, found.data):
                    return replace(found.data, slices=[MapOutputs()] * len(found.data.slices))
                self._changed.wait(_LOOK_SECONDS)
        return None

    def _fits(self, state: ReplicaState, data: WindowData) -> bool:
        """Whether a window is cut as a replica has opened its epoch: with other values, it is fetched again later."""
        opening = state.opening
        return opening is None or data.layout is None or opening.fits(data.layout.assignment)

    def take(self, reader: Reader, key: Key, run: Run, stop: threading.Event) -> SharedBatch | None:
        """Wait for the rows of a run, until ``stop`` is set; the replica calls `released` when it is done with them."""
        name = run.slice, run.index
        placed = self._wait_to_place(reader, key, run, stop)
        while placed is not None and not wait([placed.future], _LOOK_SECONDS).done:
            if stop.is_set():
                return None
        if placed is None:
            return None
        placed.future.result()
        with self._changed:
            state = self._find(reader)
            if not state.is_connected:
                return None
            state.taken.add((key, *name))
            shared = self._lent.lend(placed, reader)
            self._drop_taken(key, name)
            self._changed.notify_all()
        return shared

    def _wait_to_place(self, reader: Reader, key: Key, run: Run, stop: threading.Event) -> PlacedRun | None:
        """Wait until a run is being placed, and the replica may have it; None if ``stop`` is set first."""
        name = run.slice, run.index
        with self._changed:
            while True:
                self._raise_failure()
                state = self._find(reader)
                state.is_paused = state.waits_for_others = False
                if stop.is_set():
                    return None
                self._fetch_again()
                window = self._windows.get(key)
                placed = None if window is None else window.runs.get(name)
                if placed is not None:
                    return placed
                if window is not None and self._lead(state) < self._max_ahead:
                    return self._begin_placing(window, key, run)
                state.waits_for_others = window is not None
                self._changed.wait(_LOOK_SECONDS)

    def _lead(self, state: ReplicaState) -> int:
        """How many runs a replica has taken that another one still needs."""
        return sum(
            not state.needs(key, name) for key, window in self._windows.items() for name in window.runs
        )

    def _begin_placing(self, window: HeldWindow, key: Key, run: Run) -> PlacedRun:
        name = run.slice, run.index
        placed = window.runs[name] = self._lent.make()
        client = self._client
        assert client is not None, "a window was fetched"

        whole, preparation = replace(run, skip=0), self._preparation
        map_outputs = window.data.slices[run.slice]

        def share(rows: pa.RecordBatch) -> SharedBatch:
            rows = self._prepare_run(preparation, window.data, key, whole, rows)
            shared, placed.kept = share_batch(rows, self.pool)
            return shared

        submitted = preparation.submit(
            lambda place: client.submit(place, self._pace),
            lambda: self._place_run(window.data, key, map_outputs, whole, self.pool),
            share,
        )
        submitted.add_done_callback(placed.finish)
        return placed

    def released(self, reader: Reader, number: int) -> None:
        """A reader does not map a run any more, given by the number that `take` returned with it.

        Finalizers call this, in any thread at any time, so it takes no lock.
        """
        self._lent.released(reader, number)

    def release(self, reader: Reader) -> None:
        """A replica's consumer takes nothing; if that holds for all, the coordinator may use the memory of windows."""
        with self._changed:
            self._find(reader).is_paused = True
            stop, client = self._stop, self._client
            if stop is None or client is None:
                return
            if not all(state.is_paused or state.is_absent for state in self._replicas):
                return
            self._stop_fetching()
            self._windows.clear()
            # under the lock, since a replica can go on right away
            client.release(threading.Event())

    # --- progress

    def acknowledge(self, reader: Reader, place: Place) -> None:
        """A replica needs nothing before a place any more; what a replaced reader says is ignored."""
        with self._changed:
            state = self._replicas[reader.replica]
            if self._is_latest(reader) and (state.place is None or place > state.place):
                state.place = place
                self._advance()

    def heartbeat(self, reader: Reader, stats: TrainerStats, *, waits: bool = False) -> None:
        """A replica's consumer is alive; the coordinator is told once for all that are."""
        with self._changed:
            self._lent.collect_released()
            if not self._is_latest(reader):
                return
            self._replicas[reader.replica].heard = time.monotonic()
            # one that reports a second time does not wait for those that are silent
            told = self._take_reports() if reader.replica in self._reports else []
            self._reports[reader.replica] = stats
            # the answer to the last report of a replica is for it, whatever the others report
            if waits or self._reports.keys() >= set(self.connected):
                told += self._take_reports()
        if told and self._client is not None:
            self._client.heartbeat(*told, waits=waits)

    def diagnose(self, reader: Reader) -> tuple[str, float]:
        """Describe what a replica waits for, and return the seconds since the last progress."""
        with self._changed:
            state, now = self._find(reader), time.monotonic()
            behind = [
                other
                for other in self._replicas
                if other is not state
                and not other.is_absent
                and (other.place is None or (state.place is not None and other.place <= state.place))
            ]
            if behind and (state.waits_for_others or self._is_held_back(state, behind)):
                last = min(behind, key=lambda other: other.heard)
                since = now - last.heard
                doing = "has taken no batch" if last.is_connected else "is not connected"
                return f"it waits for replica {last.name}, which {doing} for {since:,.0f} s", since
        if self._client is None:
            return "the run has not started", 0.0
        return self._client.diagnose()

    def run_stats(self, *, spans: bool) -> RunStats:
        """Statistics of the run."""
        return RunStats() if self._client is None else self._client.run_stats(spans=spans)

    def disconnect(self, reader: Reader) -> None:
        """A reader's process has ended, or maps nothing any more; unless it has closed, others wait for its return."""
        with self._changed:
            self._lent.take_back(reader)
            if self._is_latest(reader):
                state = self._replicas[reader.replica]
                state.is_connected = False
                state.forget()
                self._changed.notify_all()

    def close(self, reader: Reader, stats: TrainerStats | None) -> bool:
        """A replica has stopped reading; returns whether it was the last."""
        with self._changed:
            if not self._is_latest(reader):
                return False
            state = self._replicas[reader.replica]
            state.is_closed = True
            state.forget()
            # one that has connected is about to open an epoch, if it has none open
            last = not self.connected
            if not last:
                self._advance()
            client, told = self._client, self._take_reports()
            if last:
                self._stop_fetching()
                self._client, self._facts, self._failure = None, None, None
                self._disagrees = False
                self._windows.clear()
            self._changed.notify_all()
        if client is not None and not last and stats is not None:
            told.append(stats)
        # The callbacks run last to first, each even if another raises: a client that is not closed never ends its
        # threads.
        with ExitStack() as calls:
            if client is not None and last:
                calls.callback(client.close, stats)
            if last:
                calls.callback(self._preparation.close)
            if client is not None and told:
                # a replica that closes need not hear of shards that disagree
                with suppress(StateError):
                    client.heartbeat(*told)
        return last

    def end(self) -> None:
        """No replica will come back: release what is held for them."""
        with self._changed:
            self._stop_fetching()
            client, self._client, self._facts = self._client, None, None
            self._windows.clear()
        with ExitStack() as calls:
            if client is not None:
                calls.callback(client.close, None)
            self._preparation.close()
