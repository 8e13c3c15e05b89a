"""The windows that a host has fetched for its replicas, and what it may release of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa

from windrow.core.errors import PlanError, WindrowError
from windrow.core.shared_batches import SharedPool
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.delivery.wanted import EVERYTHING, Wanted
from windrow.pipeline.executors.base import CoordinatorClient, Pace, Waiting, WindowData
from windrow.pipeline.executors.preparation import Preparation
from windrow.pipeline.executors.replicas.placed_runs import HeldWindow, LentRuns
from windrow.pipeline.executors.replicas.replica_states import Opening, Reader, ReplicaState
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import Run

_LOOK_SECONDS = 0.5
# how long a host waits for the wishes of its other replicas before it fetches the first window
_WISH_SECONDS = 2.0

# makes the rows of a run from the map outputs of its slice, given the window's data and its key
PlaceRun = Callable[[WindowData, Key, Any, Run, SharedPool], pa.RecordBatch]
# applies the transforms after the shuffle to them
PrepareRun = Callable[[Preparation, WindowData, Key, Run, pa.RecordBatch], pa.RecordBatch]


class HostWindows:
    """The windows that a host holds, and the thread that fetches them; `ReplicaHost` adds what replicas call."""

    def __init__(
        self,
        connect: Callable[[int], CoordinatorClient],
        place_run: PlaceRun,
        prepare_run: PrepareRun,
        shard: int,
        names: Sequence[str],
        *,
        limit_bytes: int,
        max_ahead: int,
        leads_on: Callable[[int], bool],
        shards: int = 0,
        narrows: bool = False,
        fail_seconds: float = Waiting().fail_seconds,
    ) -> None:
        self.pool = SharedPool(limit_bytes)
        self._connect = connect
        self._place_run, self._prepare_run = place_run, prepare_run
        # the shards that share the workers of transforms; 0: there are no transforms
        self._shards = shards
        self._preparation = Preparation((), str(shard), 1)
        self._shard = shard
        self._replicas = [ReplicaState(name, heard=time.monotonic()) for name in names]
        self._max_ahead = max_ahead
        self._leads_on = leads_on
        # how long a replica waits for others before an epoch is opened
        self.fail_seconds = fail_seconds
        self._changed = threading.Condition()
        self._client: CoordinatorClient | None = None
        # whether there has been a client of the coordinator
        self.was_opened = False
        self._failure: BaseException | None = None
        # whether replicas disagree, which does not pass
        self._disagrees = False
        # the epoch that is open at the coordinator
        self._facts: EpochFacts | None = None
        self._is_opening = False
        # whether the client leaves out what no replica here wants, and what is fetched now
        self._narrows = narrows
        self._wanted = EVERYTHING
        # everything before it is released at the coordinator
        self._acknowledged = Place(0, 0)
        # what is fetched next; nothing after it is released, even if replicas that had another host do not need it
        self._fetching = Place(0, 0)
        self._windows: dict[Key, HeldWindow] = {}
        self._lent = LentRuns()
        # of the replicas that have reported since the coordinator was last told of them
        self._reports: dict[int, TrainerStats] = {}
        self._stop: threading.Event | None = None
        self._pace = Pace()

    # --- what replicas want

    def _find(self, reader: Reader) -> ReplicaState:
        """The replica of a reader, unless another one has taken its place."""
        state = self._replicas[reader.replica]
        if state.readers != reader.number:
            raise PlanError(
                f"replica {state.name} of shard {self._shard} is being read elsewhere: another process has connected "
                "as the same replica. Give each process a replica of its own"
            )
        return state

    def _is_latest(self, reader: Reader) -> bool:
        return self._replicas[reader.replica].readers == reader.number

    def _union(self) -> Wanted:
        """What the replicas that have opened an epoch want together."""
        openings = [state.opening for state in self._replicas if state.opening and not state.is_absent]
        if not self._narrows or not openings:
            return EVERYTHING
        return reduce(or_, [opening.wanted for opening in openings])

    def _fetch_wanted(self) -> None:
        """Fetch windows again, as they were narrowed, if they lack what a replica wants now."""
        wanted = self._union()
        if self._client is None or self._wanted.covers(wanted):
            return
        self._wanted = self._wanted | wanted
        self._stop_fetching()
        self._windows.clear()
        self._client.want(self._wanted)

    def _awaits_wishes(self, opening: Opening, waited: float) -> bool:
        """Whether others may soon want more than this replica, so that windows would be fetched a second time."""
        if not self._narrows or self._facts is not None or opening.wanted.is_everything:
            return False
        return waited < _WISH_SECONDS and any(
            state.opening is None and not state.is_absent for state in self._replicas
        )

    # --- opening at the coordinator

    def _known_facts(self, opening: Opening) -> EpochFacts | None:
        """The facts of an epoch that needs no opening at the coordinator; None: it does."""
        facts, cursor = self._facts, opening.cursor
        if facts is None or Place(cursor.epoch, cursor.window) < self._acknowledged:
            return None
        is_next = cursor.epoch == facts.epoch + 1 and self._leads_on(facts.epoch) and not cursor.row
        if is_next:
            facts = facts.next_epoch
        if cursor.epoch != facts.epoch or not opening.fits(facts.assignment):
            return None
        # the coordinator says the same for this cursor
        assignment = facts.assignment.from_row(cursor.row, cursor.groups)
        return replace(facts, first_window=cursor.window, assignment=assignment)

    def _find_behind(self, opening: Opening, *, goes_on: bool) -> list[ReplicaState]:
        """The replicas that need windows before an epoch, which would be lost if it was opened now."""
        facts = self._facts
        if facts is None or opening.cursor.epoch <= facts.epoch:
            return []
        end = Place(opening.cursor.epoch - 1, facts.windows)
        return [
            other
            for other in self._replicas
            if not other.is_absent and (goes_on if other.opening is None else not other.has_left(end))
        ]

    def _open(self, opening: Opening) -> EpochFacts:
        """Open an epoch at the coordinator, and fetch its windows from the cursor on."""
        self._stop_fetching()
        if self._client is None:
            self._client, self.was_opened = self._connect(opening.batching.size), True
        with self._changed:
            self._wanted = self._union()
        self._client.want(self._wanted)
        facts = self._client.open_epoch(opening.cursor, opening.batching)
        after = self._client.after if self._shards else ()
        with self._changed:
            self._preparation.close()
            self._preparation = Preparation(after, f"replicas-{self._shard}", self._shards)
            facts = replace(facts, calls_ahead=self._preparation.calls)
            self._facts = facts
            self._acknowledged = Place(opening.cursor.epoch, opening.cursor.window)
            # what replicas still need is placed again
            self._windows.clear()
            # others may have said meanwhile that they want more
            self._fetch_wanted()
            self._start_fetching((facts.epoch, facts.first_window))
        return facts

    # --- fetching windows

    def _start_fetching(self, first: Key) -> None:
        self._stop, self._fetching = threading.Event(), Place(*first)
        thread = threading.Thread(
            target=self._fetch, args=(self._stop, first), name=f"windrow-replicas-{self._shard}", daemon=True
        )
        thread.start()

    def _stop_fetching(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop.set()

    def _fetch(self, stop: threading.Event, first: Key) -> None:
        client = self._client
        assert client is not None, "an epoch is open"
        try:
            client.begin_prefetch()
            key = self._next_key(stop, first)
            while key is not None:
                data = client.window(*key, stop)
                if data is None:
                    return
                self._keep(stop, key, data)
                key = self._next_key(stop, (key[0], key[1] + 1))
        except BaseException as error:
            with self._changed:
                if not stop.is_set():
                    self._fail(error)

    def _keep(self, stop: threading.Event, key: Key, data: WindowData) -> None:
        with self._changed:
            if not stop.is_set():
                self._fetching = Place(key[0], key[1] + 1)
                self._windows[key] = HeldWindow(data)
                self._advance()

    def _next_key(self, stop: threading.Event, key: Key) -> Key | None:
        """The window to fetch: ``key``, or the first of the next epoch once the coordinator has its own open."""
        epoch, window = key
        with self._changed:
            while not stop.is_set():
                assert self._facts is not None, "an epoch is open"
                if window < self._facts.windows:
                    self._fetching = Place(epoch, window)
                    return epoch, window
                while not (stop.is_set() or self._may_lead_on(epoch)):
                    self._changed.wait(_LOOK_SECONDS)
                epoch, window = epoch + 1, 0
                if not self._facts.windows:
                    return None
        return None

    def _may_lead_on(self, epoch: int) -> bool:
        return self._facts is not None and self._facts.epoch >= epoch and self._leads_on(epoch)

    def _fetch_again(self) -> None:
        """Go on to fetch windows after a pause."""
        if self._stop is None and self._facts is not None and not self._is_opening:
            self._start_fetching((self._acknowledged.epoch, self._acknowledged.window))

    # --- progress

    def _advance(self) -> None:
        """Release what no replica needs any more, and wake what waits for a change."""
        self._changed.notify_all()
        places = [state.place for state in self._replicas if not state.is_absent]
        if not places or any(place is None for place in places) or self._client is None:
            return
        # also runs of what is read now: a replica that one has waited for may just have left
        for key, window in self._windows.items():
            for name in list(window.runs):
                self._drop_taken(key, name)
        first = min([place for place in places if place is not None])
        if self._facts is not None and self._fetching.window < self._facts.windows:
            first = min(first, self._fetching)
        while self._open_next(first):
            pass
        if self._facts is not None:
            # of an epoch that is not open yet, nothing: to open it later would take that back
            first = min(first, Place(self._facts.epoch + 1, 0))
        if first <= self._acknowledged:
            return
        self._acknowledged = first
        for state in self._replicas:
            state.taken = {name for name in state.taken if Place(*name[0], name[1]) >= first}
        for key in [key for key in self._windows if Place(key[0], key[1] + 1) <= first]:
            del self._windows[key]
        current = self._windows.get((first.epoch, first.window))
        if current is not None:
            for number in range(first.slice):
                current.data.slices[number] = MapOutputs()
        self._client.acknowledge(first)

    def _is_held_back(self, state: ReplicaState, behind: Sequence[ReplicaState]) -> bool:
        """Whether windows that a replica has left are kept for one that reads none, so that no others are fetched."""
        keeps = any(other.place is None for other in behind)
        return keeps and state.place is not None and state.place > self._acknowledged

    def _open_next(self, first: Place) -> bool:
        """Open the next epoch at the coordinator once every replica has entered it; returns whether it is open now."""
        facts, here = self._facts, [state for state in self._replicas if not state.is_absent]
        assert self._client is not None
        if facts is None or first.epoch <= facts.epoch or not self._leads_on(facts.epoch):
            return False
        openings = [state.opening for state in here if state.opening is not None]
        if len(openings) < len(here) or any(each.cursor.epoch <= facts.epoch for each in openings):
            return False
        # others may wait to open the epoch after it
        opening = min(openings, key=lambda opening: opening.cursor.epoch)
        self._facts = facts.next_epoch
        opened = self._client.open_next(Cursor(self._facts.epoch), opening.batching)
        opened.add_done_callback(self._note_opened)
        return True

    def _note_opened(self, opened: Future[EpochFacts]) -> None:
        error = None if opened.cancelled() else opened.exception()
        if error is not None:
            with self._changed:
                self._fail(error)

    def _take_reports(self) -> list[TrainerStats]:
        found, self._reports = list(self._reports.values()), {}
        return found

    def _drop_taken(self, key: Key, name: tuple[int, int]) -> None:
        """Drop a run that every replica has taken; its memory is used again once they have released it."""
        window = self._windows.get(key)
        placed = None if window is None else window.runs.get(name)
        if window is None or placed is None or any(each.needs(key, name) for each in self._replicas):
            return
        del window.runs[name]

    def _fail(self, error: BaseException | None) -> None:
        self._failure = self._failure or error
        self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure = self._failure
            if isinstance(failure, WindrowError):
                raise type(failure)(*failure.args) from failure
            raise failure
