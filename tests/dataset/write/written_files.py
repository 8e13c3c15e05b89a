"""A small dataset to write, and what its files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import windrow
from windrow.dataset.dataset import Dataset
from windrow.io.sinks.written_manifest import WriteResult


def dataset(numbers: Path, **options: Any) -> Dataset:
    return windrow.read_parquet(numbers, target_block_bytes=1, **options).options(executor="threads")


def call(data: Any, method: str, path: Any, **options: Any) -> WriteResult:
    result: WriteResult = getattr(data, f"write_{method}")(path, **options)
    return result


def visible(folder: Path) -> list[str]:
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if not Path(name).name.startswith(("_", ".")))


def rows_of(folder: Path) -> list[int]:
    found: list[int] = windrow.read_parquet(folder).take_batch(10_000)["x"].tolist()
    return found
