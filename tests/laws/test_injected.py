"""An exception at every call of the driver and of prefetch threads leads to an error that names it, not a hang."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.laws.injected import CALLERS, CASES


@pytest.mark.ray_at_night
@pytest.mark.timeout(900)
@pytest.mark.parametrize("executor", CALLERS)
@pytest.mark.parametrize(
    ("name", "calls"),
    [pytest.param(name, "two", marks=pytest.mark.nightly) for name in CASES],
)
def test_error_at_every_call_is_reported(name: str, calls: str, executor: str) -> None:
    # tracing and the double of Ray affect the whole process
    done = subprocess.run(
        [sys.executable, "-m", "tests.laws.injected", name, executor, calls],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4_000:]
