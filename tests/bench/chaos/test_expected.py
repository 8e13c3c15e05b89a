"""The oracle of chaos runs is the stream that the threads executor delivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.chaos.setting import (
    COLUMNS,
    Expected,
    ExpectedMixture,
    Setting,
    derive,
    digest_keys,
    make_pipeline,
    write_data,
)
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
    write_data(setting, tmp_path)
    expected = Expected(setting, tmp_path)
    shards = make_pipeline(setting, tmp_path).options(executor="threads").split(setting.trainers)
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


def test_trainers_of_a_mixture_get_their_parts_of_its_steps(tmp_path: Path) -> None:
    setting = Setting(
        groups=9, group_rows=50, window_groups=4, block_seconds=0.0, batch_rows=30, mixed=True, replicas=2
    )
    write_data(setting, tmp_path)
    expected = ExpectedMixture(setting, tmp_path)
    shards = make_pipeline(setting, tmp_path).options(executor="threads").split(setting.trainers)
    # more than two passes over both sources
    steps = 12
    readers = [shard.iter_batches(setting.batch_rows) for shard in shards]
    found = [[digest_keys(next(batches)["key"]) for batches in readers] for _ in range(steps)]
    for reader in range(setting.readers):
        due = [expected.digest(0, step, reader) for step in range(steps)]
        assert [step[reader // setting.replicas] for step in found] == due
    assert len({digest for step in found for digest in step}) == steps * setting.trainers
    for shard in shards:
        shard.close()


def test_mismatched_columns_are_detected(tmp_path: Path) -> None:
    keys = Setting(group_rows=9).keys_of(3)
    batch = {"key": keys, **{f"c{number}": derive(keys, number) for number in range(1, COLUMNS)}}
    assert _columns_match(batch)
    assert not _columns_match({**batch, "c7": derive(keys[::-1], 7)})
    assert digest_keys(keys) != digest_keys(keys[::-1])
