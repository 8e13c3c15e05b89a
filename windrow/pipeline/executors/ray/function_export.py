"""Functions and classes that other processes of Ray run: exported, whatever other libraries have set."""

from __future__ import annotations

import ray

__all__ = ["export_code"]


def export_code() -> None:
    """Have Ray export functions and classes from this process again, where RayDP has ended that.

    RayDP sets a switch for its calls into Java, and leaves it set, in this process and in workers that others
    use after it. With it, Ray exports nothing that could be imported; but where the switch is not set, workers
    look for what was exported alone. An actor that such a worker is to run never starts.
    """
    worker = ray._private.worker.global_worker
    if getattr(worker, "load_code_from_local", False):
        worker.set_load_code_from_local(False)
