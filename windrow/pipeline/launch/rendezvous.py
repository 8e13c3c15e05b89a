"""How the ranks of a job exchange small values: torch's store, with waits that name the ranks that are missing."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from datetime import timedelta
from functools import partial
from typing import Any

from windrow.core.errors import PlanError, StallError
from windrow.core.user_warnings import warn_user
from windrow.io.storage.retries import call_ahead
from windrow.pipeline.executors.base import Waiting, is_distributed

_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
_GRACE_SECONDS = 1.0
_POLL_SECONDS = 0.02
_MAX_POLL_SECONDS = 0.5


def has_store() -> bool:
    """Whether `find_store` finds one; does not import torch."""
    if is_distributed():
        return True
    has_address = all(os.environ.get(name) for name in _ADDRESS)
    return has_address and importlib.util.find_spec("torch") is not None


def find_store(rank: int, world_size: int, waiting: Waiting) -> Any | None:
    """The store of torch.distributed, or one at MASTER_ADDR:MASTER_PORT; None if there is neither.

    Where torch.distributed is not initialised yet, the store is the one that ``init_process_group`` will
    use: the launcher's, or one that rank 0 serves. Raises a `PlanError` if it cannot be reached.
    """
    if not has_store():
        return None
    import torch.distributed as distributed
    from torch.distributed.rendezvous import rendezvous

    if is_distributed():
        return distributed.distributed_c10d._get_default_store()
    if not distributed.is_available():
        return None
    url = f"env://?rank={rank}&world_size={world_size}"

    def join() -> Any:
        store, _, _ = next(rendezvous(url, timeout=timedelta(seconds=waiting.fail_seconds)))
        return store

    seconds = waiting.fail_seconds + _GRACE_SECONDS
    try:
        # in a thread, since torch's client waits without a bound for a server that accepts and says nothing
        (joined,) = call_ahead([join], 1, "windrow-store")
        if not wait([joined], seconds).done:
            raise TimeoutError(f"the process that listens there has not answered for {seconds:,.0f} s")
        return joined.result()
    except (RuntimeError, ValueError, TimeoutError) as error:  # torch.distributed.DistError is a RuntimeError
        address = ":".join(os.environ.get(name, "") for name in _ADDRESS)
        raise PlanError(
            f"rank {rank} cannot use the store of the job at MASTER_ADDR:MASTER_PORT = {address}: "
            f"{_first_line(error)}. If another process uses this port, start the job with another one "
            "(torchrun --master-port, or MASTER_PORT)"
        ) from error


class Rendezvous:
    """Values that the ranks of a job publish for each other, under keys of their own in a store."""

    def __init__(self, store: Any, rank: int, world_size: int, prefix: str) -> None:
        from torch.distributed import distributed_c10d

        self._store = distributed_c10d.PrefixStore(prefix, store)
        self.rank = rank
        self.world_size = world_size

    def under(self, prefix: str) -> Rendezvous:
        """The same with other keys."""
        return Rendezvous(self._store, self.rank, self.world_size, prefix)

    def publish(self, key: str, value: Mapping[str, Any]) -> None:
        """Publish a value of JSON types."""
        self._call(lambda: self._store.set(key, json.dumps(value)))

    def publish_first(self, key: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Publish a value of JSON types, unless a rank has done so before; returns what is published."""
        return json.loads(self._call(lambda: self._store.compare_set(key, "", json.dumps(value))))

    def is_first(self, key: str) -> bool:
        """Whether this is the first of all ranks to ask for ``key``."""
        return bool(self._call(lambda: self._store.add(key, 1)) == 1)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Those of the keys that nobody has published."""
        return [key for key in keys if not self._call(partial(self._store.check, [key]))]

    def read(self, key: str) -> dict[str, Any]:
        """A value that has been published."""
        return json.loads(self._call(lambda: self._store.get(key)))

    def wait(self, keys: Sequence[str], waiting: Waiting, describe: Callable[[], str]) -> None:
        """Wait until all keys are published; warns during a long wait, and finally raises a `StallError`.

        ``describe`` returns what waits for what.
        """
        began, pause, warned = time.monotonic(), _POLL_SECONDS, False
        left = list(keys)
        while left := self.missing(left):
            seconds = time.monotonic() - began
            if seconds >= waiting.fail_seconds:
                raise StallError(f"{describe()} for {seconds:,.0f} s")
            if seconds >= waiting.warn_seconds and not warned:
                warned = True
                warn_user(f"{describe()} for {seconds:,.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, _MAX_POLL_SECONDS)

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise StallError(
                f"rank {self.rank} has lost the store through which ranks find each other: {_first_line(error)}. "
                "The process that serves it has ended, usually rank 0 or the launcher: see its output"
            ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
