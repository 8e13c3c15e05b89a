"""A Spark session with two threads, for all tests of Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dataset.sources.spark.spark_session import SESSION


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Yield a Spark session with two threads."""
    if subprocess.run(["java", "-version"], capture_output=True).returncode:
        pytest.skip("Spark needs Java")
    # workers must run this interpreter; in local mode, no session setting selects it
    os.environ["PYSPARK_PYTHON"] = sys.executable
    names: dict[str, Any] = {}
    exec(SESSION, names)
    yield names["spark"]
    names["spark"].stop()


@pytest.fixture
def functions() -> Any:
    from pyspark.sql import functions

    return functions
