"""Runs measurements in fresh processes, which start cold and leave no state behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["run_module"]


def run_module(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a module of this package; returns the JSON on the last line that it prints.

    Raises
    ------
    ValueError
        If it fails.
    """
    command = [sys.executable, "-m", f"bench.scale.{module}", *arguments]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{module} failed: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
