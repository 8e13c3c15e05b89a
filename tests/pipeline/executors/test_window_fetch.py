"""How a shard fetches its windows: which is next, and what happens when objects do not arrive."""

from __future__ import annotations

from typing import Any, cast

import pytest

from windrow.core.errors import StallError
from windrow.pipeline.coordinator.requests import Ask, WindowReply
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.window_fetch import UNHEARD, Ahead, Load, Lost, Pause, fetch_window
from windrow.pipeline.plan.cursor import Cursor, Place

DATA = WindowData(None, [])


def reply(*parts: int, of: int = 2, slices: int = 1) -> WindowReply:
    outputs = {part: [[f"part {part}, slice {i}"] for i in range(slices)] for part in parts}
    return WindowReply(0, of, cast("Any", "layout"), cast("Any", outputs), user_warnings=(f"{parts}",))


def test_the_window_being_consumed_and_the_next_are_fetched() -> None:
    ahead = Ahead(Cursor(epoch=3, window=2), 5, leads_on=False)
    assert ahead.next() == (3, 2)
    ahead.fetched[3, 2] = DATA
    assert ahead.next() == (3, 3)
    assert ahead.take((3, 2)) is DATA
    assert ahead.next() == (3, 3), "what is being consumed is not fetched again"
    ahead.fetched[3, 3] = DATA
    assert ahead.next() is None
    assert ahead.acknowledge(Place(3, 3))
    assert not ahead.acknowledge(Place(3, 2)), "places never go back"
    assert ahead.next() == (3, 4)
    assert ahead.acknowledge(Place(4, 0))
    assert ahead.next() is None, "the epoch is over"


def test_the_windows_of_the_next_epoch_follow_those_of_this_one() -> None:
    ahead = Ahead(Cursor(epoch=3, window=1), 2, leads_on=True)
    for key in ((3, 1), (4, 0)):
        assert ahead.next() == key
        ahead.keep(key, DATA)
    assert ahead.next() is None
    assert ahead.take((3, 1)) is DATA
    assert ahead.acknowledge(Place(3, 2))
    assert ahead.next() == (4, 1), "the end of an epoch is the beginning of the next"
    ahead.keep((4, 1), DATA)
    assert ahead.take((4, 0)) is DATA
    assert ahead.acknowledge(Place(4, 1))
    assert ahead.next() is None, "nothing of the one after that, before the next is open"
    ahead.open(Cursor(4), leads_on=True)
    assert ahead.next() == (5, 0)
    assert ahead.take((4, 1)) is DATA, "what was fetched ahead is still good"
    ahead.open(Cursor(5), leads_on=False)
    ahead.acknowledge(Place(5, 2))
    assert ahead.next() is None


def consume(ahead: Ahead, number: int, windows: int = 5) -> bool:
    """Fetch, take and acknowledge a window; return whether that is reported immediately."""
    epoch, window = divmod(number, windows)
    while (key := ahead.next()) is not None:
        assert ahead.ask(key) == ahead.place
        ahead.keep(key, DATA)
    assert ahead.take((epoch, window)) is DATA
    assert ahead.acknowledge(Place(epoch, window + 1))
    return ahead.take_news() is not None


def test_tight_run_acknowledges_each_window_and_slice() -> None:
    ahead = Ahead(Cursor(), 5, leads_on=True)
    assert [consume(ahead, number) for number in range(5)] == [True] * 5
    assert ahead.take_news() is None, "nothing is reported twice"
    ahead.acknowledge(Place(1, 0, 2))
    assert ahead.take_news() == Place(1, 0, 2)


def test_next_request_acknowledges_a_window_if_the_run_holds_more() -> None:
    ahead = Ahead(Cursor(), 5, leads_on=True, extra_windows=2)
    assert not consume(ahead, 0)
    assert ahead.next() == (0, 3), "as many are fetched as are buffered, and one more"
    assert ahead.ask((0, 3)) == Place(0, 1)
    assert ahead.take_news() is None, "the request has reported it"


def test_unrequested_windows_are_acknowledged_after_two() -> None:
    ahead = Ahead(Cursor(), 5, leads_on=True, extra_windows=2)
    ahead.ask((0, 0))
    places = []
    for window in range(1, 7):
        ahead.acknowledge(Place(0, window) if window < 6 else Place(1, 1))
        places.append(ahead.take_news() is not None)
    assert places == [False, False, True, False, False, True]


def test_windows_after_the_last_request_are_acknowledged_at_once() -> None:
    ahead = Ahead(Cursor(), 5, leads_on=False, extra_windows=2)
    # the last request is sent when the second window is acknowledged
    assert [consume(ahead, number) for number in range(5)] == [False, False, True, True, True]
    ahead.open(Cursor(1), leads_on=False)
    assert not consume(ahead, 5)


