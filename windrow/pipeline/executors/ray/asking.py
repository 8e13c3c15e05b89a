"""Talking to the coordinator: telling, asking with patience, and saying why it is gone."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any

import ray

from windrow.core.errors import StallError
from windrow.pipeline.failures import Failure
from windrow.pipeline.waiting import Waiting

__all__ = ["LOOK_SECONDS", "Questions", "ask", "ask_until", "await_some", "explain_loss", "get_all", "tell"]

LOOK_SECONDS = 1.0


class Questions:
    """What one reader has asked the coordinator and has heard no answer to.

    Ray has a coordinator that is restarted hear it once more, whoever waits for the answer yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refs: list[Any] = []

    def add(self, ref: Any) -> None:
        """Something has been asked."""
        with self._lock:
            self._refs.append(ref)

    def answered(self, ref: Any) -> None:
        """Its answer has been heard."""
        with self._lock:
            self._refs = [other for other in self._refs if other != ref]

    def await_answers(self, seconds: float) -> bool:
        """Wait so long at most; returns whether nothing is left, as it is after ray.shutdown().

        Answers that nobody has waited for are let go of, with what they hold.
        """
        with self._lock:
            refs = list(self._refs)
        if not refs or not ray.is_initialized():
            return True
        ready, left = ray.wait(refs, num_returns=len(refs), timeout=seconds)
        with self._lock:
            self._refs = [ref for ref in self._refs if ref not in ready]
        return not left


def tell(method: Any, *args: Any) -> Any:
    """Say something that needs no answer; after ray.shutdown() there is nobody to hear it.

    Returns the reference to what is done about it, or None.
    """
    return method.remote(*args) if ray.is_initialized() else None


def ask(ref: Any, who: str) -> Any:
    """Wait for the coordinator's answer; warn, and in the end fail, when none comes."""
    waiting = Waiting()
    for limit_seconds in (waiting.warn_seconds, waiting.fail_seconds - waiting.warn_seconds):
        try:
            return _unwrap(ref, who, limit_seconds)
        except ray.exceptions.GetTimeoutError:
            warnings.warn(f"{who} still waits for the coordinator to answer", RuntimeWarning, stacklevel=2)
    raise StallError(
        f"{who} has waited {waiting.fail_seconds:,.0f} s for the coordinator, an actor that needs no CPU: "
        "is the node of the process that called split() alive?"
    )


def ask_until(ref: Any, who: str, stopped: threading.Event) -> Any:
    """Wait for the coordinator's answer; None when ``stopped`` is set first."""
    while not stopped.is_set():
        try:
            return _unwrap(ref, who, LOOK_SECONDS)
        except ray.exceptions.GetTimeoutError:
            continue
    return None


def await_some(refs: Sequence[Any], who: str) -> tuple[list[Any], list[Any]]:
    """Wait until at least one of several objects is ready; returns those that are, and the rest.

    Raises
    ------
    StallError
        If none is ready for as long as a stall may last; a warning comes first.
    """
    waiting = Waiting()
    for limit_seconds in (waiting.warn_seconds, waiting.fail_seconds - waiting.warn_seconds):
        ready, left = ray.wait(list(refs), num_returns=1, timeout=limit_seconds)
        if ready and left:
            also, left = ray.wait(left, num_returns=len(left), timeout=0)
            ready += also
        if ready:
            return ready, left
        text = (
            f"{who} still waits for Ray: none of {len(refs):,} tasks or objects has become ready; "
            f"CPUs free: {ray.available_resources().get('CPU', 0):g} of {ray.cluster_resources().get('CPU', 0):g}"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    raise StallError(
        f"{text}, for {waiting.fail_seconds:,.0f} s: see that nodes are alive and have CPUs that nothing else holds"
    )


def get_all(refs: Sequence[Any], who: str) -> list[Any]:
    """Get objects as they become ready; raises as `await_some`, and what Ray raises of those lost."""
    values: dict[Any, Any] = {}
    left = list(dict.fromkeys(refs))
    while left:
        ready, left = await_some(left, who)
        values.update(zip(ready, ray.get(ready), strict=True))
    return [values[ref] for ref in refs]


def _unwrap(ref: Any, who: str, limit_seconds: float) -> Any:
    try:
        answer = ray.get(ref, timeout=limit_seconds)
    except ray.exceptions.RayActorError as error:
        raise explain_loss(who, error) from error
    if isinstance(answer, Failure):
        answer.rethrow()
    return answer


def explain_loss(who: str, error: ray.exceptions.RayActorError) -> StallError:
    """Say why a coordinator does not answer, and what helps."""
    if error.actor_init_failed:
        return StallError(
            f"{who} has no coordinator: it could not start. The usual reason is a module of the source or "
            f"of a transform that Ray's workers cannot import: install it there, or give it with "
            f"ray.init(runtime_env=...).\n{error}"
        )
    return StallError(
        f"{who} has lost the coordinator: {error}. It lives as long as the process that called split(): "
        "keep that process, and its Ray session, alive"
    )
