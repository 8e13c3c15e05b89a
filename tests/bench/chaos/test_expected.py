"""The oracle of chaos runs is the stream that the threads executor delivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.chaos.setting import COLUMNS, Expected, Setting, derive, digest_keys, make_pipeline, write_data
from bench.chaos.trainers import _columns_match


@pytest.mark.parametrize(("counted", "prepared"), [(False, False), (True, False), (False, True)])
def test_oracle_is_what_threads_deliver(tmp_path: Path, counted: bool, prepared: bool) -> None:
    setting = Setting(
        groups=10,
        group_rows=50,
        window_groups=4,
        block_seconds=0.0,
        counted=counted,
        prepared=prepared,
        batch_rows=30,
    )
    path = tmp_path / "data.parquet"
    write_data(setting, path)
    expected = Expected(setting, path)
    shards = make_pipeline(setting, path).options(executor="threads").split(setting.trainers)
    readers = [shard.iter_epochs() for shard in shards]
    for number in range(2):
        for place, epochs in enumerate(readers):
            epoch = next(epochs)
            found = list(epoch.iter_batches(setting.batch_rows))
            assert all(_columns_match(batch) for batch in found)
            digests = [digest_keys(batch["key"]) for batch in found]
            due = [expected.digest(number, step, place) for step in range(expected.steps(place))]
            assert digests == due
    for shard in shards:
        shard.close()


def test_mismatched_columns_are_detected(tmp_path: Path) -> None:
    keys = Setting(group_rows=9).keys_of(3)
    batch = {"key": keys, **{f"c{number}": derive(keys, number) for number in range(1, COLUMNS)}}
    assert _columns_match(batch)
    assert not _columns_match({**batch, "c7": derive(keys[::-1], 7)})
    assert digest_keys(keys) != digest_keys(keys[::-1])
