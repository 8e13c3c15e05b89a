"""``windrow timeline``: the file is the one that `Timeline.save` writes, and appears whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import windrow
from windrow.cli import timeline as module
from windrow.cli.main import main
from windrow.pipeline.timeline.timeline import Timeline


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    pipe = windrow.range(400, block_rows=50).window(blocks_per_window=2).repeat(2)
    pipe = pipe.random_shuffle_each_window(seed=7).options(executor="threads")
    for _ in pipe.iter_batches(batch_size=100):
        pass
    return pipe.timeline()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, timeline: Timeline) -> dict[str, Any]:
    """Take the place of the cluster: returns what it answers, as it has come through JSON."""
    answer: dict[str, Any] = {"id": "5ec0ffee", "spans": [span._asdict() for span in timeline.spans]}
    answer = json.loads(json.dumps(answer))

    class FakeCluster:
        def spans(self, pipeline: str | None) -> dict[str, Any]:
            answer["asked"] = pipeline
            return answer

    @contextmanager
    def watching(address: str | None) -> Iterator[FakeCluster]:
        yield FakeCluster()

    monkeypatch.setattr(module, "watching", watching)
    return answer


def test_the_file_is_that_of_the_pipeline(
    fake: dict[str, Any], timeline: Timeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, own = tmp_path / "out" / "run.json", tmp_path / "own.json"
    target.parent.mkdir()
    assert main(["timeline", "here:1", str(target), "--pipeline", "ffee"]) == 0
    assert fake["asked"] == "ffee"
    timeline.save(own)
    assert target.read_bytes() == own.read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["run.json"]
    assert target.stat().st_mode == own.stat().st_mode
    said = capsys.readouterr().out
    assert str(timeline) in said
    assert "pipeline 5ec0ffee: open it at https://ui.perfetto.dev" in said


def test_json_names_the_file(
    fake: dict[str, Any], timeline: Timeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "run.JSON"
    assert main(["timeline", "here:1", str(target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"pipeline": "5ec0ffee", "file": str(target), "spans": len(timeline.spans)}


def test_spans_of_another_version_may_have_other_fields(fake: dict[str, Any], tmp_path: Path) -> None:
    for span in fake["spans"]:
        del span["source"], span["phases"]
        span["of the future"] = 1
    assert main(["timeline", "here:1", str(tmp_path / "run.json")]) == 0


def test_a_file_that_cannot_be_written_keeps_what_it_had(
    fake: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "run.json"
    target.write_bytes(b"before")

    def fail(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[:10].encode())
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", fail)
    assert main(["timeline", "here:1", str(target)]) == 1
    assert "disk full" in capsys.readouterr().err
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("run.xyz", "cannot be saved as 'run.xyz'"),
        ("none/run.json", "none/run.json: there is no such directory"),
    ],
)
def test_a_bad_name_is_an_error_before_anything_connects(
    file: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "watching", None)
    assert main(["timeline", "here:1", file]) == 1
    assert said in capsys.readouterr().err


def test_a_pipeline_without_spans_has_no_timeline(
    fake: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake["spans"] = []
    assert main(["timeline", "here:1", str(tmp_path / "run.json")]) == 1
    assert "options(profile=False)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
