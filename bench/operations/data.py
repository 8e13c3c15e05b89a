"""The generated table of ``operations``, and the functions that are mapped over its batches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data.files import make_once

# columns that the functions read
INPUTS = ("a", "b", "c", "d")
BATCH_ROWS = 65_536
INFERENCE_ROWS = 8_192
_FILES = 16
_GROUPS_OF_FILE = 2
_ROW_BYTES = 8 * 7
_KEYS = 10_000
_UNITS = 256
# the share of the files that inference reads: its model is slower than any reader
_INFERENCE_FILES = 6


def make_files(folder: Path, size_bytes: int, seed: int = 7) -> list[str]:
    """Write the table unless that was done before, and return its files in order."""
    rows = max(1, size_bytes // (_ROW_BYTES * _FILES * _GROUPS_OF_FILE))
    # whole batches of inference, where there is at least one: a short batch would change the rate
    rows = rows // INFERENCE_ROWS * INFERENCE_ROWS or rows
    home = folder / f"operations-{rows * _FILES * _GROUPS_OF_FILE}-rows-v1"

    def make(folder: Path) -> None:
        folder.mkdir()
        for number in range(_FILES):
            table = _make_table(np.random.default_rng((seed, number)), rows * _GROUPS_OF_FILE)
            pq.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=rows)

    make_once(home, make)
    return sorted(str(path.resolve()) for path in home.glob("*.parquet"))


def inference_files(paths: list[str]) -> list[str]:
    return paths[:_INFERENCE_FILES]


def _make_table(rng: np.random.Generator, rows: int) -> pa.Table:
    return pa.table(
        {
            "key": rng.integers(0, _KEYS, rows),
            "order": rng.integers(0, 2**62, rows),
            # whole numbers, so that sums are the same in every order
            "x": rng.integers(-1_000, 1_000, rows).astype(np.float64),
            **{name: rng.standard_normal(rows) for name in INPUTS},
        }
    )


def score(batch: dict[str, Any]) -> dict[str, Any]:
    a, b, c, d = (batch[name] for name in INPUTS)
    return {"score": np.tanh(a * b) + np.log1p(np.abs(c)) * np.sqrt(np.abs(d))}


def summarize(batch: dict[str, Any]) -> dict[str, Any]:
    """The same function; returns one row for each batch, so that next to nothing is written."""
    values = score(batch)["score"]
    return {"rows": np.array([len(values)]), "score": np.array([values.sum()])}


class Model:
    """A network of three layers, whose time for a batch does not depend on the values; one thread computes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._layers = [
            rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
            for shape in ((len(INPUTS), _UNITS), (_UNITS, _UNITS), (_UNITS, 1))
        ]
        # kept for all batches: page faults of new memory would not take a fixed time
        self._outputs = [
            np.zeros((INFERENCE_ROWS, layer.shape[1]), dtype=np.float32) for layer in self._layers
        ]

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a prediction for each row, and when the batch was done."""
        values = np.stack([batch[name] for name in INPUTS], axis=1).astype(np.float32)
        for layer, output in zip(self._layers, self._outputs, strict=True):
            values = np.matmul(values, layer, out=output[: len(values)])
            np.maximum(values, 0, out=values)
        return {"prediction": values[:, 0].copy(), "done": np.full(len(values), time.monotonic())}
