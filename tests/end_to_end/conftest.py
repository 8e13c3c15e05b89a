"""Fixtures of the end-to-end tests: both executors, and a small dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.data import write_trips, write_wide
from tests.end_to_end.small_store import COLUMNS, ROWS


@pytest.fixture(params=["threads", pytest.param("ray", marks=pytest.mark.ray)])
def executor(request: pytest.FixtureRequest) -> str:
    """The name of each executor, ready to run."""
    if request.param == "ray":
        request.getfixturevalue("ray_local")
    return str(request.param)


@pytest.fixture(scope="session")
def trips_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of three files with 6 row groups each and 18,000 rows in total."""
    return write_trips(tmp_path_factory.mktemp("trips"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1 GB of decoded data in row groups of 2.56 MB."""
    path = tmp_path_factory.mktemp("wide") / "wide.parquet"
    return write_wide(path, ROWS, columns=COLUMNS, row_group_size=20_000)
