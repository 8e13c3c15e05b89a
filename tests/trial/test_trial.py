"""The trial by fault: of a run whose limit is planted, `stats()` names the cause, and its fix makes the run faster.

What is planted takes several times as long as all the rest, mostly by sleeping, so that a busy machine changes little.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.trial.runs import ROWS, SlowStore, check, read, sleeping, write_rows
from windrow.pipeline.executors.threads import ThreadsExecutor


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("trial") / "rows.parquet")


def shuffled(dataset: Any, epochs: int = 2, blocks: int = 4, **options: Any) -> Any:
    pipe = dataset.window(blocks_per_window=blocks).repeat(epochs).random_shuffle_each_window(seed=7)
    return pipe.options(executor=ThreadsExecutor(workers=2), **options)


def by_row_group(path: str, **arguments: Any) -> Any:
    return windrow.read_parquet(path, target_block_bytes=1, **arguments)


def test_a_slow_store(path: str) -> None:
    # with the cache, only the first of eight epochs reads
    source = by_row_group("/rows.parquet", filesystem=SlowStore(0.1, path))
    limited = read(shuffled(source, epochs=8))
    fixed = read(shuffled(source, epochs=8, cache="memory"))
    check(limited, "storage", 'options(cache="memory")', fixed)
    assert limited.run.profile.requests >= 8 * 16
    assert fixed.run.profile.requests < limited.run.profile.requests / 4


def test_a_slow_decode(tmp_path: Path) -> None:
    # text at zstd level 22, of which a filter needs all and few rows are left, in one window
    letters = np.random.RandomState(0).randint(97, 113, (50, 500)).astype(np.uint8)
    words = [bytes(row).decode() for row in letters]
    text = [words[row % 50] + words[row * 7 % 50] for row in range(16_000)]
    table = pa.table({"row": range(16_000), "text": text})
    pq.write_table(
        table, tmp_path / "0.parquet", compression="zstd", compression_level=22, use_dictionary=False
    )
    for number in range(1, 16):
        shutil.copy(tmp_path / "0.parquet", tmp_path / f"{number}.parquet")
    found = pc.ends_with(pc.field("text"), words[3][-9:])
    source = by_row_group(str(tmp_path), columns=["row"], filter=found)
    limited = read(shuffled(source, epochs=12, blocks=16))
    fixed = read(shuffled(source, epochs=12, blocks=16, cache="memory"))
    check(limited, "decode", 'options(cache="memory")', fixed, by="computing")


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


def test_too_little_memory(tmp_path: Path) -> None:
    # consuming a window takes longer than reading one, so reading hides behind it if two fit into memory
    path = write_rows(tmp_path / "rows.parquet", columns=4, rows=500_000)
    source = by_row_group(path).map_batches(sleeping(0.1))
    limited, fixed = (
        read(shuffled(source, memory_limit=limit), work_seconds=0.08, batch_size=25_000)
        for limit in ("47MiB", "1GiB")
    )
    check(limited, "memory", "memory_limit", fixed)


def test_the_trainer_itself(path: str) -> None:
    limited = read(shuffled(by_row_group(path)), work_seconds=0.05)
    check(
        limited,
        "trainers",
        "make the training step faster",
        read(shuffled(by_row_group(path))),
        by="training",
    )
    assert limited.rows == 2 * ROWS
