from __future__ import annotations

from itertools import chain

import pytest
import torch

from bench.training.tensors import cut_batches


@pytest.mark.parametrize("lengths", [[10], [3, 7], [1] * 10, [4, 4, 2], [7, 3], [2, 8]])
@pytest.mark.parametrize("size", [1, 3, 4, 10, 11])
def test_batches_are_in_order_and_only_the_last_is_short(lengths: list[int], size: int) -> None:
    stops = torch.tensor(lengths).cumsum(0).tolist()
    tables = [{"a": torch.arange(stop - rows, stop)} for stop, rows in zip(stops, lengths, strict=True)]
    batches = [batch["a"].tolist() for batch in cut_batches(tables, size)]
    assert list(chain.from_iterable(batches)) == list(range(10))
    assert all(len(batch) == size for batch in batches[:-1])
    assert len(batches[-1]) == (10 % size or min(size, 10))
