"""Ray on this machine alone, and the bytes that it spilled, as it reports them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SPILLED = re.compile(r"Spilled (\d+) MiB, (\d+) objects")


@dataclass(frozen=True)
class ObjectStoreUse:
    """Use of the object store in one run; ``spilled_bytes`` may lag behind, and is 0 only if nothing was spilled."""

    size_bytes: int
    spilled_bytes: int


def start_ray(store_bytes: int, cpus: int | None = None) -> Any:
    """Start it; what is returned is a context that ends it."""
    import ray

    return ray.init(
        address="local",  # never join another cluster on this machine
        num_cpus=cpus,
        object_store_memory=store_bytes,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        # free dead objects after 50 ms instead of 1 s; see "Tuning Ray" in the README
        _system_config={"free_objects_period_milliseconds": 50},
    )


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
