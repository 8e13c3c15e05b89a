"""Scripts that read ten times the object store of the Ray that they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import RAY_ENVIRONMENT, REPOSITORY
from tests.library_versions import RAY_UNCLOSED

__all__ = ["COLUMNS", "NOTHING_SPILLED", "ROWS", "run_script"]

# of the `wide` fixture: 1 GB decoded
ROWS, COLUMNS = 8_000_000, 16

# the end of a script
NOTHING_SPILLED = """
import glob
from pathlib import Path

logs = ray._private.worker._global_node.get_session_dir_path() + "/logs/"
for name in glob.glob(logs + "raylet*.out"):
    assert "Spilled" not in Path(name).read_text()
assert not glob.glob(logs + "*spill_worker*"), "a worker was started to spill"
print("done", flush=True)
"""


def run_script(script: str, folder: Path, *arguments: str, timeout: float) -> tuple[str, str]:
    """Run a script in a process of its own, with warnings as errors; returns what it printed and its errors."""
    path = folder / "script.py"
    path.write_text(script)
    filters = [f"-W{each}" for each in ("error", *RAY_UNCLOSED)]
    done = subprocess.run(
        [sys.executable, *filters, str(path), *arguments],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", **RAY_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder,
        check=False,
    )
    return done.stdout, done.stderr
