"""Ray's endpoint for Prometheus has every metric of windrow, with its labels, and all that the dashboard asks for."""

from __future__ import annotations

import json
import re
import site
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import RAY_ENVIRONMENT, REPOSITORY
from tests.faults.corrupt_files import ROWS, corrupt_row_groups, write_files
from tests.faults.proxy import Fault, open_proxy
from tests.io.conftest import serve
from tests.io.files import S3, write

ray = pytest.importorskip("ray")

# it installs what Ray needs to export metrics, and starts a Ray that runs it
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("metrics_script.py")
DASHBOARD = REPOSITORY / "docs" / "_static" / "grafana-dashboard.json"
REMOTE_ROWS = 1_200
# name, labels, and value
Series = tuple[str, dict[str, str], float]


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python with ``ray[default]``, in an environment of its own above this one: here, every Ray would run an agent."""
    if find_spec("opencensus") is not None and find_spec("aiohttp_cors") is not None:
        return sys.executable
    folder = tmp_path_factory.mktemp("agent")
    venv.create(folder, with_pip=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "below.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", str(REPOSITORY / "constraints.txt")]
    done = subprocess.run(
        [*pip, f"ray[default]=={ray.__version__}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"ray[default] cannot be installed: {done.stderr[-500:]}")
    return python


@pytest.fixture(scope="module")
def scraped(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> list[Series]:
    """What the endpoint has of three runs that between them change every metric."""
    folder = tmp_path_factory.mktemp("data")
    for part in range(3):
        numbers = np.arange(part * 400, part * 400 + 400)
        table = pa.table({"x": numbers, "text": [str(number) for number in numbers]})
        write(folder / "s3" / "bucket" / "train" / f"{part}.parquet", table, row_group_size=100)
    corrupt = folder / "corrupt"
    corrupt.mkdir()
    write_files(corrupt)
    corrupt_row_groups(corrupt, 4)
    with serve(folder / "s3", f"{S3.key},{S3.secret}") as endpoint, open_proxy(endpoint) as proxy:
        # truncated answers, which windrow requests again and not its client
        proxy.set(Fault("short", share=0.5, methods=("GET",)))
        options = json.dumps(S3(proxy.endpoint, folder).storage_options)
        done = subprocess.run(
            [interpreter, str(SCRIPT), "s3://bucket/train", options, str(corrupt)],
            env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", **RAY_ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert proxy.struck
    # Ray prints warnings between them
    return [_parse(line) for line in done.stdout.splitlines() if line.startswith("ray_windrow_")]


def _parse(line: str) -> Series:
    name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()  # type: ignore[union-attr]
    return name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)


def test_every_metric_has_its_labels_and_a_value(scraped: list[Series]) -> None:
    from windrow.pipeline.executors.ray.run_metrics import METRICS

    tags = {metric.exported_name: {"run", *metric.tags} for metric in METRICS.values()}
    found = {name: max(value for other, _, value in scraped if other == name) for name, *_ in scraped}
    assert found.keys() == tags.keys()
    assert all(value > 0 for value in found.values()), found
    for name, labels, _ in scraped:
        assert tags[name] <= labels.keys()
        assert all(labels[tag] for tag in tags[name])


def test_values_are_those_of_the_runs(scraped: list[Series]) -> None:
    def by_run(name: str) -> list[float]:
        totals: dict[str, float] = {}
        for other, labels, value in scraped:
            if other == f"ray_windrow_{name}":
                totals[labels["run"]] = totals.get(labels["run"], 0.0) + value
        return sorted(totals.values())

    # two epochs over object storage, files of which a row group is corrupt, a mixture, and a run that goes on
    assert {11 * ROWS, 2 * REMOTE_ROWS} <= set(by_run("rows_total"))
    assert by_run("skipped_blocks") == [0, 0, 0, 1]
    assert by_run("skipped_rows") == [0, 0, 0, ROWS]
    assert by_run("dropped_windows_total") == [1]
    # the second epoch finds the twelve row groups of the first; a second copy of a silent task counts too
    (hits,) = by_run("cache_hits_total")
    assert hits >= 12


def test_the_dashboard_finds_what_it_asks_for(scraped: list[Series]) -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for label, name in re.findall(
                r"(?:by \((\w+)\) )?\((?:rate\()?(ray_windrow_\w+)", target["expr"]
            ):
                series = [labels for other, labels, _ in scraped if other == name]
                assert series, target["expr"]
                assert not label or all(label in labels for labels in series), target["expr"]
