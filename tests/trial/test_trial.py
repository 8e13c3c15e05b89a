"""The trial by fault: of a run whose limit is planted, `stats()` names the cause, and its fix makes the run faster.

What is planted takes ten times as long as all the rest, mostly by sleeping, so that a busy machine changes little.
"""

from __future__ import annotations

from typing import Any

import pytest

import windrow
from tests.trial.runs import ROWS, SlowStore, read, sleeping, write_rows
from windrow.pipeline.coordinator.stats import Stats


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("trial") / "rows.parquet")


def shuffled(dataset: Any, epochs: int = 2, windows: int = 4, **options: Any) -> Any:
    pipe = dataset.window(blocks_per_window=16 // windows).repeat(epochs)
    return pipe.random_shuffle_each_window(seed=7).options(executor="threads", **options)


def by_row_group(path: str, **arguments: Any) -> Any:
    return windrow.read_parquet(path, target_block_bytes=1, **arguments)


def check(limited: Stats, cause: str, fix: str, fixed: Stats, share: float = 0.5) -> None:
    """The sentence names the cause and the fix, and with that the run takes less than a share of the time."""
    found = limited.bottleneck
    assert found.cause == cause, str(limited)
    assert fix in found.sentence
    assert str(limited).endswith(found.sentence)
    assert fixed.rows == limited.rows
    assert fixed.trainer.seconds < share * limited.trainer.seconds, f"{limited}\n\n{fixed}"


def test_a_slow_store(path: str) -> None:
    # the first epoch reads, and with the cache the other seven do not
    source = by_row_group("/rows.parquet", filesystem=SlowStore(0.1, path))
    limited = read(shuffled(source, epochs=8))
    fixed = read(shuffled(source, epochs=8, cache="memory"))
    check(limited, "storage", 'options(cache="memory")', fixed)
    assert limited.run.profile.requests >= 8 * 16
    assert fixed.run.profile.requests < limited.run.profile.requests / 4


def test_a_slow_transform(path: str) -> None:
    def pipe(batch_size: int | None) -> Any:
        return shuffled(by_row_group(path).map_batches(sleeping(0.02), batch_size=batch_size))

    check(read(pipe(100)), "transform", "batch_size=None", read(pipe(None)))


def test_a_slow_collate_fn(path: str) -> None:
    def make_tensors(batch: Any) -> Any:
        return sleeping(0.02)(batch)["c0"].sum()

    limited = read(shuffled(by_row_group(path)), batch_size=200, collate_fn=make_tensors)
    moved = shuffled(by_row_group(path).map_batches(sleeping(0.02)))
    fixed = read(moved, batch_size=200, collate_fn=lambda batch: batch["c0"].sum())
    check(limited, "collate", "map_batches()", fixed)


def test_too_little_memory(path: str) -> None:
    # reading a window takes as long as consuming one, so they can overlap if two fit into memory
    dataset = windrow.read_parquet(path, target_block_bytes=1).map_batches(sleeping(0.05))
    pipe = shuffled(dataset, epochs=2, windows=4)
    print(pipe.explain())


def test_the_trainer_itself(path: str) -> None:
    limited = read(shuffled(by_row_group(path)), work_seconds=0.05)
    check(limited, "trainers", "make the training step faster", read(shuffled(by_row_group(path))))
    assert limited.rows == ROWS * 2
