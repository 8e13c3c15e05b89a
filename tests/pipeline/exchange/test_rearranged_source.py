"""Rearranged sources: which addresses are kept from one epoch to the next."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa

import windrow
from tests.io.files import write


def test_addresses_of_whole_blocks_are_kept_and_not_sent(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", pa.table({"n": range(10)}))
    dataset = windrow.read_parquet(str(tmp_path), target_block_bytes=1)
    source = dataset.union(dataset)._plan.source
    # what it knows of its parents is sent
    assert len(source.blocks.rows) == 6
    sent = len(pickle.dumps(source))
    first, again = source.addresses(range(6)), source.addresses([4, 0])
    assert again == (first[4], first[0])
    assert again[0] is first[4]
    assert len(pickle.dumps(source)) == sent
    divided = dataset.repartition(2)._plan.source
    assert divided.addresses([0])[0] is not divided.addresses([0])[0]
