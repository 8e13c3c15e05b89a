"""premix: every row once in another order, schema and codec kept, and an interrupted write goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.cli import premix
from windrow.cli.main import main
from windrow.io.sinks.arrow_sinks import ParquetSink

SMALL = ["--file-bytes", "60KB"]


def rows_of(folder: Path) -> list[int]:
    return [int(row["row"]) for row in windrow.read_parquet(folder).iter_rows()]


def test_rows_are_mixed_and_everything_else_is_kept(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mixed"
    assert main(["premix", str(data), str(target), "--seed", "3", "--json", *SMALL]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert (found["rows"], found["compression"], found["seed"]) == (12_000, "zstd", 3)
    files = sorted(target.glob("*.parquet"))
    assert len(files) == found["files"] > 3
    assert f"{len(files)} of {len(files)} files written" in output.err
    delivered = rows_of(target)
    assert sorted(delivered) == list(range(12_000))
    assert delivered == [
        int(row["row"]) for row in windrow.read_parquet(data).random_shuffle(seed=3).iter_rows()
    ]
    # each file holds rows of all labels
    for file in files:
        assert len(np.unique(pq.read_table(file)["label"])) == 12
        assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"
    before, after = windrow.read_parquet(data).schema(), windrow.read_parquet(target).schema()
    assert after.equals(before, check_metadata=True)


def test_interrupted_premix_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, write, calls = tmp_path / "mixed", ParquetSink.write, []

    def write_some(sink: ParquetSink, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 2:
            raise KeyboardInterrupt
        write(sink, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "write", write_some)
        assert main(["premix", str(data), str(target), "--quiet", *SMALL]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    kept = {path: path.stat().st_mtime_ns for path in target.glob("*.parquet")}
    assert kept
    # another seed would mix two orders
    assert main(["premix", str(data), str(target), "--quiet", "--seed", "1", *SMALL]) == 1
    assert "give an empty target, or the arguments that began it" in capsys.readouterr().err
    assert main(["premix", str(data), str(target), "--quiet", *SMALL]) == 0
    assert sorted(rows_of(target)) == list(range(12_000))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    # a premix that has ended is left as it is
    stamps = {path: path.stat().st_mtime_ns for path in target.iterdir()}
    assert main(["premix", str(data), str(target), "--quiet", *SMALL]) == 0
    assert {path: path.stat().st_mtime_ns for path in target.iterdir()} == stamps


# dies in the n-th write of a file to the target: of a part, its marker or the manifest
_DIE = """
import os, signal, sys
from windrow.cli.main import main
from windrow.io.sinks.store import LocalStore

put, calls = LocalStore.put, []

def put_or_die(store, relative, fill):
    calls.append(relative)
    dies = sys.argv[2] in (str(len(calls)), relative.partition("-")[0])

    def fill_or_die(stream):
        fill(stream)
        if dies and sys.argv[1] == "before":
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    put(store, relative, fill_or_die)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)

LocalStore.put = put_or_die
main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("moment", "write"),
    [
        ("before", "1"),
        pytest.param("after", "3", marks=pytest.mark.nightly),
        pytest.param("before", "_manifest", marks=pytest.mark.nightly),
        pytest.param("after", "_manifest", marks=pytest.mark.nightly),
    ],
)
def test_killed_premix_goes_on(moment: str, write: str, data: Path, tmp_path: Path) -> None:
    target, spill = tmp_path / "mixed", tmp_path / "spill"
    spill.mkdir()
    command = ["premix", str(data), str(target), "--quiet", "--spill-dir", str(spill), *SMALL]
    killed = subprocess.run(
        [sys.executable, "-c", _DIE, moment, write, *command], capture_output=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    marked = {json.loads(path.read_text())["files"][0]["path"] for path in target.glob("_part-*.json")}
    kept = {path: path.stat().st_mtime_ns for path in target.glob("*.parquet") if path.name in marked}
    if write == "_manifest":
        assert set(kept) == set(target.glob("*.parquet"))
    assert main(command) == 0
    # every row once, in the order of a run that nothing interrupts
    expected = [int(row["row"]) for row in windrow.read_parquet(data).random_shuffle(seed=0).iter_rows()]
    assert rows_of(target) == expected
    assert sorted(expected) == list(range(12_000))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert list(spill.iterdir()) == []
    # a temporary file of a killed write stays, since another process could be writing it; readers skip it
    left = {path.name for path in target.iterdir() if not path.name.startswith(".")}
    assert {name.partition("-")[0] for name in left} == {"part", "_manifest"}


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("data", "are both"),
        ("data/../data/", "are both"),
        ("data/inside", "the target"),
        (".", "the source"),
    ],
)
def test_target_apart_from_the_source(
    place: str, problem: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(data.rglob("*"))
    assert main(["premix", str(data), str(tmp_path / place)]) == 1
    error = capsys.readouterr().err
    assert problem in error
    assert "give a target beside the source" in error
    assert sorted(data.rglob("*")) == before


def test_target_beside_globbed_files(data: Path, tmp_path: Path) -> None:
    inside = data / "mixed"
    assert (
        main(["premix", f"{data}/part-0[01].parquet", str(inside), "--quiet", "--compression", "snappy"]) == 0
    )
    (file,) = inside.glob("*.parquet")
    assert pq.read_metadata(file).row_group(0).column(0).compression == "SNAPPY"
    assert sorted(rows_of(inside)) == list(range(2_000))


def test_other_formats_become_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "numbers.csv").write_text("x\n1\n2\n3\n")
    assert main(["premix", str(tmp_path / "numbers.csv"), str(tmp_path / "out"), "--quiet"]) == 0
    assert "3 rows in 1 files" in capsys.readouterr().out
    assert sorted(row["x"] for row in windrow.read_parquet(tmp_path / "out").iter_rows()) == [1, 2, 3]


@pytest.mark.nightly
def test_order_on_ray_is_the_same(ray_local: Any, data: Path, tmp_path: Path) -> None:
    for executor in ("ray", "threads"):
        target = str(tmp_path / executor)
        assert (
            main(["premix", str(data), target, "--quiet", "--seed", "3", "--executor", executor, *SMALL]) == 0
        )
    assert rows_of(tmp_path / "ray") == rows_of(tmp_path / "threads")


def test_spills_are_deleted(data: Path, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    assert main(["premix", str(data), str(tmp_path / "out"), "--quiet", "--spill-dir", str(spill)]) == 0
    assert list(spill.iterdir()) == []
    assert main(["premix", str(data), str(tmp_path / "out2"), "--spill-dir", str(tmp_path / "none")]) == 1


def test_progress_is_shown_meanwhile(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(premix, "_LOG_SECONDS", 0.01)
    write = ParquetSink.write

    def write_slowly(sink: ParquetSink, *arguments: Any) -> None:
        time.sleep(0.05)
        write(sink, *arguments)

    monkeypatch.setattr(ParquetSink, "write", write_slowly)
    assert main(["premix", str(data), str(tmp_path / "mixed"), *SMALL]) == 0
    lines = capsys.readouterr().err.splitlines()
    written = [int(line.split("divided, ")[1].split(" of ")[0]) for line in lines]
    assert written == sorted(written)
    assert len(set(written)) > 2
