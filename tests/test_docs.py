"""The documentation: the Python blocks of each page run, and the torchrun script trains and resumes."""

from __future__ import annotations

import ast
import gc
import json
import os
import re
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.conftest import REPOSITORY
from tests.snippets import find_snippets, run_snippets

DOCS = REPOSITORY / "docs"
PAGES = {page.relative_to(DOCS).as_posix(): page for page in sorted(DOCS.rglob("*.md"))}
RUN = {name: page for name, page in PAGES.items() if find_snippets(page)}
ON_RAY = {name for name, page in RUN.items() if "import ray" in "".join(find_snippets(page))}
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
# libraries of extras that not everybody who runs the tests has installed
OPTIONAL = re.compile(r"^import (h5py|zarr)$", re.MULTILINE)
WRITING = re.compile(r"mkdir|makedirs|\bwrite_(?!table)")
REPORT = re.compile(r"rank \d+, epoch \d+: from step \d+ of \d+")


@pytest.mark.parametrize("name", sorted(set(RUN) - ON_RAY))
def test_snippets_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for library in OPTIONAL.findall("".join(find_snippets(RUN[name]))):
        pytest.importorskip(library)
    run_snippets(RUN[name])
    if WRITING.search("".join(find_snippets(RUN[name]))):
        # Readers run a page again, in the folder that it has filled. Nothing may still read the files that it
        # replaces: a mapped file that becomes shorter ends the process.
        wait_for_readers()
        run_snippets(RUN[name])


def wait_for_readers() -> None:
    """Wait until the shards that the page has dropped have closed, but not for what another test has left."""
    gc.collect()
    until = time.monotonic() + 20
    while time.monotonic() < until and any(
        thread.name.startswith("windrow") for thread in threading.enumerate()
    ):
        time.sleep(0.01)


# it starts several pools of actors, one after the other
SLOW = {"guides/batch-inference.md", "guides/mesh.md"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in SLOW else ()) for name in sorted(ON_RAY)]
)
def test_snippets_run_on_ray(
    ray_local: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_snippets(RUN[name])


def test_cards_link_to_pages() -> None:
    cards = re.findall(
        r"^:::\{grid-item-card\} .*\n((?:[^:].*\n|:\w.*\n)*)", PAGES["index.md"].read_text(), re.MULTILINE
    )
    assert cards
    for card in cards:
        assert re.match(r":link: (\S+)\n:link-type: doc\n[^:]", card), card
        assert f"{card.split()[1]}.md" in PAGES


def test_the_page_on_states_names_every_key() -> None:
    keys = re.findall(r"^\| (`.*?`) \|", PAGES["reference/state.md"].read_text(), re.MULTILINE)
    named = {key for cell in keys for key in re.findall(r"`(\w+)`", cell)}
    with windrow.range(3).repeat(1).iterator() as shard:
        assert named == {*shard.state_dict(), "mixture"}


@pytest.mark.parametrize("name", PAGES)
def test_displayed_blocks_are_valid_python(name: str) -> None:
    for snippet in find_snippets(PAGES[name], language="py"):
        ast.parse(snippet)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"])
def test_links_have_targets(page: str) -> None:
    targets = LINK.findall((REPOSITORY / page).read_text(encoding="utf-8"))
    assert [target for target in targets if not (REPOSITORY / target).exists()] == []


NAMED = re.compile(
    r"`([\w./]+\.(?:py|pyi|c|h)|(?:windrow|bench|tests|docs|dataset|io|pipeline|shuffle|cli)/[\w/]*)`"
)
BELOW = ("", "windrow", "windrow/pipeline", "windrow/io")


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "ARCHITECTURE.md", "docs/contributing/measured-choices.md"]
)
def test_files_that_are_named_exist(page: str) -> None:
    named = set(NAMED.findall((REPOSITORY / page).read_text(encoding="utf-8")))
    assert len(named) > 10
    files = {path.name for path in (REPOSITORY / "windrow").rglob("*.py*")}
    missing = [
        name
        for name in named
        if not any((REPOSITORY / above / name).exists() for above in BELOW) and name not in files
    ]
    assert missing == []


@pytest.mark.nightly
def test_torchrun_script_resumes(tmp_path: Path) -> None:
    for part in range(4):
        rows = np.arange(part * 1_250, (part + 1) * 1_250)
        pq.write_table(pa.table({"row": rows, "x": rows / 5_000}), tmp_path / f"part-{part}.parquet")
    script = (DOCS / "examples" / "train.py").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(script.replace("time.sleep(0.2)", "pass"))
    # ends without cleanup, after its last checkpoint
    (tmp_path / "begin.py").write_text(
        script.replace("time.sleep(0.2)", "step == 8 and (time.sleep(2), os._exit(0))")
    )
    assert _launch(tmp_path, "begin.py", 2) == [
        "rank 0, epoch 0: from step 0 of 10",
        "rank 1, epoch 0: from step 0 of 10",
    ]
    assert _launch(tmp_path, "train.py", 1) == [
        "rank 0, epoch 0: from step 14 of 20",
        "rank 0, epoch 1: from step 0 of 20",
        "rank 0, epoch 2: from step 0 of 20",
    ]


