"""Reads a dataset through shuffled windows: every row once in each epoch, and a state in the middle resumes."""

from __future__ import annotations

from typing import Any

from tests.io.formats.lines_of import all_rows
from windrow.dataset.dataset import Dataset

__all__ = ["check_passes"]


def check_passes(ds: Dataset, batches_before: int, batch_rows: int = 5) -> None:
    """Check two epochs, and that a state after some batches gives the rest of them."""
    pipe = ds.window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=3)
    pipe = pipe.options(executor="threads", progress=False)
    with pipe.iterator() as shard:
        epochs = [
            _rows(epoch.iter_batches(batch_rows, batch_format="pyarrow")) for epoch in shard.iter_epochs()
        ]
    stored = sorted(map(repr, all_rows(ds)))
    assert [sorted(map(repr, rows)) for rows in epochs] == [stored, stored]
    assert len(stored) < 10 or epochs[0] != epochs[1]
    with pipe.iterator() as shard:
        before: list[Any] = []
        for epoch in shard.iter_epochs():
            for number, batch in enumerate(epoch.iter_batches(batch_rows, batch_format="pyarrow")):
                before += batch.to_pylist()
                if number + 1 == batches_before:
                    break
            state = shard.state_dict()
            break
    with pipe.iterator(state_dict=state) as shard:
        after = [
            _rows(epoch.iter_batches(batch_rows, batch_format="pyarrow")) for epoch in shard.iter_epochs()
        ]
    assert before + [row for rows in after for row in rows] == epochs[0] + epochs[1]


def _rows(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]
