"""The next blocks of a task are requested while one is decoded; rows stay the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from windrow.core.source import BlockAddress, BlockPart, CorruptBlockError
from windrow.pipeline.tasks.cache.cached_reader import ReadAhead


class SlowReader:
    """Requests a block when its first part is requested; blocks contain their number."""

    def __init__(self, *, is_remote: bool = True, corrupt: int = -1) -> None:
        self.is_remote, self.corrupt = is_remote, corrupt
        self.asked: list[int] = []
        self.changed = threading.Condition()

    def read(self, address: BlockAddress) -> pa.Table:
        return pa.concat_tables(self.parts(address))

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        with self.changed:
            self.asked.append(address.locator)
            self.changed.notify_all()
        for row in range(2):
            yield pa.table({"block": [address.locator], "row": [row]})
        if address.locator == self.corrupt:
            raise CorruptBlockError("corrupt")

    def wait_for(self, *blocks: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: set(blocks) <= set(self.asked), 20)


def make(reader: Any, blocks: int, *unwanted: int) -> ReadAhead:
    addresses = [BlockAddress(f"block {number}", number) for number in range(blocks)]
    return ReadAhead(reader, addresses, lambda at: at not in unwanted)


@pytest.mark.parametrize("is_remote", [True, False])
@pytest.mark.parametrize("how", ["parts", "read"])
def test_each_block_is_read_once_and_whole(is_remote: bool, how: str) -> None:
    reader = SlowReader(is_remote=is_remote)
    ahead = make(reader, 11)
    for at in range(11):
        table = ahead.read(at) if how == "read" else pa.concat_tables(ahead.parts(at))
        assert table.to_pydict() == {"block": [at, at], "row": [0, 1]}
    assert sorted(reader.asked) == list(range(11))


def test_next_blocks_are_requested_while_one_is_used() -> None:
    reader = SlowReader()
    ahead = make(reader, 11, 2)
    next(ahead.parts(0))
    assert reader.wait_for(0, 1, 3, 4)
    assert not {2, 5, 6} & set(reader.asked)
    assert make(near := SlowReader(is_remote=False), 3).read(0).num_rows == 2
    assert near.asked == [0]


def test_corruption_is_reported_by_the_read_and_a_retry_reads_again() -> None:
    ahead = make(reader := SlowReader(corrupt=2), 4)
    assert [ahead.read(at).num_rows for at in range(2)] == [2, 2]
    with pytest.raises(CorruptBlockError, match="corrupt"):
        ahead.read(2)
    reader.corrupt = -1
    assert ahead.read(2).num_rows == 2
    assert reader.asked.count(2) == 2
    assert next(iter(ahead.parts(3))).num_rows == 1
