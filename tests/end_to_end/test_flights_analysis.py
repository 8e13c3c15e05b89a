"""From a table of real flights to a model: filter, features, groups, sort, shuffle and training steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import windrow

pytestmark = pytest.mark.timeout(120)

ROWS = 40_000
COLUMNS = ["delay", "distance", "origin", "destination"]


@pytest.fixture
def slice_of_flights(flights_path: Path, executor: str) -> windrow.Dataset:
    ds = windrow.read_parquet(flights_path, columns=COLUMNS, target_block_bytes="4MiB")
    return ds.limit(ROWS).options(executor=executor)


def _as_polars(ds: windrow.Dataset) -> Any:
    polars = pytest.importorskip("polars")
    return polars.from_arrow(ds.to_arrow())


def _with_features(ds: windrow.Dataset) -> windrow.Dataset:
    long = ds.filter(pc.field("distance") > 500).filter(lambda row: row["origin"] != row["destination"])
    hours = long.add_column("hours", pc.field("distance").cast("double") / 512.0)
    return hours.add_column("late", lambda batch: (batch["delay"] > 15).astype(np.float32))


def test_groups_and_order_equal_those_of_polars(slice_of_flights: windrow.Dataset) -> None:
    pl = pytest.importorskip("polars")
    frame = _as_polars(slice_of_flights)
    frame = frame.filter((pl.col("distance") > 500) & (pl.col("origin") != pl.col("destination")))
    frame = frame.with_columns(
        (pl.col("distance") / 512.0).alias("hours"), (pl.col("delay") > 15).cast(pl.Float32).alias("late")
    )
    ds = _with_features(slice_of_flights)
    assert _as_polars(ds).equals(frame)

    groups = ds.groupby("origin").aggregate(flights="count", delay=("delay", "mean"), far=("distance", "max"))
    expected = frame.group_by("origin").agg(
        pl.len().alias("flights"), pl.col("delay").mean(), pl.col("distance").max().alias("far")
    )
    expected = expected.sort("origin").to_dicts()
    found = groups.to_arrow().to_pylist()
    assert [row["origin"] for row in found] == [row["origin"] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row == {**other, "delay": pytest.approx(other["delay"])}

    ordered = ds.sort(["delay", "distance"], descending=[True, False])
    by_hand = frame.sort(["delay", "distance"], descending=[True, False], maintain_order=True)
    assert _as_polars(ordered).equals(by_hand)


def test_shuffled_flights_train_a_model(slice_of_flights: windrow.Dataset, tmp_path: Path) -> None:
    import torch

    numbers = _with_features(slice_of_flights).select_columns(["delay", "distance", "late"])
    numbers.random_shuffle(seed=5).write_parquet(tmp_path / "out")
    stored = windrow.read_parquet(tmp_path / "out")
    before, after = numbers.to_arrow(), stored.to_arrow()
    names = [(name, "ascending") for name in before.column_names]
    assert after.sort_by(names).equals(before.sort_by(names))
    assert after["delay"].to_pylist() != before["delay"].to_pylist()

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pipe = stored.window(blocks_per_window=4).repeat(2).random_shuffle_each_window(seed=7)
    losses = []
    for batch in pipe.iter_torch_batches(2048):
        # the label is a function of the delay, so the loss must fall
        x = torch.clamp(batch["delay"][:, None].float() / 30, -2, 2)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), batch["late"][:, None])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) > 10
    assert losses[-1] < losses[0] * 0.8
