"""What must work on every system, as a program that prints its results; ``hidden``: without the compiled libraries."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__: list[str] = []

_LIBRARIES = {"windrow.io.parquet._decode", "windrow.shuffle.kernels._kernels"}


def _hide_libraries() -> None:
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name in _LIBRARIES else find(name, package)
    # each run says so once
    warnings.filterwarnings("ignore", message="windrow's compiled libraries", category=RuntimeWarning)


def _add_one(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "x": batch["x"] + 1}


def run(folder: Path) -> dict[str, Any]:
    """Use windrow in a folder; returns values that are the same on every system."""
    import windrow
    from windrow.cli.main import main

    for part in range(4):
        rows = np.arange(part * 250, (part + 1) * 250)
        table = pa.table({"x": rows, "text": [f"row {row}" * (row % 5) for row in rows], "key": rows % 7})
        (folder / "data").mkdir(exist_ok=True)
        pq.write_table(table, folder / "data" / f"part-{part}.parquet", row_group_size=50)
    found: dict[str, Any] = {}

    # quick looks, by a folder, a glob and a URL
    dataset = windrow.read_parquet(folder / "data")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        dataset.show(3)
        print(dataset.schema(), dataset.take(2))
        print(windrow.read_parquet(f"{folder}/data/part-*.parquet").count())
        print(windrow.read_parquet((folder / "data").as_uri()).take_batch(3, batch_format="pandas"))
    found["looks"] = shown.getvalue()

    # a shuffle, read in two parts, with each cache
    options: dict[str, dict[str, Any]] = {
        "none": {},
        "memory": {"cache": "memory"},
        "disk": {"cache": "disk", "cache_dir": folder / "cache"},
        "kept": {"cache": "disk", "cache_dir": folder / "kept", "keep_cache": True},
        "kept before": {"cache": "disk", "cache_dir": folder / "kept", "keep_cache": True},
    }
    for name, more in options.items():
        pipe = dataset.map_batches(_add_one).window(blocks_per_window=2).repeat(2)
        pipe = pipe.random_shuffle_each_window(seed=5).options(executor="threads", progress=False, **more)
        with pipe.iterator() as shard:
            batches = iter(shard.iter_batches(batch_size=64))
            read = [next(batches)["x"].tolist() for _ in range(5)]
            state = json.loads(json.dumps(shard.state_dict()))
        with pipe.iterator(state_dict=state) as shard:
            read += [batch["x"].tolist() for epoch in shard.iter_epochs() for batch in epoch.iter_batches(64)]
            run = shard.stats().run
        found[f"rows, cache {name}"] = read
        found[f"errors, cache {name}"] = [run.cache_errors, run.cache_corrupt_blocks]
        found[f"hits, cache {name}"] = run.cache_hits > 0
        del batches, shard, pipe
    found["cache"] = sorted(path.name for path in (folder / "cache").rglob("*"))

    # writing, again in another way, and going on
    for format in ("parquet", "csv", "json", "arrow"):
        target = folder / "out" / format
        write = getattr(dataset, f"write_{format}")
        write(target, target_file_bytes="4kB")
        write(target, mode="overwrite")
        write(folder / "resumed" / format, mode="resume")
        write(folder / "resumed" / format, mode="resume")
        kind: Any = getattr(windrow, f"read_{format}")
        for place in (target, folder / "resumed" / format):
            found[f"{format} in {place.parent.name}"] = sorted(row["x"] for row in kind(place).iter_rows())
    dataset.write_parquet(folder / "by", partition_by=["key"])
    found["files by key"] = sorted({path.parent.name for path in (folder / "by").rglob("*.parquet")})

    # rows that are spilled, and functions
    found["sorted"] = [row["x"] for row in dataset.sort("text").take(20)]
    found["groups"] = dataset.groupby("key").count().sort("key").take(20)
    found["mapped"] = dataset.map_batches(_add_one).take(5)
    try:
        in_processes = dataset.map_batches(_add_one, compute="processes")
        found["processes"] = sorted(row["x"] for row in in_processes.iter_rows()) == list(range(1, 1001))
    except windrow.PlanError as error:
        found["processes"] = str(error)
    with contextlib.redirect_stdout(io.StringIO()):
        found["doctor"] = main(["doctor", "--quick"])
        found["inspect"] = main(["inspect", str(folder / "data")])
    return found


if __name__ == "__main__":
    if sys.argv[2] == "hidden":
        _hide_libraries()
    _folder = Path(sys.argv[1])
    (_folder / "found.json").write_text(json.dumps(run(_folder), default=str), encoding="utf-8")
