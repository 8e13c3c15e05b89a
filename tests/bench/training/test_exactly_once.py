from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bench.training.delivered_rows import KeyLog, check_count, check_keys


def _shuffled(rows: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.Philox(1)).permutation(rows)


def test_keys_of_several_trainers_are_merged() -> None:
    keys = _shuffled(1000)
    assert check_keys([keys[:300], keys[300:]], 1000).good


def test_missing_and_repeated_keys_are_counted() -> None:
    keys = _shuffled(1000)
    keys[5] = keys[6]
    verdict = check_keys([keys], 1000)
    assert (verdict.missing, verdict.repeated) == (1, 1)
    assert str(verdict) == "NO: 1 missing, 1 too many"
    assert check_keys([keys[7:]], 1000).missing == 7


def test_equal_shards_may_drop_but_not_repeat_rows() -> None:
    verdict = check_keys([np.arange(998)], 1000, allowed=2)
    assert str(verdict) == "yes (key, 2 left out)"
    assert not check_keys([np.arange(997)], 1000, allowed=2).good
    assert not check_keys([np.zeros(1000, dtype=np.int64)], 1000, allowed=2).good


def test_row_counts_are_compared() -> None:
    assert str(check_count(999, 1000, allowed=1)) == "yes (row count, 1 left out)"
    assert str(check_count(998, 1000, allowed=1)) == "NO: 2 missing, 0 too many"
    assert str(check_count(1001, 1000)) == "NO: 0 missing, 1 too many"


def test_unknown_key_counts_as_repeated() -> None:
    verdict = check_keys([np.array([0, 1, 2, 99])], 3)
    assert (verdict.missing, verdict.repeated) == (0, 1)


def test_key_log_separates_epochs_and_grows() -> None:
    log = KeyLog(np.uint32, capacity=4, epochs=1)
    for epoch in range(2):
        log.open_epoch()
        log.add(np.arange(3) + epoch)
        log.add(np.arange(6))
    assert [keys.tolist() for keys in log.epochs()] == [
        [0, 1, 2, 0, 1, 2, 3, 4, 5],
        [1, 2, 3, 0, 1, 2, 3, 4, 5],
    ]
