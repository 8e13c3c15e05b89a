"""tune --length-column: its figures are those of a run, and it says where a single row is the limit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.cli import length_proposal
from windrow.cli.length_proposal import propose_balance, read_lengths
from windrow.cli.main import main

LENGTHS = np.maximum(1, np.exp(np.random.default_rng(3).normal(2, 1, 1_010))).astype(int)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengths") / "rows.parquet"
    tokens = pa.array([[7] * length for length in LENGTHS.tolist()], pa.list_(pa.int32()))
    text = pa.array(["x" * length for length in LENGTHS.tolist()])
    table = pa.table({"tokens": tokens, "text": text, "length": LENGTHS, "even": LENGTHS % 2 == 0})
    pq.write_table(table, path, row_group_size=100)
    return path


def tune(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    arguments = ["--trainers", "4", "--batch-size", "16", "--executor", "threads", "--epochs", "1"]
    assert main(["tune", str(path), *arguments, "--seed", "5", "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def read(pipe: windrow.DatasetPipeline, balance: windrow.Balance) -> float:
    """The imbalance that a run's statistics tell."""
    shards = pipe.split(4, equal=True)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda shard: list(shard.iter_batches(16, balance=balance)), shards))
    return shards[0].stats().run.imbalance[0]


def test_figures_are_those_of_a_run(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tune(rows, capsys, "--length-column", "tokens")
    names: dict[str, Any] = {"windrow": windrow}
    exec(found["code"], names)
    names["batches"].close()
    for shard in names["shards"]:
        shard.close()
    balance = found["balance"]
    assert balance["whole_epoch"]
    assert balance["rows"] == 1_010
    assert names["balance"] == windrow.Balance(**balance["balance"])
    for each in balance["costs"]:
        for kind in ("equal", "free"):
            options = each["options"][f'rows="{kind}"']
            expected = read(names["pipe"], windrow.Balance("tokens", each["cost"], rows=kind))
            assert options["imbalance"] == pytest.approx(expected)
            # 15 full steps, and one of 50 rows, of which each shard gets 12
            assert options["steps"] == 16


def test_groups_and_budget_are_those_of_a_run(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ds = windrow.read_parquet(rows, target_block_bytes=1).options(executor="threads", progress=False)
    pipe = ds.window(blocks_per_window=6).repeat(1).random_shuffle_each_window(seed=5)
    proposal = propose_balance(pipe, "tokens", shards=2, batch_size=8)
    (group, *_), budget, balance = proposal.figures[0].groups, proposal.budget, windrow.Balance("tokens")
    assert budget is not None

    def lengths(shard: windrow.Shard, **how: Any) -> list[Any]:
        return [batch["length"] for batch in shard.iter_batches(balance=balance, columns=["length"], **how)]

    batches = [
        batch
        for shard in pipe.split(2, equal=True)
        for batch in lengths(shard, batch_size=8, group_by_length=group.steps)
    ]
    padded = sum(batch.max() * len(batch) for batch in batches)
    assert group.costs.padding == pytest.approx(1 - sum(batch.sum() for batch in batches) / padded)
    assert group.costs.padding < proposal.figures[0].steps['rows="equal"'].padding - 0.2
    assert group.recurrence > 2

    left, right = (lengths(shard, token_budget=budget.tokens) for shard in pipe.split(2, equal=True))
    steps = [np.concatenate(each) for each in zip(left, right, strict=True)][:-1]
    assert budget.fill == pytest.approx(np.mean([step.sum() for step in steps]) / (2 * budget.tokens))
    assert budget.rows == (min(map(len, steps)), max(map(len, steps)))
    reasons = " ".join(proposal.reasons)
    assert f"with group_by_length={group.steps}" in reasons
    assert f"token_budget={budget.tokens} holds 8 rows" in reasons


def test_figures_without_balance_are_those_of_its_batches(rows: Path) -> None:
    ds = windrow.read_parquet(rows, target_block_bytes=1).options(executor="threads", progress=False)
    pipe = ds.window(blocks_per_window=3).repeat(1).random_shuffle_each_window(seed=7)
    (figures,) = propose_balance(pipe, "text", shards=4, batch_size=16, costs=["length"]).figures
    batches = [
        [batch["length"] for batch in shard.iter_batches(16, columns=["length"])]
        for shard in pipe.split(4, equal=True)
    ]
    costs = np.array([[batch.sum() for batch in of_shard] for of_shard in batches])
    plain = figures.steps["without balance"]
    assert plain.imbalances == pytest.approx(costs.max(axis=0) / costs.mean(axis=0))
    padded = sum(batch.max() * len(batch) for of_shard in batches for batch in of_shard)
    assert plain.padding == pytest.approx(1 - costs.sum() / padded)
    # a list, text and a number tell the same lengths
    for column in ("tokens", "length"):
        assert np.array_equal(read_lengths(pipe, column).measures, read_lengths(pipe, "text").measures)


def test_the_proposal_is_the_simplest_that_helps(rows: Path) -> None:
    pipe = windrow.read_parquet(rows).repeat(1).random_shuffle_each_window(seed=7)
    large = propose_balance(pipe, "tokens", shards=4, batch_size=16)
    assert large.balance == windrow.Balance("tokens")
    assert 'with rows="equal", which leaves each batch its number of rows' in large.reasons[0]
    small = propose_balance(pipe, "tokens", shards=8, batch_size=2)
    assert small.balance == windrow.Balance("tokens", rows="free")
    assert "windrow.Balance('tokens', rows='free')" in small.code
    alone = propose_balance(pipe, "tokens", shards=1, batch_size=16)
    assert alone.balance is None
    assert alone.code == ""
    assert "a single trainer waits for no other" in alone.reasons[0]
    even = windrow.from_arrow(pa.table({"x": [3] * 100})).repeat(1)
    assert (
        "costs 1.00 times the mean without it"
        in propose_balance(even, "x", shards=2, batch_size=8).reasons[0]
    )


def test_it_says_where_a_row_is_the_limit() -> None:
    lengths = [1] * 990 + [40] * 10
    pipe = windrow.from_arrow(pa.table({"x": lengths})).repeat(1).random_shuffle_each_window(seed=7)
    found = propose_balance(pipe, "x", shards=4, batch_size=5, costs=["length"])
    limit = found.figures[0].limit
    assert (limit.length, limit.quantile) == (1, 0.99)
    # a mean row is 1.39 long
    assert limit.batch_rows == 29
    assert 0.05 < limit.share < 0.2
    assert "are cut to length 1 (the 99.00% quantile), on average none" in found.reasons[-1]
    best = found.figures[0].steps['rows="free"']
    assert best.imbalances.max() > 1.5
    assert best.excesses.max() < 1.1
    assert "no row alone" in propose_balance(pipe, "x", shards=4, batch_size=200).reasons[1]


def test_large_data_is_sampled(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(length_proposal, "_MAX_ROWS", 250)
    pipe = windrow.read_parquet(rows, target_block_bytes=1).repeat(1).random_shuffle_each_window(seed=7)
    lengths = read_lengths(pipe, "length")
    assert (lengths.is_whole, lengths.blocks, lengths.all_blocks) == (False, 3, 11)
    assert len(lengths.measures) in (250, 210)
    arguments = [
        "--trainers",
        "2",
        "--batch-size",
        "16",
        "--executor",
        "threads",
        "--target-block-bytes",
        "1KiB",
    ]
    assert main(["tune", str(rows), *arguments, "--length-column", "length"]) == 0
    printed = capsys.readouterr().out
    assert "rows in a random order, of 3 of 11 blocks" in printed
    assert "balance = windrow.Balance('length')" in printed


def test_what_cannot_be_measured_is_an_error(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*more: str) -> str:
        assert main(["tune", str(rows), "--trainers", "2", "--executor", "threads", *more]) == 1
        return capsys.readouterr().err

    assert "no column 'nothing' to balance by, but there are 'tokens', 'text'" in fail(
        "--length-column", "nothing"
    )
    assert "column 'even' is bool: Balance takes a column of numbers" in fail("--length-column", "even")
    assert "Balance(cost='size') must be a formula" in fail("--length-column", "text", "--cost", "size")
    for option in ("--cost", "--plot"):
        assert f"{option} is about the lengths of rows: name their column by" in fail(option, "length")
    assert "all rows that were read cost 0" in fail("--length-column", "text", "--cost", "0 * length")


def test_the_picture_shows_each_cost(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pytest.importorskip("matplotlib").rcParams, "svg.fonttype", "none")
    picture = tmp_path / "steps.svg"
    found = tune(rows, capsys, "--length-column", "tokens", "--plot", str(picture))
    drawn = picture.read_text().replace("&quot;", '"')
    for each in found["balance"]["costs"]:
        assert f'>cost="{each["cost"]}"<' in drawn
        for name in ("without balance", 'rows="equal"', 'rows="free"'):
            assert f">{name}: {each['options'][name]['imbalance']:.3f}<" in drawn
    wrong = [
        "tune",
        str(rows),
        "--trainers",
        "2",
        "--executor",
        "threads",
        "--length-column",
        "tokens",
        "--plot",
    ]
    assert main([*wrong, str(tmp_path / "steps.nothing")]) == 1
    assert "use .png, .svg or .pdf" in capsys.readouterr().err
    assert main([*wrong, str(tmp_path / "no" / "steps.svg")]) == 1
    assert "the file cannot be written" in capsys.readouterr().err
