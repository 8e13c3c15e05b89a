"""Makes Ray export functions and classes to its workers, after RayDP has switched that off."""

from __future__ import annotations

import ray

__all__ = ["export_code"]


def export_code() -> None:
    """Make Ray export functions and classes from this process again, if RayDP has switched that off.

    RayDP sets ``load_code_from_local`` for its calls into Java, and leaves it set in this process and in
    workers that are reused later. With it, Ray does not export anything that can be imported. Workers without
    the switch look only for exported code, so an actor of such a process never starts there.
    """
    worker = ray._private.worker.global_worker
    if getattr(worker, "load_code_from_local", False):
        worker.set_load_code_from_local(False)
