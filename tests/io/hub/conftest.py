"""A hub on loopback with a dataset of Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hub_server import Hub, open_hub

REPO = "datasets/me/trips"
URL = f"hf://{REPO}"
ROWS = 3_000
DESCRIPTIONS = {"README.md": b"# Trips\n", ".gitattributes": b"*.parquet\n", "dataset_infos.json": b"{}"}


def parquet(first: int, rows: int = ROWS, columns: int = 8) -> bytes:
    """A file of numbers that do not compress, in three row groups."""
    values = np.random.Generator(np.random.Philox(first)).random((columns, rows))
    table = pa.table(
        {"x": np.arange(first, first + rows), **{f"c{at}": row for at, row in enumerate(values)}}
    )
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=rows // 3, use_dictionary=False, compression="none")
    return out.getvalue()


def trips(first: int = 0) -> dict[str, bytes]:
    """The files of a commit: two of one split, and one of another."""
    names = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test.parquet"]
    return {**DESCRIPTIONS, **{name: parquet(first + at * ROWS) for at, name in enumerate(names)}}


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    with open_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub, empty, for a user without a token; downloads would go to an empty folder."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("windrow.io.storage.hub._ANSWERS", {})
    server.clear()
    yield server
    assert not (tmp_path / "cache").exists(), "files were downloaded"
