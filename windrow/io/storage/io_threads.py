"""Calls that wait for a store, made in threads of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

__all__ = ["call_ahead"]


def call_ahead(
    calls: Sequence[Callable[[], Any]], lanes: int, name: str, *, then: Callable[[], Any] | None = None
) -> list[Future[Any]]:
    """Make calls in order, so many at once; what has not begun can be cancelled.

    With ``then`` there is one more future, the last: its call is made when all others have
    returned, and fails as one of them where one does. The threads end with the last call.
    They are daemons: a store that hangs keeps no process alive.

    Examples
    --------
    >>> [future.result() for future in call_ahead([lambda: 1, lambda: 2], 8, "lane", then=lambda: 3)]
    [1, 2, 3]
    """
    futures: list[Future[Any]] = [Future() for _ in calls]
    waiting = deque(zip(futures, calls, strict=True))
    threads = min(lanes, len(calls))
    if then is not None:
        futures.append(Future())
        waiting.append((futures[-1], _after(futures, then)))
        threads += 1
    for _ in range(threads):
        threading.Thread(target=_work, args=(waiting,), name=name, daemon=True).start()
    return futures


def _after(futures: list[Future[Any]], then: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        *others, _ = futures
        wait(others)
        for other in others:
            other.result()
        return then()

    return call


def _work(waiting: deque[tuple[Future[Any], Callable[[], Any]]]) -> None:
    while waiting:
        try:
            future, call = waiting.popleft()
        except IndexError:
            return
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        # a thread that goes on must not keep what it has brought
        del future, call
