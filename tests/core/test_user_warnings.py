"""Warnings point at the user's line, whichever of windrow's modules finds the reason."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import windrow
from windrow.core.user_warnings import warn_user


def fail(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 1:
        raise ValueError("one")
    return row


def write_failed_rows(folder: Path) -> None:
    windrow.range(3).map(fail).write_parquet(folder / "out", failed_rows=folder / "failed")


def read_unequal_shards(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windrow.pipeline.shard.connection._find_unequal_steps", lambda *_: ["unequal"])
        for _ in windrow.range(5).iter_batches(batch_size=1):
            pass


def merge_states(folder: Path) -> None:
    shards = windrow.range(20).repeat(1).split(2)
    batches = [shard.iter_batches(batch_size=2) for shard in shards]
    next(batches[0])
    windrow.merge_state_dicts([shard.state_dict() for shard in shards], on_mismatch="repeat")


@pytest.mark.parametrize("call", [write_failed_rows, read_unequal_shards, merge_states])
def test_a_warning_points_at_the_call(call: Callable[[Path], None], tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(tmp_path)
    found = [warning for warning in caught if issubclass(warning.category, RuntimeWarning)]
    assert found
    code = call.__code__
    for warning in found:
        assert warning.filename == code.co_filename
        assert code.co_firstlineno < warning.lineno < code.co_firstlineno + 7


def test_a_warning_of_a_thread_without_a_users_line_still_comes() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.warns(RuntimeWarning, match="from a thread"):
        threads.submit(warn_user, "from a thread").result()
