"""Nothing that an Arrow file holds ends the process: batches, lists and unions without values."""

from __future__ import annotations

import subprocess
import sys

from tests.io.formats.read_empty import MAKERS


def test_columns_without_values_are_read_by_every_way() -> None:
    command = [sys.executable, "-m", "tests.io.formats.read_empty"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, f"{run.stdout[-500:]}\n{run.stderr[-2000:]}"
    assert len(run.stdout.splitlines()) == 2 * len(MAKERS)
