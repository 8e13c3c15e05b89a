"""Runs as Python starts, in child processes too, if its folder is on PYTHONPATH: see `tests.systems.foreign`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from tests.systems.foreign import install_from_environment

install_from_environment()
