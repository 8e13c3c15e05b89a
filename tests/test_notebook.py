"""The notebook of the documentation runs, and shows what is stored in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests import notebooks
from tests.conftest import REPOSITORY

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
pytest.importorskip("pandas")


def _kinds(notebook: Any) -> list[list[Any]]:
    """For each cell, what kinds of output it has."""
    return [
        [sorted(output.get("data", [output.get("name")])) for output in cell.get("outputs", [])]
        for cell in notebook.cells
    ]


def _find(notebook: Any, source: str) -> Any:
    (cell,) = [cell for cell in notebook.cells if cell.source.startswith(source)]
    return cell.outputs


def test_it_runs_and_shows_what_is_stored(tmp_path: Path) -> None:
    stored = nbformat.read(notebooks.NOTEBOOK, as_version=4)
    found = notebooks.execute(tmp_path)
    assert _kinds(found) == _kinds(stored), "python -m tests.notebooks renews the outputs"
    for source in ("dataset.take_batch", "try:", "with pipe.iterator() as shard:\n    for step"):
        assert _find(found, source) == _find(stored, source)
    for source in ("import windrow", "pipe = "):
        (here,), (there,) = _find(found, source), _find(stored, source)
        assert here.data["text/html"].replace(str(tmp_path), "/data") == there.data["text/html"]
    *progress, _ = _find(found, "import time")
    assert [re.findall(r"epoch ./2 · step [\d/]+", each.data["text/plain"]) for each in progress] == [
        ["epoch 1/2 · step 160/160"],
        ["epoch 2/2 · step 160/160"],
    ]
    (timeline,) = _find(found, "timeline")
    assert "<svg" in timeline.data["text/html"]


def test_stored_outputs_name_no_folder_of_a_machine() -> None:
    text = notebooks.NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 150_000
    for folder in ("/tmp/", "/home/", str(REPOSITORY)):
        assert folder not in text
