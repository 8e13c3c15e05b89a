"""``python -m bench shapes``: data that is always the same, and an exit status that says what is missed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.cli import main
from bench.commands.observability import compare_pairs
from bench.data.shapes import SHAPES, Layout, Shape, find_files
from bench.shapes.command import summarize_shape


@pytest.mark.parametrize("name", ["nulls", "text", "structs"])
def test_data_is_always_the_same(tmp_path: Path, name: str) -> None:
    one, two = (find_files(name, tmp_path / folder, 1_000_000) for folder in ("one", "two"))
    assert len(one) == 8
    assert pa.concat_tables(map(pq.read_table, one)).equals(pa.concat_tables(map(pq.read_table, two)))
    assert find_files(name, tmp_path / "one", 1_000_000) == one
    # the files differ
    assert not pq.read_table(one[0]).equals(pq.read_table(one[1]))


def test_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(map(SHAPES["hive-files"].layout.path, range(20_000)))) == 20_000
    for name, layout in {
        "hive-files": Layout(12, 1, 5, folders=3),
        "large-group": Layout(1, 1, 900, parts=3),
        "small-file": Layout(1, 11, 20),
    }.items():
        monkeypatch.setitem(cast(dict[str, Shape], SHAPES), name, replace(SHAPES[name], layout=layout))
        paths = find_files(name, tmp_path, 10**9)
        # nothing else is left in the folder
        assert sorted(map(str, (tmp_path / name).rglob("*.*"))) == sorted(paths)
        metadata = [pq.read_metadata(path) for path in paths]
        groups = [each.row_group(at).num_rows for each in metadata for at in range(each.num_row_groups)]
        assert groups == [layout.rows] * (layout.files * layout.groups)
        keys = pa.concat_tables(pq.read_table(path, partitioning=None) for path in paths)
        assert keys.group_by(keys.column_names).aggregate([]).num_rows == len(keys)
    folders = [Path(path).parent.name for path in find_files("hive-files", tmp_path, 10**9)]
    assert folders == ["day=0"] * 4 + ["day=1"] * 4 + ["day=2"] * 4


@pytest.mark.timeout(120)
def test_shapes_with_a_layout_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "out.json"
    layouts = {"hive-files": Layout(12, 1, 5, folders=3), "large-group": Layout(1, 1, 900, parts=3)}
    for name, layout in layouts.items():
        monkeypatch.setitem(cast(dict[str, Shape], SHAPES), name, replace(SHAPES[name], layout=layout))
    options = ["--shapes", ",".join(layouts), "--rounds", "1", "--epochs", "1"]
    main(["shapes", *options, "--folder", str(tmp_path / "data"), "--json", str(written)])
    found = json.loads(written.read_text())["shapes"]
    for name, rows in (("hive-files", 60), ("large-group", 900)):
        assert [each["rows"] for some in found[name].values() for each in some] == [rows, rows]
        assert found[name]["threads"][0]["plan_seconds"] > 0
    assert "plan s" in capsys.readouterr().out


@pytest.mark.timeout(120)
def test_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "out.json"
    options = ["--shapes", "nulls,tokens,structs", "--size", "1MB", "--rounds", "1", "--epochs", "1"]
    options += ["--folder", str(tmp_path / "data")]
    main(["shapes", *options, "--json", str(written)])
    printed = capsys.readouterr().out
    found = json.loads(written.read_text())["shapes"]
    assert {name: list(systems) for name, systems in found.items()} == {
        name: ["scan", "threads"] for name in ("nulls", "tokens", "structs")
    }, printed
    errors = [
        each for systems in found.values() for some in systems.values() for each in some if "error" in each
    ]
    assert not errors
    rows = {
        name: {each["rows"] for some in systems.values() for each in some if "rows" in each}
        for name, systems in found.items()
    }
    assert all(len(counts) == 1 for counts in rows.values()), rows


def test_what_measuring_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "out.json"
    options = ["--shapes", "nulls", "--size", "1MB", "--pairs", "2", "--epochs", "1"]
    assert main(["observability", *options, "--folder", str(tmp_path), "--json", str(written)]) in (0, 1)
    pairs = json.loads(written.read_text())["pairs"]["nulls threads"]
    assert len(pairs["on"]) == len(pairs["off"]) == 2, capsys.readouterr().out


def test_cost_is_that_of_pairs() -> None:
    # a pair on a slow machine has the same weight
    assert compare_pairs([1.1, 11.0], [1.0, 10.0]) == pytest.approx((0.1, 0.0))
    # one that something else disturbed has none
    assert compare_pairs([1.1, 1.1, 5.0, 1.1, 1.1], [1.0] * 5)[0] == pytest.approx(0.1)
    cost, error = compare_pairs([1.2, 1.0] * 50, [1.0] * 100)
    assert cost == pytest.approx(0.1)
    assert 0.005 < error < 0.05


def _measured(cpu_seconds: float) -> list[dict[str, Any]]:
    return [{"rows": 5, "seconds": 2 * cpu_seconds, "cpu_seconds": cpu_seconds}] * 3


def test_what_is_judged_is_threads_to_arrow() -> None:
    asked = SHAPES["plain"].asked
    scan = {"scan": _measured(1.0)}
    for cpu_seconds, met in ((0.99 / asked, True), (1.01 / asked, False)):
        rows, is_met = summarize_shape("plain", {**scan, "threads": _measured(cpu_seconds)})
        assert is_met == met
        assert rows[1][4] == rows[1][5] == f"{1 / cpu_seconds:.2f}"


@pytest.mark.parametrize(("command", "option"), [("shapes", "--shapes"), ("observability", "--executor")])
def test_unknown_names_are_errors(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, option, "nothing"]) == 2
    assert f"argument {option}: nothing: choose from" in capsys.readouterr().err
