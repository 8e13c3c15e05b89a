"""Without the compiled libraries the order is the same; explain(), stats() and one warning report it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windrow.core.native_libraries import missing_libraries

SCRIPT = """
import importlib.util, json, sys, warnings
real = importlib.util.find_spec
hidden = {"windrow.io.parquet._decode", "windrow.shuffle.kernels._kernels"} if sys.argv[2] == "hidden" else set()
importlib.util.find_spec = lambda name, package=None: None if name in hidden else real(name, package)
import windrow
pipe = windrow.read_parquet(sys.argv[1]).repeat(2).random_shuffle_each_window(seed=3)
pipe = pipe.options(executor="threads", progress=False)
with warnings.catch_warnings(record=True) as warned, pipe.iterator() as shard:
    warnings.simplefilter("always")
    rows = [[x for batch in epoch.iter_batches(7) for x in batch["x"].tolist()] for epoch in shard.iter_epochs()]
    missing = shard.stats().run.missing_libraries
print(json.dumps([rows, missing, str(pipe.explain()), [str(each.message) for each in warned]]))
"""


@pytest.mark.skipif(bool(missing_libraries()), reason="built without a C compiler")
def test_slow_path_is_reported(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(1_000), "s": [f"text {n}" for n in range(1_000)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    rows: list[Any] = []
    missing: list[Any] = []
    explained: list[Any] = []
    warned: list[Any] = []
    for which in ("hidden", "there"):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), which]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=170)
        for found, each in zip((rows, missing, explained, warned), json.loads(done.stdout), strict=True):
            found.append(each)
    assert rows[0] == rows[1]
    assert missing == [["windrow.io.parquet._decode", "windrow.shuffle.kernels._kernels"], []]
    (line,) = warned[0]
    assert "windrow.io.parquet._decode and windrow.shuffle.kernels._kernels cannot be loaded" in line
    assert f"warning  {line}" in explained[0].splitlines()
    assert warned[1] == []
    assert "cannot be loaded" not in explained[1]
