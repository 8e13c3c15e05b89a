"""What the tests of Spark share: the session, processes that start one, and staged files."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import windrow

MARKS = [
    # pandas 3 is newer than what PySpark has been tested with
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SESSION = """
from pyspark.sql import SparkSession, functions as F
spark = (
    SparkSession.builder.master("local[2]").appName("windrow")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "1g")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
"""


def stages(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def rows(dataset: windrow.Dataset) -> list[dict[str, Any]]:
    return sorted(dataset.to_arrow().to_pylist(), key=lambda row: str(next(iter(row.values()))))


def with_windrow() -> dict[str, str]:
    """Return an environment in which a child process imports the same windrow as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run_python(code: str, *, check: bool = True, **arguments: Any) -> subprocess.CompletedProcess[str]:
    warnings = "import warnings; warnings.simplefilter('ignore')\n"
    command = [sys.executable, "-c", warnings + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=500, **arguments)
