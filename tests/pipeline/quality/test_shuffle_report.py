"""shuffle_report: full shuffles agree with the laws, larger windows are better, and nothing is read."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.core.errors import PlanError, SourceError

ROWS, GROUP = 60_000, 500
BATCH = 200


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> windrow.Dataset:
    """Return a dataset of 120 row groups, each a block, whose file has been deleted."""
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    pq.write_table(pa.table({"x": np.arange(ROWS)}), path, row_group_size=GROUP)
    found = windrow.read_parquet(path, target_block_bytes=GROUP * 8)
    path.unlink()
    return found


def report_of(dataset: windrow.Dataset, blocks: int, *, seed: int = 7) -> windrow.ShuffleReport:
    pipe = dataset.window(blocks_per_window=blocks).repeat(2).random_shuffle_each_window(seed=seed)
    return windrow.shuffle_report(pipe, batch_size=BATCH)


@pytest.mark.parametrize("seed", range(5))
def test_full_window_agrees_with_the_laws(dataset: windrow.Dataset, seed: int) -> None:
    report = report_of(dataset, 120, seed=seed)
    groups, full = report.groups_per_batch, report.groups_per_batch_full
    # 300 batches; the spread of one batch is that between its quantiles
    spread = max(1.0, (full.quantile(95) - full.quantile(5)) / 3.3)
    assert abs(groups.mean - full.mean) < 4 * spread / np.sqrt(300)
    assert abs(groups.quantile(50) - full.quantile(50)) <= 1
    # distances of 60,000 places have a standard deviation of 0.236
    assert abs(report.displacement.mean - 1 / 3) < 4 * 0.236 / np.sqrt(ROWS)
    assert report.displacement.quantiles == pytest.approx(report.displacement_full.quantiles, abs=0.01)
    assert report.recurrence == pytest.approx(1)
    assert report.entropy == pytest.approx(report.entropy_full, rel=0.005)
    assert report.neighbour_distance == pytest.approx(1 / 3, rel=0.02)
    assert report.verdict == "the order is as good as a full shuffle"


def test_larger_windows_are_better(dataset: windrow.Dataset) -> None:
    reports = [report_of(dataset, blocks) for blocks in (1, 3, 10, 30, 120)]
    assert [report.windows for report in reports] == [120, 40, 12, 4, 1]
    for smaller, larger in pairwise(reports):
        assert larger.groups_per_batch.mean > smaller.groups_per_batch.mean
        assert larger.pairs_met_again is not None
        assert smaller.pairs_met_again is not None
        assert larger.pairs_met_again < smaller.pairs_met_again
        assert larger.entropy > smaller.entropy
        assert larger.neighbour_distance > smaller.neighbour_distance
    assert "use larger windows" in reports[0].verdict
    assert [report.groups for report in reports] == [120] * 5
    assert reports[0].groups_per_batch.mean == pytest.approx(1, abs=0.5)


def test_row_groups_count_where_blocks_join_them(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(4_000)}), tmp_path / "a.parquet", row_group_size=100)
    pipe = (
        windrow.read_parquet(tmp_path, target_block_bytes="1MiB").repeat(2).random_shuffle_each_window(seed=1)
    )
    report = windrow.shuffle_report(pipe, batch_size=100)
    assert (report.blocks, report.groups, report.group_kind) == (1, 40, "row groups")
    assert 30 < report.groups_per_batch.mean < 40
    ids = pipe.options(row_id_column="id")
    assert windrow.shuffle_report(ids, batch_size=100).groups_per_batch == report.groups_per_batch


def test_stored_order_is_measured(dataset: windrow.Dataset) -> None:
    report = windrow.shuffle_report(dataset.repeat(2), batch_size=GROUP)
    assert (report.shuffle, report.seed) == ("nothing", None)
    assert (report.displacement.mean, report.groups_per_batch.mean) == (0, 1)
    assert (report.pairs_met_again, report.neighbour_distance) == (1, 1 / ROWS)
    assert "random_shuffle_each_window" in report.verdict


def test_block_shuffle_moves_rows_and_mixes_none(dataset: windrow.Dataset) -> None:
    pipe = dataset.window(blocks_per_window=10).repeat(2).randomize_block_order_each_window(seed=7)
    report = windrow.shuffle_report(pipe, batch_size=BATCH)
    assert report.shuffle == "blocks"
    assert report.displacement.mean > 0.25
    assert report.groups_per_batch.mean < 1.5
    assert report.recurrence is not None
    assert report.recurrence > 100
    assert "only blocks are shuffled" in report.verdict


def test_sorted_windows_say_what_is_measured(dataset: windrow.Dataset) -> None:
    pipe = dataset.window(blocks_per_window=10).repeat(2).random_shuffle_each_window(seed=7)
    plain, ordered = (windrow.shuffle_report(each) for each in (pipe, pipe.sort_each_window("x")))
    assert ordered.groups_per_batch == plain.groups_per_batch
    assert any("sort_each_window('x')" in note for note in ordered.notes)
    assert "sort_each_window" in str(ordered)


def test_one_epoch_has_no_recurrence(dataset: windrow.Dataset) -> None:
    pipe = dataset.window(blocks_per_window=10).random_shuffle_each_window(seed=7)
    report = windrow.shuffle_report(pipe)
    assert report.pairs_met_again is None
    assert report.recurrence is None
    assert "pairs that meet again" not in str(report)
    assert any("one epoch" in note for note in report.notes)
    assert windrow.shuffle_report(pipe.repeat(2), batch_size=1).recurrence is None


def test_huge_datasets_are_sampled() -> None:
    pipe = (
        windrow.range(5 * 10**9).window(bytes_per_window="1GiB").repeat().random_shuffle_each_window(seed=7)
    )
    report = windrow.shuffle_report(pipe, batch_size=64)
    assert not report.whole_epoch
    assert report.sampled_rows <= 2**19
    assert f"of {5 * 10**9 // 64:,} batches" in str(report)
    assert report.recurrence is not None
    assert 1 < report.recurrence < 1.5
    assert windrow.shuffle_report(pipe, batch_size=64) == report


def test_epochs_differ(dataset: windrow.Dataset) -> None:
    pipe = dataset.window(blocks_per_window=10).repeat(3).random_shuffle_each_window(seed=7)
    first, second = (windrow.shuffle_report(pipe, epoch=epoch) for epoch in (0, 1))
    assert first.displacement != second.displacement
    with pytest.raises(PlanError, match="epoch=3 must be an integer of 0 or more below 3"):
        windrow.shuffle_report(pipe, epoch=3)


def test_unknown_rows_are_counted_on_request(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(4_000)}), tmp_path / "a.parquet", row_group_size=100)
    dataset = windrow.read_parquet(tmp_path, target_block_bytes=800, filter=pc.field("x") < 3_000)
    pipe = dataset.repeat(2).random_shuffle_each_window(seed=1)
    with pytest.raises(PlanError, match=r"shuffle_report\(count=True\)"):
        windrow.shuffle_report(pipe)
    report = windrow.shuffle_report(pipe, count=True)
    assert (report.rows, report.groups, report.group_kind) == (3_000, 30, "blocks")
    dropped = dataset.map_batches(lambda batch: {"x": batch["x"][::3]}, preserves_rows=False)
    report = windrow.shuffle_report(dropped.repeat(2), count=True)
    assert report.rows == 30 * 34
    assert any("transforms" in note for note in report.notes)


def test_bad_requests_say_how_to_fix_them(dataset: windrow.Dataset) -> None:
    documents = windrow.from_items([{"tokens": [1, 2, 3]}]).repeat(1).pack(2, "tokens")
    with pytest.raises(PlanError, match="report on the pipeline before it"):
        windrow.shuffle_report(documents)
    with pytest.raises(PlanError, match="give a DatasetPipeline"):
        windrow.shuffle_report(dataset)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="up to 1,048,576 rows"):
        windrow.shuffle_report(dataset.repeat(1), batch_size=2**21)
    empty = windrow.from_arrow(pa.table({"x": pa.array([], pa.int64())})).repeat(1)
    with pytest.raises(PlanError, match="no rows to measure"):
        windrow.shuffle_report(empty)


def test_json_holds_everything(dataset: windrow.Dataset) -> None:
    report = report_of(dataset, 10)
    found = json.loads(report.to_json())
    assert found["groups_per_batch"]["mean"] == report.groups_per_batch.mean
    assert len(found["displacement_full"]["quantiles"]) == 21
    assert found["recurrence"] == report.recurrence
    assert found["verdict"] == report.verdict


def test_picture_is_drawn(dataset: windrow.Dataset, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = report_of(dataset, 10)
    once = windrow.shuffle_report(dataset.repeat(1), batch_size=BATCH)
    report.plot(tmp_path / "one.png")
    report.plot(tmp_path / "many.svg", beside=[report_of(dataset, 120), once])
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "many.svg").read_text()
    once.plot(tmp_path / "once.png")
    with pytest.raises(PlanError, match=r"use \.png, \.svg or \.pdf"):
        report.plot(tmp_path / "one.bmpx")
    with pytest.raises(SourceError, match="cannot be written"):
        report.plot(tmp_path / "missing" / "one.png")
    with pytest.raises(PlanError, match="at most 6"):
        report.plot(tmp_path / "one.png", beside=[report] * 6)
    with pytest.raises(PlanError, match="batch_size 200 and 256 cannot be compared"):
        report.plot(tmp_path / "one.png", beside=[windrow.shuffle_report(dataset.repeat(2))])
