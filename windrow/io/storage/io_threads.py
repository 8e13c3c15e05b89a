"""Blocking object storage calls, run on daemon threads of their own."""

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
    """Start calls in order on at most ``lanes`` threads; calls that have not started can be cancelled.

    ``then`` adds one more future, the last: its call starts when all others have returned, and fails with
    their error if one of them fails. The threads exit after the last call. They are daemon threads, so that a
    hanging request does not keep the process alive.

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
        # a running thread must not keep references to earlier results
        del future, call
