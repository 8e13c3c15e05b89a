"""Ray's object store as Ray itself reports it: what is pinned, and what was spilled."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

__all__ = ["StoreUse", "StoreWatch", "describe_spilled", "read_spilled"]

_POLL_SECONDS = 0.05
_SPILLED = re.compile(r"Spilled (\d+) MiB, (\d+) objects")


@dataclass(frozen=True)
class StoreUse:
    """The object store of one run.

    ``peak_bytes`` is the most that was pinned, None where nobody watched. ``spilled_bytes``
    is what Ray reported, which may lag behind; it is 0 only if nothing was spilled.
    """

    size_bytes: int
    peak_bytes: int | None
    spilled_bytes: int


class StoreWatch:
    """Watches the store of a local Ray session.

    Parameters
    ----------
    session
        Ray's folder of the session.
    size_bytes
        The size of the store.
    polls
        Whether a thread asks Ray for the pinned bytes all the time, which takes about
        2 % of a core.
    """

    def __init__(self, session: Path, size_bytes: int, *, polls: bool) -> None:
        self._session = session
        self._size_bytes = size_bytes
        self._peak_bytes: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="store watch")
        if polls:
            self._thread.start()

    def end(self) -> StoreUse:
        """Watch no longer; call it while Ray still runs."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        return StoreUse(self._size_bytes, self._peak_bytes, read_spilled(self._session))

    def _run(self) -> None:
        import ray

        while not self._stop.wait(_POLL_SECONDS):
            free = ray.available_resources().get("object_store_memory", 0)
            self._peak_bytes = max(self._peak_bytes or 0, self._size_bytes - int(free))


def read_spilled(session: Path) -> int:
    """Bytes that the raylets' logs say were spilled, at least one where an object was."""
    spilled = 0
    for log in session.glob("logs/raylet*.out"):
        told = _SPILLED.findall(log.read_text(errors="replace"))
        spilled += max((max(1, int(mib) * 2**20) for mib, _ in told), default=0)
    # A worker that spills is started before the first object is, and the log may come later.
    return spilled or int(any(session.glob("logs/*spill_worker*")))


def describe_spilled(spilled_bytes: int) -> str:
    """In MiB; a little is not nothing."""
    return "<1" if 0 < spilled_bytes < 2**20 else f"{spilled_bytes / 2**20:,.0f}"