@pytest.mark.nightly
def test_mesh_script_resumes_on_another_mesh(tmp_path: Path) -> None:
    for part in range(4):
        rows = np.arange(part * 1_280, (part + 1) * 1_280)
        pq.write_table(pa.table({"x": rows / 5_120}), tmp_path / f"part-{part}.parquet")
    (tmp_path / "mesh.py").write_text((DOCS / "examples" / "mesh.py").read_text(encoding="utf-8"))
    pattern = re.compile(r"mesh of .*")
    assert _launch(tmp_path, "mesh.py", 4, ["2", "2", "8"], pattern) == ["mesh of 2 x 2: rows 0 to 2048"]
    assert _launch(tmp_path, "mesh.py", 4, ["4", "1", "15"], pattern) == ["mesh of 4 x 1: rows 2048 to 3840"]


@pytest.mark.nightly
def test_language_model_script_resumes_on_another_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_snippets(PAGES["guides/language-models.md"])
    wait_for_readers()
    script = DOCS / "examples" / "language_model.py"
    (tmp_path / script.name).write_text(script.read_text(encoding="utf-8"))
    pattern = re.compile(r"mesh of .*(?=, \d+% prose)")
    assert _launch(tmp_path, script.name, 4, ["2", "2", "4"], pattern) == ["mesh of 2 x 2: steps 1 to 4"]
    assert _launch(tmp_path, script.name, 4, ["4", "1", "8"], pattern) == ["mesh of 4 x 1: steps 5 to 8"]


@pytest.mark.parametrize("source", ["generated", "flights"])
def test_shuffle_example_finds_what_a_shuffle_gains(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    torch = pytest.importorskip("torch")
    flights = []
    if source == "flights":
        part = pq.ParquetFile(request.getfixturevalue("flights_path")).read_row_group(0).slice(0, 20_000)
        pq.write_table(part, tmp_path / "part.parquet")
        flights = [str(tmp_path / "part.parquet")]
    example = runpy.run_path(str(DOCS / "examples" / "why_shuffle.py"), run_name="why_shuffle")
    monkeypatch.setitem(example["main"].__globals__, "BLOCKS", 8)
    monkeypatch.setitem(example["main"].__globals__, "BATCH_SIZE", 128)
    chosen = {name: example["SETTINGS"][name] for name in ("no shuffle", "windows of 25 %", "full shuffle")}
    monkeypatch.setitem(example["main"].__globals__, "SETTINGS", chosen)
    threads = torch.get_num_threads()
    files = [tmp_path / "out.svg", tmp_path / "out.json"]
    try:
        example["main"](
            [
                *flights,
                "--rows",
                "20000",
                "--epochs",
                "2",
                "--picture",
                str(files[0]),
                "--json",
                str(files[1]),
            ],
            # a process for each setting would take seconds to import torch
            run=lambda function, *arguments: function(*arguments),
        )
    finally:
        torch.set_num_threads(threads)
    results = json.loads(files[1].read_text())
    assert list(results) == list(chosen)
    assert all(len(result["accuracies"]) == 1 + 2 * 4 for result in results.values())
    assert results["full shuffle"]["least"] > results["no shuffle"]["least"] + 0.02
    assert results["full shuffle"]["held"] > results["windows of 25 %"]["held"]
    picture = files[0].read_text()
    assert all(f">{name}<" in picture for name in chosen)


def test_timeline_example_draws_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    files = [tmp_path / "run.svg", tmp_path / "run.json"]
    options = ["--rows", "100000", "--picture", str(files[0]), "--trace", str(files[1])]
    monkeypatch.setattr(sys, "argv", ["timeline.py", *options])
    runpy.run_path(str(DOCS / "examples" / "timeline.py"), run_name="timeline")
    assert ">trainer 1<" in files[0].read_text()
    assert "epoch 1, window 0" in files[1].read_text()


def test_images_example_trains_and_draws_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("PIL")
    example = runpy.run_path(str(DOCS / "examples" / "images.py"), run_name="images")
    picture, threads = tmp_path / "run.svg", torch.get_num_threads()
    try:
        example["main"](["--images", "600", "--epochs", "3", "--picture", str(picture)])
    finally:
        torch.set_num_threads(threads)
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", capsys.readouterr().out)]
    assert len(losses) == 3
    assert losses[2] < losses[0] - 0.1
    assert ">trainer 0<" in picture.read_text()


def test_shares_example_draws_shares_within_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "shares.svg"
    monkeypatch.setattr(sys, "argv", ["shares.py", "--picture", str(picture)])
    runpy.run_path(str(DOCS / "examples" / "shares.py"), run_name="shares")
    most = re.search(r"ever (0\.\d\d) rows ahead", capsys.readouterr().out)
    assert most is not None
    assert 0.3 < float(most[1]) <= 1
    assert ">math<" in picture.read_text()


def test_balance_example_draws_what_is_unavoidable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "balance.svg"
    monkeypatch.setattr(sys, "argv", ["balance.py", "--picture", str(picture)])
    runpy.run_path(str(DOCS / "examples" / "balance.py"), run_name="balance")
    printed = dict(each.rsplit(" ", 1) for each in capsys.readouterr().out.strip().split(", "))
    assert printed["unavoidable"] == printed['rows="free"'] < printed["without balance"]
    assert '>rows="free"<' in picture.read_text().replace("&quot;", '"')


def test_files_example_measures_every_layout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["good_files.py", "--rows", "8000"])
    runpy.run_path(str(DOCS / "examples" / "good_files.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 21
    (tiny,) = [line.split() for line in printed if "files of 100 rows" in line]
    assert tiny[6:9] == ["10", "10", "10"]


def _launch(
    folder: Path,
    script: str,
    processes: int,
    arguments: Sequence[str] = (),
    pattern: re.Pattern[str] = REPORT,
) -> list[str]:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, script, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # two ranks write to the same pipe, so their lines may be concatenated
    return sorted(pattern.findall(done.stdout))
