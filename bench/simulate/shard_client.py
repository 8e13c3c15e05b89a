"""A shard's line to the coordinator: the real choice of windows and the real way to fetch one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from bench.simulate.actor import Actor
from bench.simulate.machines import Machines, Vanished
from bench.simulate.work import Handle
from bench.simulate.world import World
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.coordinator.buffered_window import WindowReply
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import OpenRequest
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import EpochFacts, WindowData
from windrow.pipeline.shard.window_fetch import UNHEARD, Ahead, Ask, Load, Lost, Pause, fetch_window

__all__ = ["CoordinatorClient"]

_LOOK_SECONDS = 1.0
_TRANSFER_SECONDS = 0.05
_TELL_SECONDS = 0.2

Fetching = Generator[Ask | Load | Pause, Any, WindowData]


class CoordinatorClient:
    """One reader of a shard, as `windrow.pipeline.executors.ray.client` has it.

    Attributes
    ----------
    alive
        Whether its process is.
    """

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
        self._shard, self._node, self._token, self._seed = shard, node, token, seed
        self._since = world.now
        self._failed = failed
        self._leads_on = leads_on
        self.alive = True
        self._opened = self._asked = 0
        self._closed = False
        self._unanswered = 0
        self._ahead: Ahead | None = None
        self._fetching: Fetching | None = None
        self._void = self._waits = False
        self._arrived: Callable[[], None] | None = None

    def open_epoch(
        self, cursor: Cursor, batch_rows: int, *, drop_last: bool, done: Callable[[EpochFacts], None]
    ) -> None:
        """Begin an epoch."""
        self._stop_fetching()
        request = self._make_request(cursor, batch_rows, drop_last=drop_last, goes_on=False)

        def opened(facts: EpochFacts | Failure) -> None:
            if isinstance(facts, Failure):
                self._failed(facts)
                return
            self._request = request
            leads_on, extra_windows = self._leads_on(cursor.epoch), facts.extra_windows
            self._ahead = Ahead(cursor, facts.windows, leads_on=leads_on, extra_windows=extra_windows)
            done(facts)
            self._choose()

        self._question("open_epoch", request, reply=opened)

    def open_next(
        self, cursor: Cursor, batch_rows: int, *, drop_last: bool, done: Callable[[], None]
    ) -> None:
        """Begin the next epoch, without waiting for the answer."""
        ahead = self._ahead
        assert ahead is not None, "an epoch has been opened before"

        def opened(facts: EpochFacts | Failure) -> None:
            if not isinstance(facts, Failure):
                done()
            elif self._ahead is ahead:
                # of an epoch that was left since, and another opened, nobody waits for the answer
                self._failed(facts)

        self._request = self._make_request(cursor, batch_rows, drop_last=drop_last, goes_on=True)
        self._question("open_epoch", self._request, reply=opened)
        ahead.open(cursor, leads_on=self._leads_on(cursor.epoch))
        self._choose()

    def _make_request(
        self, cursor: Cursor, batch_rows: int, *, drop_last: bool, goes_on: bool
    ) -> OpenRequest:
        number, self._opened = self._opened, self._opened + 1
        return OpenRequest(
            shard=self._shard,
            node=self._node,
            token=self._token,
            since=self._since,
            number=number,
            cursor=cursor,
            batch_rows=batch_rows,
            drop_last=drop_last,
            goes_on=goes_on,
            seed=self._seed,
        )

    def window(self, epoch: int, window: int, arrived: Callable[[], None]) -> WindowData | None:
        """Take a window if it is here; else ``arrived`` is called when one is."""
        if self._ahead is None:
            return None
        self._arrived = arrived
        self._ahead.want((epoch, window))
        data = self._ahead.take((epoch, window))
        self._asked += 1
        self._waits = data is None
        self._world.after(_TELL_SECONDS, self._tell_waiting, self._asked)
        self._choose()
        return data

    def _tell_waiting(self, asked: int) -> None:
        if self._waits and asked == self._asked and self._ahead is not None:
            self._tell(self._ahead.take_news(waits=True))
            self._world.after(_TELL_SECONDS, self._tell_waiting, asked)

    def release(self) -> None:
        """Hold nothing until a window is asked for."""
        if self._ahead is not None:
            self._ahead.release()
            self._tell(self._ahead.take_news())
            self._abandon()

    def acknowledge(self, place: Place) -> None:
        """Tell how far the shard has come."""
        if not self.alive:
            return
        if self._ahead is None:
            self._tell(place)
            return
        self._ahead.acknowledge(place)
        self._tell(self._ahead.take_news())
        self._choose()

    def _tell(self, place: Place | None) -> None:
        if place is not None:
            self._actor.call(self, "acknowledge", self._shard, self._token, place)

    def heartbeat(self) -> None:
        """Tell that the consumer is alive."""
        self._actor.call(self, "heartbeat", self._shard)

    def close(self) -> None:
        """The shard reads no more."""
        self._stop_fetching()
        self._closed = True
        self._tell_closed()

    def _tell_closed(self) -> None:
        self._actor.call(self, "close_shard", self._shard, self._token)

    def _question(self, method: str, *args: Any, reply: Callable[[Any], None]) -> None:
        """Ask what would open the shard again, if it were heard by another coordinator after the shard's end."""

        def answered(answer: Any) -> None:
            self._unanswered -= 1
            reply(answer)
            if self._closed and not self._unanswered:
                self._tell_closed()

        self._unanswered += 1
        self._actor.call(self, method, *args, reply=answered)

    def die(self) -> None:
        """Its process ends without a word."""
        self.alive = False
        self._ahead = None
        if self._fetching is not None:
            self._end(self._fetching)

    # --- its thread

    def _stop_fetching(self) -> None:
        self._ahead = None
        self._abandon()

    def _abandon(self) -> None:
        if self._fetching is not None and not self._void:
            self._void = True
            self._world.after(self._world.between(0.0, _LOOK_SECONDS), self._end, self._fetching)

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
            self._void = False
            self._fetching = fetch_window(self._shard, *key)
            self._go_on(self._fetching, key, None)

    def _go_on(self, fetching: Fetching, key: Key, result: Any) -> None:
        if fetching is not self._fetching:
            return
        if self._void:
            return  # its thread looks up later
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
            self._ask(fetching, key, step)
        elif isinstance(step, Pause):
            self._world.after(step.seconds, self._go_on, fetching, key, None)
        else:
            self._load(fetching, key, step)

    def _ask(self, fetching: Fetching, key: Key, step: Ask) -> None:
        assert self._ahead is not None, "nothing is asked for an epoch that has ended"

        def answered(answer: Any) -> None:
            if fetching is not self._fetching:
                return
            if isinstance(answer, Failure):
                self._failed(answer)
                return
            self._go_on(fetching, key, answer)

        request = replace(self._request, cursor=self._ahead.cursor)
        question = (request, self._ahead.ask(key), key, step.attempt, step.have, step.lost)
        self._question("poll", *question, reply=answered)

    def _load(self, fetching: Fetching, key: Key, step: Load) -> None:
        if step.reply.outputs and self._world.happens(self._world.faults.unheard):
            self._world.fault("unheard transfer")
            self._world.after(step.patience_seconds, self._go_on, fetching, key, UNHEARD)
            return
        seconds = _TRANSFER_SECONDS * self._world.chance.random()
        self._world.after(seconds, self._arrive, fetching, key, step.reply)

    def _arrive(self, fetching: Fetching, key: Key, reply: WindowReply) -> None:
        if fetching is not self._fetching:
            return
        try:
            self._machines.find(_handles(reply))
        except Vanished as error:
            if self._world.happens(0.5):
                self._go_on(fetching, key, Lost(error))
            else:
                # as often, Ray has it made again without a word, and fails only where its owner is gone
                self._world.after(1.0, self._arrive_at_last, fetching, key, reply)
            return
        loaded = {
            part: [_map_outputs(handle) for handle in handles] for part, handles in reply.outputs.items()
        }
        self._go_on(fetching, key, replace(reply, outputs=loaded))

    def _arrive_at_last(self, fetching: Fetching, key: Key, reply: WindowReply) -> None:
        if not all(map(self._machines.is_owned, _handles(reply))):
            self._go_on(fetching, key, Lost(Vanished("its owner is gone")))
        else:
            self._arrive(fetching, key, reply)


def _handles(reply: WindowReply) -> list[Handle]:
    return [handle for slices in reply.outputs.values() for handle in slices if handle is not None]


def _map_outputs(handle: Handle | None) -> list[Any]:
    return [] if handle is None else [handle.map_output]
