"""``python -m bench operations``: all systems give the same rows, and missed targets change the exit status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench.cli import main
from bench.operations.command import OPERATIONS, summarize_operation
from bench.operations.systems import Model, make_files, score, summarize

_TINY = ["operations", "--size", "1MB", "--rounds", "1"]


def _run(seconds: float, total: float = 5.0, rows: int = 1_000) -> list[dict[str, Any]]:
    return [{"rows": rows, "seconds": seconds, "cpu_seconds": seconds, "total": total}] * 3


@pytest.mark.timeout(120)
def test_map_and_sort_on_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "out.json"
    options = ["--operations", "map,sort", "--executor", "threads", "--folder", str(tmp_path)]
    main([*_TINY, *options, "--json", str(written)])
    printed = capsys.readouterr().out
    found = json.loads(written.read_text())["operations"]
    assert list(found["map"]) == ["plain", "windrow-threads"], printed
    assert list(found["sort"]) == ["windrow-threads", "polars"], printed
    assert all(len(measured) == 1 for systems in found.values() for measured in systems.values())
    assert " rows, but " not in printed
    assert "gives" not in printed


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_every_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "out.json"
    main([*_TINY, "--peers", "polars,ray", "--folder", str(tmp_path), "--json", str(written)])
    printed = capsys.readouterr().out
    found = json.loads(written.read_text())["operations"]
    assert {name: len(systems) for name, systems in found.items()} == dict.fromkeys(OPERATIONS, 4), printed
    assert all(
        "error" not in each for systems in found.values() for runs in systems.values() for each in runs
    )
    assert "gives" not in printed


@pytest.mark.parametrize(
    ("name", "found", "missed"),
    [
        ("map", {"plain": _run(0.9), "windrow-threads": _run(1.0)}, []),
        (
            "map",
            {"plain": _run(0.8), "windrow-threads": _run(1.0)},
            ["map on windrow-threads (0.80 of plain loop)"],
        ),
        ("map", {"plain": _run(0.8), "windrow-ray": _run(1.0)}, []),
        (
            "inference",
            {"plain": _run(0.8), "windrow-ray": _run(1.0), "ray": _run(1.0)},
            ["inference on windrow-ray"],
        ),
        (
            "sort",
            {"windrow-threads": _run(3.1), "polars": _run(1.0)},
            ["sort on windrow-threads (0.32 of Polars)"],
        ),
        ("sort", {"windrow-ray": _run(1.0), "ray": _run(1.9)}, ["sort on windrow-ray (1.9 times Ray Data)"]),
        ("sort", {"windrow-threads": _run(9.0)}, []),
    ],
)
def test_what_is_missed(name: str, found: dict[str, Any], missed: Sequence[str]) -> None:
    summary = summarize_operation(name, found)
    assert len(summary.missed) == len(missed)
    assert all(text.startswith(start) for text, start in zip(summary.missed, missed, strict=True))
    assert not summary.errors


def test_other_rows_and_failures_are_errors() -> None:
    found = {
        "plain": _run(1.0),
        "windrow-threads": _run(1.0, total=5.1),
        "windrow-ray": [{"error": "no CPU"}],
    }
    errors = summarize_operation("map", found).errors
    assert errors[0] == "map, windrow-ray: no CPU"
    assert errors[1].startswith("map: windrow-threads gives 1000 rows, 5.1, but plain 1000 rows")


def test_functions_agree_and_files_are_reused(tmp_path: Path) -> None:
    paths = make_files(tmp_path, 10**6)
    assert make_files(tmp_path, 10**6) == paths
    table = pq.read_table(paths[0])
    batch = {name: table[name].to_numpy() for name in table.column_names}
    summary = summarize(batch)
    assert (summary["rows"][0], summary["score"][0]) == (len(table), score(batch)["score"].sum())
    model = Model()
    first, again = model(batch)["prediction"], model(batch)["prediction"]
    assert np.array_equal(first, again)
    assert first.any()


def test_bad_options_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operations", "--operations", "join"]) == 2
    assert "argument --operations: join: choose from map, " in capsys.readouterr().err
    assert main(["operations", "--peers", "spark"]) == 2
    assert main(["operations", "--rounds", "0"]) == 2
