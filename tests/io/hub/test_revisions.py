"""Revisions of the Hugging Face Hub: a dataset reads one commit, whatever its branch becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import windrow
from tests.hub_server import Hub
from tests.io.hub.conftest import DESCRIPTIONS, REPO, ROWS, URL, parquet, trips
from tests.io.hub.test_reading import read, rows_of

CONVERTED = "refs/convert/parquet"


def test_a_branch_that_moves_does_not_change_a_planned_dataset(hub: Hub) -> None:
    first = hub.commit(REPO, trips())
    ds = read(URL, hub)
    hub.commit(REPO, trips(10**6))
    assert first in repr(ds)
    assert rows_of(ds) == list(range(3 * ROWS))
    assert rows_of(read(URL, hub)) == list(range(10**6, 10**6 + 3 * ROWS))


def test_a_state_of_other_data_is_refused_and_of_the_same_data_is_not(hub: Hub) -> None:
    def start(state: dict[str, Any] | None, **options: Any) -> dict[str, Any]:
        pipe = read(URL, hub, **options).window(blocks_per_window=2).random_shuffle_each_window(seed=1)
        with pipe.options(executor="threads").iterator() as shard:
            if state is not None:
                shard.load_state_dict(state)
            next(iter(shard.iter_batches(100)))
            return shard.state_dict()

    first = hub.commit(REPO, trips())
    state = start(None)
    hub.commit(REPO, {**trips(), "README.md": b"another description"})
    start(state)
    hub.commit(REPO, trips(10**6))
    with pytest.raises(windrow.StateError, match="content"):
        start(state)
    start(state, revision=first)


def test_a_commit_that_the_hub_has_lost_is_an_error(hub: Hub) -> None:
    first = hub.commit(REPO, trips())
    ds = read(URL, hub)
    hub.commit(REPO, trips(10**6))
    del hub.repos[REPO].commits[first]
    with pytest.raises(
        windrow.SourceError, match=rf"(?s){first}/data/.*the file is missing.*list the dataset again"
    ):
        ds.take()


@pytest.mark.parametrize(
    "revision",
    ["~parquet", CONVERTED, CONVERTED.replace("/", "%2F")],
)
def test_converted_parquet(hub: Hub, revision: str) -> None:
    hub.commit(REPO, {**DESCRIPTIONS, "train.csv": b"x\n1\n"})
    names = ["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"]
    hub.commit(REPO, {name: parquet(at * 90, 90) for at, name in enumerate(names)}, CONVERTED)
    assert rows_of(read(f"{URL}@{revision}", hub)) == list(range(270))
    assert rows_of(read(f"{URL}@{revision}/default/train", hub)) == list(range(180))
    assert rows_of(read(f"{URL}@{revision}/*/test/*.parquet", hub)) == list(range(180, 270))
    if "%" not in revision:
        assert rows_of(read(f"{URL}/default/test", hub, revision=revision)) == list(range(180, 270))


def test_branches_tags_and_commits(hub: Hub) -> None:
    first = hub.commit(REPO, trips())
    hub.commit(REPO, trips(10**6), "feature/new")
    hub.repos[REPO].refs["v1.0"] = first
    old, new = list(range(2 * ROWS, 3 * ROWS)), list(range(10**6 + 2 * ROWS, 10**6 + 3 * ROWS))
    for revision, expected in (("v1.0", old), (first, old), ("feature%2Fnew", new)):
        assert rows_of(read(f"{URL}@{revision}/data/test.parquet", hub)) == expected
    assert rows_of(read(f"{URL}/data/test.parquet", hub, revision="feature/new")) == new
    assert rows_of(read(f"{URL}@v1.0/data/test.parquet", hub, revision="v1.0")) == old
    with pytest.raises(windrow.PlanError, match=r"names the revision 'main', and storage_options= 'v1.0'"):
        read(f"{URL}@main", hub, revision="v1.0")
    with pytest.raises(windrow.PlanError, match="give a branch, a tag or a commit"):
        read(URL, hub, revision=3)


def test_models_and_hive_partitions(hub: Hub) -> None:
    hub.commit("models/me/model", {f"year={year}/0.parquet": parquet(year, 3) for year in (2020, 2021)})
    ds = windrow.read_parquet("hf://me/model", columns=["x", "year"], storage_options=hub.options())
    assert ds.take(1) == [{"x": 2020, "year": 2020}]
    assert np.unique(ds.to_numpy()["year"]).tolist() == [2020, 2021]
