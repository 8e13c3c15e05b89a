"""Merging the states of several shards into one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import windrow
from tests.end_to_end.data import write_numbers
from windrow import PlanError, Shard, StateError, merge_state_dicts
from windrow.pipeline.checkpoint.state import parse_state


def states(path: Path, *steps: int, **given: Any) -> list[dict[str, Any]]:
    """The state of each shard after its number of steps of 10 rows."""
    pipe = windrow.read_parquet(str(path), target_block_bytes=1, **given).repeat(3)
    shards = pipe.random_shuffle_each_window(seed=1).options(executor="threads").split(len(steps))
    readings = [(shard, _steps(shard)) for shard in shards]
    for (_, reading), count in zip(readings, steps, strict=True):
        for _ in range(count):
            next(reading)
    found = [shard.state_dict() for shard in shards]
    for shard in shards:
        shard.close()
    return found


def _steps(shard: Shard) -> Iterator[None]:
    for epoch in shard.iter_epochs():
        for _ in epoch.iter_batches(10):
            yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_numbers(tmp_path / "x.parquet", 600)


def test_states_of_the_same_step_merge(path: Path) -> None:
    saved = states(path, 3, 3)
    assert merge_state_dicts(saved) == saved[0] == saved[1]
    assert merge_state_dicts(saved[:1], "repeat") == saved[0]


def test_states_of_different_steps_repeat_or_skip_rows(path: Path) -> None:
    first, second, third = saved = states(path, 4, 2, 3)
    with pytest.raises(
        StateError, match=r"state 1 is at row 60 of epoch 0, state 0 at row 120 of epoch 0.*repeat"
    ):
        merge_state_dicts(saved)
    with pytest.warns(RuntimeWarning, match=r"60 rows, from row 60 of epoch 0 to row 120 .* read again"):
        assert merge_state_dicts(saved, "repeat") == second
    with pytest.warns(RuntimeWarning, match=r"60 rows, from row 60 of epoch 0 to row 120 .* left out"):
        assert merge_state_dicts([third, *saved], on_mismatch="skip") == first


def test_warning_counts_rows_across_epochs_if_known(path: Path) -> None:
    saved = states(path, 32, 29)
    assert [state["epoch"] for state in saved] == [1, 0]
    with pytest.warns(RuntimeWarning, match=r"^60 rows, from row 580 of epoch 0 to row 40 of epoch 1"):
        merge_state_dicts(saved, "repeat")
    saved = states(path, 32, 29, filter=pc.field("x") + pc.field("y") >= 0)
    with pytest.warns(RuntimeWarning, match=r"^from row 580 of epoch 0 to row 40 of epoch 1"):
        merge_state_dicts(saved, "repeat")


def test_invalid_merges_are_rejected(path: Path, tmp_path: Path) -> None:
    saved = states(path, 1, 1)
    other = states(write_numbers(tmp_path / "y.parquet", 600), 1)
    with pytest.raises(StateError, match=r"states 0 and 2 are of different streams:\n +state 0 +state 2\n"):
        merge_state_dicts([*saved, *other])
    with pytest.raises(StateError, match="no states to merge"):
        merge_state_dicts([])
    with pytest.raises(StateError, match="not a state of windrow"):
        merge_state_dicts([{}])
    with pytest.raises(PlanError, match="on_mismatch='newest' must be one of 'error', 'repeat', 'skip'"):
        merge_state_dicts(saved, "newest")  # type: ignore[arg-type]


def test_states_of_one_step_must_have_skipped_the_same_blocks(path: Path) -> None:
    (saved,) = states(path, 3)
    skipped = [replace(parse_state(saved), corrupt=blocks).to_dict() for blocks in ((), (1,), (1, 2))]
    assert merge_state_dicts([skipped[1], skipped[1]]) == skipped[1]
    for one, other in combinations(skipped, 2):
        for pair in ([one, other], [other, one]):
            with pytest.raises(StateError, match=r"blocks \[.*\] were skipped as corrupt in one"):
                merge_state_dicts(pair)


def test_blocks_can_be_skipped_at_a_later_step_only(path: Path) -> None:
    earlier, later = (parse_state(state) for state in states(path, 2, 4))
    with pytest.warns(RuntimeWarning, match="left out"):
        merged = merge_state_dicts([earlier.to_dict(), replace(later, corrupt=(1,)).to_dict()], "skip")
    assert merged == replace(later, corrupt=(1,)).to_dict()
    with pytest.raises(StateError, match=r"blocks \[1\] were skipped as corrupt in one"):
        merge_state_dicts([replace(earlier, corrupt=(1,)).to_dict(), later.to_dict()], "skip")
