"""A shard's coordinator client: real window selection and real fetch protocol, simulated transfers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

from bench.simulation.actor import Actor
from bench.simulation.machines import Machines, ObjectLost
from bench.simulation.world import World
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import Ask, EpochFacts, OpenRequest, WindowReply
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.window_fetch import UNHEARD, Ahead, Load, Lost, Pause, fetch_window
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.shuffle.order.batching import Batching

_POLL_SECONDS = 1.0
_REPORT_SECONDS = 0.2

Fetching = Generator[Ask | Load | Pause, Any, WindowData]


class CoordinatorClient:
    """The client of one reader, like `windrow.pipeline.executors.ray.client`."""

    def __init__(
        self,
        world: World,
        actor: Actor,
        machines: Machines,
        *,
        shard: int,
        node: str,
        token: str,
        seed: int | None,
        failed: Callable[[Failure], None],
        leads_on: Callable[[int], bool],
    ) -> None:
        self._world, self._actor, self._machines = world, actor, machines
        self.shard, self._node, self._token, self._seed = shard, node, token, seed
        self._since = world.now
        self._failed = failed
        self._leads_on = leads_on
        self.alive = True
        self._opened = self._request_number = 0
        self._closed = False
        self._unanswered = 0
        self._ahead: Ahead | None = None
        self._fetching: Fetching | None = None
        self._cancelled = self._waiting = False
        self._arrived: Callable[[], None] | None = None

    def open_epoch(self, cursor: Cursor, batching: Batching, *, done: Callable[[EpochFacts], None]) -> None:
        self._stop_fetching()
        request = self._make_request(cursor, batching, goes_on=False)

        def opened(facts: EpochFacts | Failure) -> None:
            if isinstance(facts, Failure):
                self._failed(facts)
                return
            self._request = request
            leads_on, extra_windows = self._leads_on(cursor.epoch), facts.extra_windows
            self._ahead = Ahead(cursor, facts.windows, leads_on=leads_on, extra_windows=extra_windows)
            done(facts)
            self._choose()

        self._call("open_epoch", request, reply=opened)

    def open_next(self, cursor: Cursor, batching: Batching, *, done: Callable[[], None]) -> None:
        ahead = self._ahead
        assert ahead is not None, "an epoch has been opened before"

        def opened(facts: EpochFacts | Failure) -> None:
            if not isinstance(facts, Failure):
                done()
            elif self._ahead is ahead:
                # if another epoch was opened meanwhile, nothing waits for this answer
                self._failed(facts)

        self._request = self._make_request(cursor, batching, goes_on=True)
        self._call("open_epoch", self._request, reply=opened)
        ahead.open(cursor, leads_on=self._leads_on(cursor.epoch))
        self._choose()

    def _make_request(self, cursor: Cursor, batching: Batching, *, goes_on: bool) -> OpenRequest:
        number, self._opened = self._opened, self._opened + 1
        return OpenRequest(
            shard=self.shard,
            node=self._node,
            token=self._token,
            since=self._since,
            number=number,
            cursor=cursor,
            batching=batching,
            goes_on=goes_on,
            seed=self._seed,
        )

    def window(self, epoch: int, window: int, arrived: Callable[[], None]) -> WindowData | None:
        """Take a window if it has arrived; otherwise ``arrived`` is called when a window arrives."""
        if self._ahead is None:
            return None
        self._arrived = arrived
        self._ahead.want((epoch, window))
        data = self._ahead.take((epoch, window))
        self._request_number += 1
        self._waiting = data is None
        self._world.after(_REPORT_SECONDS, self._report_waiting, self._request_number)
        self._choose()
        return data

    def _report_waiting(self, request_number: int) -> None:
        if self._waiting and request_number == self._request_number and self._ahead is not None:
            self._send_acknowledgement(self._ahead.take_news(waits=True))
            self._world.after(_REPORT_SECONDS, self._report_waiting, request_number)

    def release(self) -> None:
        if self._ahead is not None:
            self._ahead.release()
            self._send_acknowledgement(self._ahead.take_news())
            self._abandon()

    def acknowledge(self, place: Place) -> None:
        if not self.alive:
            return
        if self._ahead is None:
            self._send_acknowledgement(place)
            return
        self._ahead.acknowledge(place)
        self._send_acknowledgement(self._ahead.take_news())
        self._choose()

    def _send_acknowledgement(self, place: Place | None) -> None:
        if place is not None:
            self._actor.call(self, "acknowledge", self.shard, self._token, place)

    def heartbeat(self) -> None:
        self._actor.call(self, "heartbeat", self.shard)

    def close(self) -> None:
        self._stop_fetching()
        self._closed = True
        self._send_close()

    def _send_close(self) -> None:
        self._actor.call(self, "close_shard", self.shard, self._token)

    def _call(self, method: str, *args: Any, reply: Callable[[Any], None]) -> None:
        """Make a call that could reopen the shard at a restarted coordinator; close again after its answer."""

        def answered(answer: Any) -> None:
            self._unanswered -= 1
            reply(answer)
            if self._closed and not self._unanswered:
                self._send_close()

        self._unanswered += 1
        self._actor.call(self, method, *args, reply=answered)

    def die(self) -> None:
        """Kill its process without notice to the coordinator."""
        self.alive = False
        self._ahead = None
        if self._fetching is not None:
            self._end(self._fetching)

    # --- the fetch thread

    def _stop_fetching(self) -> None:
        self._ahead = None
        self._abandon()

    def _abandon(self) -> None:
        if self._fetching is not None and not self._cancelled:
            self._cancelled = True
            self._world.after(self._world.rng.uniform(0.0, _POLL_SECONDS), self._end, self._fetching)

    def _end(self, fetching: Fetching) -> None:
        if fetching is self._fetching:
            fetching.close()
            self._fetching = None
            self._choose()

    def _choose(self) -> None:
        if self._fetching is not None or self._ahead is None or not self.alive:
            return
        key = self._ahead.next()
        if key is not None:
            self._cancelled = False
            self._fetching = fetch_window(self.shard, *key)
            self._advance(self._fetching, key, None)

    def _advance(self, fetching: Fetching, key: Key, result: Any) -> None:
        # the thread of one that was cancelled looks up later
        if fetching is not self._fetching or self._cancelled:
            return
        try:
            step = fetching.send(result)
        except StopIteration as end:
            self._fetching = None
            assert self._ahead is not None, "nothing is fetched for an epoch that has ended"
            self._ahead.keep(key, end.value)
            if self._arrived is not None:
                self._arrived()
            self._choose()
            return
        if isinstance(step, Ask):
            self._poll(fetching, key, step)
        elif isinstance(step, Pause):
            self._world.after(step.seconds, self._advance, fetching, key, None)
        else:
            self._load(fetching, key, step)

    def _poll(self, fetching: Fetching, key: Key, step: Ask) -> None:
        assert self._ahead is not None, "nothing is requested for an epoch that has ended"

        def answered(answer: Any) -> None:
            if not isinstance(answer, Failure):
                self._advance(fetching, key, answer)
            elif fetching is self._fetching:
                self._failed(answer)

        request = replace(self._request, cursor=self._ahead.cursor)
        self._call("poll", request, self._ahead.ask(key), key, step, reply=answered)

    def _load(self, fetching: Fetching, key: Key, step: Load) -> None:
        if step.reply.outputs and self._world.happens(self._world.faults.unheard):
            self._world.fault("unheard transfer")
            self._world.after(step.patience_seconds, self._advance, fetching, key, UNHEARD)
            return
        arrived = partial(self._arrive, fetching, key, step.reply)
        self._machines.transfer(self._node, _handles(step.reply), arrived)

    def _arrive(self, fetching: Fetching, key: Key, reply: WindowReply) -> None:
        if fetching is not self._fetching:
            return
        try:
            self._machines.check_available(_handles(reply))
        except ObjectLost as error:
            if self._world.happens(0.5):
                self._advance(fetching, key, Lost(error))
            else:
                # in half of the cases Ray reconstructs it silently, and fails only if its owner is dead
                self._world.after(1.0, self._retry_arrival, fetching, key, reply)
            return
        loaded = {
            part: [[] if handle is None else [handle.map_output] for handle in handles]
            for part, handles in reply.outputs.items()
        }
        self._advance(fetching, key, replace(reply, outputs=loaded))

    def _retry_arrival(self, fetching: Fetching, key: Key, reply: WindowReply) -> None:
        if not all(map(self._machines.is_owned, _handles(reply))):
            self._advance(fetching, key, Lost(ObjectLost("its owner is dead")))
        else:
            self._arrive(fetching, key, reply)


def _handles(reply: WindowReply) -> list[Any]:
    return [handle for slices in reply.outputs.values() for handle in slices if handle is not None]
