"""A block counts as corrupt after two failed reads."""

from __future__ import annotations

import pytest

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.pipeline.tasks.task import Corruption, find_corruption, late_corruption


class Reads:
    """A read that fails a given number of times."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures, self.error, self.count = failures, error, 0

    def __call__(self) -> str:
        self.count += 1
        if self.count <= self.failures:
            raise self.error
        return "rows"


TORN = CorruptBlockError("part-3.parquet, row group 1: torn")


@pytest.mark.parametrize(
    ("failures", "found", "reads"),
    [(0, "rows", 1), (1, "rows", 2), (2, Corruption(7, str(TORN)), 2)],
)
def test_corrupt_block_can_become_readable(failures: int, found: object, reads: int) -> None:
    read = Reads(failures, TORN)
    assert find_corruption(read, 7) == found
    assert read.count == reads


def test_other_errors_are_not_corruption() -> None:
    read = Reads(1, SourceError("gone"))
    with pytest.raises(SourceError, match="gone"):
        find_corruption(read, 7)
    with pytest.raises(SourceError, match=r"^gone$"), late_corruption():
        raise SourceError("gone")


def test_late_corruption_cannot_be_skipped() -> None:
    with (
        pytest.raises(SourceError, match=r"row group 1: torn\. It can no longer be skipped") as raised,
        late_corruption(),
    ):
        raise TORN
    assert type(raised.value) is SourceError
