"""tune: what it proposes is accepted by explain() within the memory, and no larger window would be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from windrow.cli import proposal
from windrow.cli.main import main
from windrow.cli.proposal import Goal, _Search, make_pipe, propose
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.manifest import VariableBytes
from windrow.io.parquet.block_reader import ParquetFormat

MIB = 2**20


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> FileSource:
    """Return files of 40 row groups whose manifest tests scale."""
    folder = tmp_path_factory.mktemp("shape")
    table = pa.table({"x": np.arange(100), "text": [f"{row}" for row in range(100)]})
    for part in range(4):
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=10)
    source = windrow.read_parquet(folder)._plan.source
    assert isinstance(source, FileSource)
    return source


def scale(
    source: FileSource, factor: int, *, text: bool, block_bytes: int, cuts_row_groups: bool = True
) -> Dataset:
    """Make a dataset that has more rows than the files."""
    if not cuts_row_groups:
        source = replace(source, format=ParquetFormat(cut_sizes=None))
    manifest = source.manifest
    variable = {
        name: VariableBytes(each.encoded.astype(np.uint64) * factor, each.memory.astype(np.uint64) * factor)
        for name, each in manifest.variable.items()
    }
    large = replace(
        manifest,
        rows=manifest.rows.astype(np.uint64) * factor,
        encoded_bytes=manifest.encoded_bytes.astype(np.uint64) * factor,
        variable=variable,
    )
    schema = source.schema if text else pa.schema([source.schema.field("x")])
    return Dataset(
        LogicalPlan(replace(source, manifest=large, schema=schema, target_block_bytes=block_bytes))
    )


@given(
    factor=st.sampled_from([1, 100, 10_000, 1_000_000, 30_000_000]),
    text=st.booleans(),
    block_bytes=st.sampled_from([1, MIB, 64 * MIB]),
    memory_bytes=st.sampled_from([20 * MIB, 64 * MIB, 150 * MIB, 2**30, 12 * 2**30, 2**36]),
    trainers=st.sampled_from([1, 3, 8]),
    batch_size=st.sampled_from([32, 4_096]),
    epochs=st.sampled_from([None, 1, 3]),
)
@examples(12)
def test_proposals_fit(
    small: FileSource,
    factor: int,
    text: bool,
    block_bytes: int,
    memory_bytes: int,
    trainers: int,
    batch_size: int,
    epochs: int | None,
) -> None:
    dataset = scale(small, factor, text=text, block_bytes=block_bytes)
    goal = Goal(memory_bytes, trainers, batch_size, epochs)
    with pytest.MonkeyPatch.context() as patch:
        # the quality takes longer than the search, and is tested elsewhere
        patch.setattr(proposal, "shuffle_report", fail_to_report)
        try:
            chosen = propose(dataset, goal).chosen
        except PlanError:
            check_nothing_fits(dataset, goal)
            return
    pipe = make_pipe(chosen.dataset, chosen.window_bytes, goal).options(executor="threads", **chosen.options)
    plan = pipe.explain(trainers, equal=trainers > 1, batch_size=batch_size)
    assert plan.budget.total_bytes <= memory_bytes
    assert plan.windows == chosen.windows
    assert plan.budget.window_bytes <= plan.budget.windows_limit_bytes
    if holds_twice(chosen.dataset, goal):
        assert plan.budget.slices == 1
        assert plan.budget.windows > 1 or (epochs == 1 and plan.windows == 1)
    if chosen.window_bytes is not None and plan.budget.slices == 1 and plan.budget.windows > 1:
        check_twice_does_not_fit(chosen.dataset, goal, chosen.window_bytes)


def fail_to_report(*_: Any, **__: Any) -> None:
    raise PlanError("not now")


def check_nothing_fits(dataset: Dataset, goal: Goal) -> None:
    pipe = dataset.window(blocks_per_window=1).repeat(goal.epochs).random_shuffle_each_window(seed=0)
    pipe = pipe.options(memory_limit=goal.memory_bytes, prefetch_windows=0, executor="threads")
    try:
        plan = pipe.explain(goal.trainers, equal=goal.trainers > 1, batch_size=goal.batch_size)
    except PlanError:
        return
    budget = plan.budget
    assert budget.total_bytes > goal.memory_bytes or budget.window_bytes > budget.windows_limit_bytes


def holds_twice(dataset: Dataset, goal: Goal) -> bool:
    """Whether two windows of one block each can be held."""
    pipe = dataset.window(blocks_per_window=1).repeat(goal.epochs).random_shuffle_each_window(seed=0)
    pipe = pipe.options(memory_limit=goal.memory_bytes, executor="threads")
    try:
        budget = pipe.explain(goal.trainers, equal=goal.trainers > 1, batch_size=goal.batch_size).budget
    except PlanError:
        return False
    return budget.slices == 1 and budget.windows > 1 and budget.total_bytes <= goal.memory_bytes


def check_twice_does_not_fit(dataset: Dataset, goal: Goal, window_bytes: int) -> None:
    pipe = make_pipe(dataset, 2 * window_bytes + 2 * MIB, goal)
    pipe = pipe.options(memory_limit=goal.memory_bytes, executor="threads")
    try:
        budget = pipe.explain(goal.trainers, equal=goal.trainers > 1, batch_size=goal.batch_size).budget
    except PlanError:
        return
    assert budget.slices > 1 or budget.windows < 2


def test_data_that_fits_is_one_window_and_cached(small: FileSource) -> None:
    found = propose(scale(small, 100, text=False, block_bytes=1), Goal(2**30))
    assert found.chosen.window_bytes is None
    assert found.chosen.options["cache"] == "memory"
    assert found.chosen.report is not None
    assert found.chosen.report.recurrence == pytest.approx(1)
    assert any("full shuffle" in reason for reason in found.reasons)
    once = propose(scale(small, 100, text=False, block_bytes=1), Goal(2**30, epochs=1))
    assert "cache" not in once.chosen.options


def test_smaller_windows_hold_several_blocks(small: FileSource) -> None:
    dataset = scale(small, 1_000_000, text=False, block_bytes=1)
    search = _Search(dataset, Goal(900 * MIB))
    found = propose(dataset, Goal(900 * MIB))
    assert found.smaller
    # as many as a quarter of the windows needs, and one block less
    for blocks, count in ((8 * found.chosen.windows, 1), (8 * found.chosen.windows - 1, 0)):
        search.blocks = blocks
        assert len(search.find_smaller(found.chosen)) == count


def test_more_memory_never_shuffles_worse(small: FileSource) -> None:
    dataset = scale(small, 1_000_000, text=False, block_bytes=1)
    found = [propose(dataset, Goal(mib * MIB)).chosen for mib in (400, 600, 900, 1_500)]
    ratios = [each.report.groups_ratio for each in found if each.report is not None]
    assert ratios == sorted(ratios)
    assert len(set(ratios)) > 1


def test_remote_data_is_cached_on_disk(small: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = scale(small, 1_000_000, text=False, block_bytes=1)
    monkeypatch.setattr(proposal, "is_remote", lambda _: True)
    goal = Goal(1_000 * MIB, disk_bytes=2**40)
    assert propose(dataset, goal).chosen.options["cache"] == "disk"
    assert "cache" not in propose(dataset, replace(goal, disk_bytes=MIB)).chosen.options


def test_large_blocks_are_made_smaller(small: FileSource) -> None:
    found = propose(scale(small, 1_000_000, text=False, block_bytes=2**30), Goal(700 * MIB))
    assert found.target_block_bytes is not None
    # larger row groups than that are cut
    assert found.chosen.explanation.blocks > 40
    assert any(reason.startswith("blocks: ") for reason in found.reasons)


def test_windows_of_few_blocks_are_named(small: FileSource) -> None:
    found = propose(scale(small, 30_000_000, text=False, block_bytes=1, cuts_row_groups=False), Goal(2**34))
    assert 1 < found.chosen.windows <= 40
    (reason,) = [each for each in found.reasons if "mixes little" in each]
    assert reason.startswith("blocks: a window holds about ")
    assert "windrow premix" in reason


def test_small_files_are_named(tmp_path: Path) -> None:
    for number in range(101):
        pq.write_table(pa.table({"x": [number]}), tmp_path / f"{number}.parquet")
    reasons = propose(windrow.read_parquet(tmp_path), Goal(2**30)).reasons
    assert any(each.startswith("files: small files: 101 files of ") for each in reasons)
    few = propose(windrow.read_parquet([tmp_path / f"{n}.parquet" for n in range(50)]), Goal(2**30)).reasons
    assert not any(each.startswith("files: ") for each in few)


def test_estimated_windows_have_to_fit_too(small: FileSource) -> None:
    # a row group has 300 million rows of text
    with pytest.raises(PlanError, match="do not hold a window of one block"):
        propose(scale(small, 30_000_000, text=True, block_bytes=1, cuts_row_groups=False), Goal(12 * 2**30))


def test_printed_code_runs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "tune",
        str(data),
        "--memory",
        "100MiB",
        "--trainers",
        "2",
        "--executor",
        "threads",
        "--epochs",
        "1",
    ]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names: dict[str, Any] = {"windrow": windrow}
    exec(found["code"], names)
    plan = names["pipe"].explain(2, equal=True, batch_size=256)
    assert plan.budget.total_bytes == found["chosen"]["explanation"]["budget"]["total_bytes"] <= 100 * MIB
    for shard in names["shards"]:
        shard.close()
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert found["code"] in text
    assert "proposed: 1" in text


def test_too_little_memory_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(data), "--memory", "1MiB", "--trainers", "1"]) == 1
    assert "memory limit" in capsys.readouterr().err
    assert main(["tune", str(data), "--memory", "64"]) == 1
    assert main(["tune", str(data), "--memory", "plenty"]) == 1
    assert "--memory='plenty' is not a size" in capsys.readouterr().err


def test_memory_beside_the_object_store_counts(small: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(proposal, "shuffle_report", fail_to_report)
    dataset = scale(small, 300_000, text=False, block_bytes=1)
    for memory_bytes in (900 * MIB, 1_200 * MIB):
        chosen = propose(dataset, Goal(memory_bytes, trainers=2, executor="ray")).chosen
        # Ray's limit is that of the object store alone: runs and tasks come on top of it
        assert chosen.windows > 1
        assert chosen.explanation.budget.total_bytes <= memory_bytes
