"""Decides which executor a job runs on."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import cast

from windrow.core.optional_dependencies import require
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.job import CustomExecutor, Job, Resources


def resolve_executor(executor: str | CustomExecutor) -> Executor:
    """Return the executor for an option: ``"auto"`` means Ray if this process has initialised it, else threads."""
    if not isinstance(executor, str):
        return cast(Executor, executor)
    if executor == "ray" or (executor == "auto" and ray_is_initialized()):
        require("ray", "ray", 'executor="ray"')
        from windrow.pipeline.executors.ray.executor import RayExecutor

        return RayExecutor()
    return ThreadsExecutor()


def find_resources(job: Job) -> Resources:
    """Return what the executor of a job offers, and with ``"auto"`` why it was chosen; starts nothing."""
    resources = resolve_executor(job.options.executor).resources(job.launch)
    if job.options.executor != "auto":
        return resources
    reason = "Ray is initialised" if ray_is_initialized() else "Ray is not initialised"
    return replace(resources, executor=f"{resources.executor} (auto: {reason})")


def ray_is_initialized() -> bool:
    """Whether this process has initialised Ray; does not import Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(getattr(ray, "is_initialized", bool)())
