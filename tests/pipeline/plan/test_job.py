"""Options are validated on construction, and a single epoch uses no cache unless it persists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dataset.example_sources import make_source
from windrow.core.errors import PlanError
from windrow.pipeline.plan.job import Job, Options


@pytest.mark.parametrize(
    "bad",
    [
        {"executor": "spark"},
        {"memory_limit": "8"},
        {"memory_limit": 0},
        {"prefetch_windows": -1},
        {"prefetch_windows": 1.5},
        {"prefetch_windows": True},
        {"on_error": "ignore"},
        {"progress": "always"},
        {"profile": 1},
        {"cache": "gpu"},
        {"cache_limit": "8", "cache": "disk"},
        {"cache_limit": "8GiB"},
        {"cache_dir": 7, "cache": "disk"},
        {"cache_dir": "/here"},
        {"cache_dir": "/here", "cache": "memory"},
        {"keep_cache": 1, "cache": "disk"},
        {"keep_cache": True, "cache": "memory"},
        {"keep_cache": True, "cache": "disk"},
        {"stall_timeout": 0},
        {"stall_timeout": -1.0},
        {"stall_timeout": float("inf")},
        {"stall_timeout": float("nan")},
        {"stall_timeout": True},
        {"stall_timeout": "60"},
    ],
)
def test_error_names_the_bad_option(bad: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(bad))):
        Options(**bad)


def test_limits_are_parsed_to_bytes() -> None:
    assert Options(memory_limit="1KiB").memory_bytes == 1024
    assert Options().memory_bytes is None
    assert Options(cache="memory", cache_limit="2KiB").cache_bytes == 2048
    assert Options(cache="memory").cache_bytes is None


def test_single_epoch_caches_blocks_only_with_keep_cache(tmp_path: Path) -> None:
    source = make_source(10)
    assert Job(source, epochs=1, options=Options(cache="memory")).cache is None
    assert Job(source, epochs=None, options=Options(cache="memory")).cache == "memory"
    stay = Options(cache="disk", cache_dir=tmp_path, keep_cache=True)
    assert Job(source, epochs=1, options=stay).cache == "disk"
