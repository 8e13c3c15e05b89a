"""Ray on this machine alone, and the use of its object store as Ray reports it: pinned and spilled bytes."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.05
_SPILLED = re.compile(r"Spilled (\d+) MiB, (\d+) objects")


@dataclass(frozen=True)
class ObjectStoreUse:
    """Use of the object store in one run.

    ``peak_bytes`` is the peak of pinned bytes, None if it was not polled. ``spilled_bytes``
    is reported by Ray and may lag behind; it is 0 only if nothing was spilled.
    """

    size_bytes: int
    peak_bytes: int | None
    spilled_bytes: int


def start_ray(store_bytes: int, cpus: int | None = None, *, frees_early: bool = True) -> Any:
    """Start a Ray of its own; returns its context."""
    import ray

    return ray.init(
        address="local",  # never join another cluster on this machine
        num_cpus=cpus,
        object_store_memory=store_bytes,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        # free dead objects after 50 ms instead of 1 s; see "Tuning Ray" in the README
        _system_config={"free_objects_period_milliseconds": 50} if frees_early else None,
    )


class ObjectStoreMonitor:
    """Monitors the object store of a local Ray session.

    Parameters
    ----------
    session
        Folder of the Ray session.
    size_bytes
        Size of the object store.
    polls
        Whether a thread polls Ray for the pinned bytes, which takes about
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

    def end(self) -> ObjectStoreUse:
        """Stop monitoring; call it while Ray is still running."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        return ObjectStoreUse(self._size_bytes, self._peak_bytes, read_spilled(self._session))

    def _run(self) -> None:
        import ray

        while not self._stop.wait(_POLL_SECONDS):
            free = ray.available_resources().get("object_store_memory", 0)
            self._peak_bytes = max(self._peak_bytes or 0, self._size_bytes - int(free))


def read_spilled(session: Path) -> int:
    """Spilled bytes according to the raylets' logs; at least 1 if an object was spilled."""
    spilled = 0
    for log in session.glob("logs/raylet*.out"):
        reported = _SPILLED.findall(log.read_text(errors="replace"))
        spilled += max((max(1, int(mib) * 2**20) for mib, _ in reported), default=0)
    # a spill worker starts before the first object is spilled, and the log line may follow later
    return spilled or int(any(session.glob("logs/*spill_worker*")))


def describe_spilled(spilled_bytes: int) -> str:
    """Format spilled bytes in MiB; less than one is shown as "<1"."""
    return "<1" if 0 < spilled_bytes < 2**20 else f"{spilled_bytes / 2**20:,.0f}"
