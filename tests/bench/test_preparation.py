"""``python -m bench preparation``: all systems give the same rows, and missed targets change the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.preparation.command import Case, summarize_part
from bench.preparation.systems import load_rows, make_files, prepare

_TINY = ["preparation", "--images", "24", "--text", "24", "--rounds", "1", "--epochs", "1"]


def _run(seconds: float, total: float = 5.0, **more: float) -> list[dict[str, Any]]:
    return [{"rows": 1_000, "seconds": seconds, "cpu_seconds": 2 * seconds, "total": total, **more}] * 3


def _measure(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    written = folder / "out.json"
    main([*_TINY, "--folder", str(folder), "--json", str(written), *options])
    printed = capsys.readouterr().out
    assert "not every system" not in printed
    found: list[dict[str, Any]] = json.loads(written.read_text())["results"]
    assert all("error" not in each for case in found for each in case["rounds"]), printed
    assert {each["rows"] for case in found for each in case["rounds"]} == {24}
    return found


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_functions_after_the_shuffle_beside_bare_threads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--parts", "images", "--systems", "threads,windrow-threads", "--places", "after", "--work"]
    bare, *prepared = _measure(tmp_path, capsys, *options)
    assert (bare["system"], len(prepared)) == ("threads", 4)
    assert "waited" not in bare["rounds"][0]
    assert all(0 <= case["rounds"][0]["waited"] <= 1 for case in prepared)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_every_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _measure(tmp_path, capsys, "--compute", "none,processes,pool")
    assert len(found) == 2 * (4 + 2 * 12)


def test_generated_rows_are_as_large_as_they_say(tmp_path: Path) -> None:
    folders = {part: str(make_files(part, 40, tmp_path)) for part in ("images", "text")}
    sizes = {part: sum(map(len, load_rows(folder))) / 40 for part, folder in folders.items()}
    assert 20_000 < sizes["images"] < 25_000
    assert 800 < sizes["text"] < 1_200
    image = prepare({"data": load_rows(folders["images"])[:1]}, "images", folders["images"])["values"]
    assert (image.shape, image.dtype) == ((1, 224, 224, 3), "uint8")
    assert image.std() > 20
    tokens = prepare({"data": load_rows(folders["text"])[:2]}, "text", folders["text"])["values"]
    assert tokens.shape == (2, 512)
    made = make_files("text", 40, tmp_path) / "part-0.parquet"
    written = made.stat().st_mtime_ns
    make_files("text", 40, tmp_path)
    assert made.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        ({"processes": _run(1.0), "windrow": _run(1.1)}, ""),
        ({"processes": _run(1.0), "windrow": _run(1.2)}, "0.83 of bare processes"),
        ({"torch": _run(1.2), "windrow": _run(1.1)}, "1.09 of torch's DataLoader"),
        ({"ray": _run(4.0), "windrow": _run(1.0)}, "4.00 of Ray Data"),
        ({"processes": _run(1.0), "windrow": _run(1.0, waited=0.04)}, "4.0% waited"),
        ({"windrow": _run(9.0, waited=0.02)}, ""),
    ],
)
def test_what_is_missed(found: dict[str, Any], missed: str) -> None:
    cases = {Case(name): measured for name, measured in found.items() if name != "windrow"}
    own, slow = (Case("windrow-threads", "after", compute) for compute in ("processes", "none"))
    rows, texts, errors = summarize_part("images", {**cases, own: found["windrow"], slow: _run(60.0)})
    assert texts == ([f"images, windrow-threads, after, processes ({missed})"] if missed else [])
    assert (len(rows), errors) == (len(found) + 1, [])


def test_ratios_are_those_of_a_round() -> None:
    bare = [_run(seconds)[0] for seconds in (1.0, 2.0, 3.0)]
    own = [_run(seconds)[0] for seconds in (2.0, 4.0, 3.0)]
    case = Case("windrow-ray", "before", "pool", 2)
    _, row = summarize_part("text", {Case("processes"): bare, case: own})[0]
    assert row == (
        *("text", "windrow-ray", "before", "pool", "2", "333", "0.50", "0.50", "1.00", "0.67", "-", "-", "-"),
    )


def test_other_rows_and_failures_are_errors() -> None:
    found = {
        Case("processes"): _run(1.0),
        Case("torch"): _run(1.0, total=6.0),
        Case("ray", "after"): [{"error": "no CPU"}],
    }
    failed, differing = summarize_part("text", found)[2]
    assert failed == "text, ray, after: no CPU"
    assert differing.startswith("text: not every system gives the same rows")


def test_bad_options_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preparation", "--parts", "sound"]) == 2
    assert "argument --parts: sound: choose from images, text" in capsys.readouterr().err
    assert main(["preparation", "--compute", "fibers"]) == 2
    assert main(["preparation", "--epochs", "0"]) == 2