def test_idle_client_has_acknowledged_its_progress() -> None:
    ahead = Ahead(Cursor(), 5, leads_on=True, extra_windows=2)
    assert not consume(ahead, 0)
    ahead.release()
    assert ahead.take_news() is not None
    ahead.acknowledge(Place(0, 2))
    assert ahead.take_news() is not None
    ahead.want((0, 2))
    ahead.acknowledge(Place(0, 3))
    assert ahead.take_news() is None


def test_leaving_the_last_epoch_sends_pending_acknowledgements() -> None:
    ahead = Ahead(Cursor(), 4, leads_on=False, extra_windows=4)
    ahead.ask((0, 0))
    ahead.ask((0, 1))
    ahead.acknowledge(Place(1, 0))
    assert ahead.take_news() == Place(1, 0)


def test_waiting_client_acknowledges_what_it_has_consumed() -> None:
    ahead = Ahead(Cursor(), 5, leads_on=True, extra_windows=2)
    assert not consume(ahead, 0)
    assert ahead.take_news(waits=True) == Place(0, 1)
    assert ahead.take_news(waits=True) is None


def test_windows_that_have_been_passed_are_not_held() -> None:
    ahead = Ahead(Cursor(), 5, leads_on=True, extra_windows=2)
    ahead.keep((0, 0), DATA)
    ahead.keep((0, 1), DATA)
    ahead.want((0, 2))
    assert ahead.next() == (0, 2)
    ahead.acknowledge(Place(1, 0))
    assert ahead.fetched == {}
    assert ahead.next() == (1, 0), "nor is a window that was waited for before"
    ahead.keep((0, 2), DATA)
    assert ahead.fetched == {}


def test_released_runs_are_fetched_on_request() -> None:
    ahead = Ahead(Cursor(), 5, leads_on=False)
    ahead.fetched[0, 0] = DATA
    assert ahead.take((0, 0)) is DATA
    ahead.fetched[0, 1] = DATA
    ahead.release()
    assert ahead.fetched == {}
    assert ahead.next() is None
    ahead.want((0, 0))
    assert ahead.next() == (0, 0)


def test_parts_are_gathered_until_all_are_here() -> None:
    fetching = fetch_window(0, 0, 0)
    assert next(fetching) == Ask()
    first = reply(1, slices=2)
    assert fetching.send(("a-0", first)) == Load(first, 2.0)
    assert fetching.send(first) == Ask("a-0", frozenset({1}))
    assert fetching.send(None) == Ask("a-0", frozenset({1})), "no answer: ask again"
    fetching.send(("a-0", reply(0, slices=2)))
    with pytest.raises(StopIteration) as end:
        fetching.send(reply(0, slices=2))
    data: Any = end.value.value
    assert data.slices == [("part 0, slice 0", "part 1, slice 0"), ("part 0, slice 1", "part 1, slice 1")]
    assert data.user_warnings == ["(1,)", "(0,)"]


def test_parts_of_another_attempt_are_void() -> None:
    fetching = fetch_window(0, 0, 0)
    next(fetching)
    fetching.send(("a-0", reply(0)))
    fetching.send(reply(0))
    fetching.send(("b-0", reply(1)))
    assert fetching.send(reply(1)) == Ask("b-0", frozenset({1}))


def test_lost_runs_are_requested_with_backoff() -> None:
    fetching = fetch_window(0, 0, 0)
    next(fetching)
    fetching.send(("a-0", reply(0)))
    fetching.send(reply(0))
    pauses = []
    for number in range(1, 30):
        fetching.send(("a-0", reply(1)))
        pause = fetching.send(Lost(OSError("lost")))
        assert isinstance(pause, Pause)
        pauses.append(pause.seconds)
        # from time to time, a new attempt is requested
        assert next(fetching) == Ask("", frozenset(), "a-0" if number % 10 == 0 else "")
    assert pauses[:7] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    fetching.send(("a-0", reply(1)))
    with pytest.raises(StallError, match=r"shard 0: map outputs .* were lost 30 times .*lost"):
        fetching.send(Lost(OSError("lost")))


def test_silent_runs_are_requested_again_with_longer_timeouts() -> None:
    fetching = fetch_window(0, 0, 0)
    patience, abandoned = [], []
    step: Any = next(fetching)
    for _ in range(7):
        abandoned.append(step.lost)
        assert step == Ask("", frozenset(), step.lost)
        load = fetching.send(("a-0", reply(0)))
        assert isinstance(load, Load)
        patience.append(load.patience_seconds)
        step = fetching.send(UNHEARD)
    assert patience == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    # after half a minute, a new attempt is requested
    assert abandoned == ["", "", "", "", "a-0", "a-0", "a-0"]
