"""Calls of a function as Ray tasks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from windrow.core.errors import PlanError


def test_what_was_begun_ends_undisturbed_where_another_call_fails(ray_local: Any, tmp_path: Path) -> None:
    """An interrupt in the middle of an import would break the module for all later tasks of the worker."""
    from windrow.pipeline.executors.ray.calling import call_on_ray

    def call(name: str) -> None:
        if name == "fails":
            deadline = time.monotonic() + 60
            while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            raise PlanError("on purpose")
        (tmp_path / "begun").touch()
        for _ in range(100):
            time.sleep(0.02)
        (tmp_path / "ended").touch()

    with pytest.raises(PlanError, match="on purpose"):
        call_on_ray(call, ["works", "fails"], str)
    assert (tmp_path / "ended").exists()
