"""Training frameworks under torchrun: each row once an epoch over both ranks, also over a checkpoint in its middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.data import write_numbers
from tests.end_to_end.torchrun_jobs import run_torchrun

pytestmark = pytest.mark.timeout(300)
SCRIPT = Path(__file__).with_name("frameworks_script.py")
ROWS, EPOCHS = 400, 2


@pytest.mark.parametrize(
    "frameworks",
    [
        ["accelerate"],
        # the last two take as long to import as to train
        pytest.param(["accelerate", "lightning", "transformers"], marks=pytest.mark.nightly),
    ],
    ids=["one", "all"],
)
def test_frameworks_resume_in_the_middle_of_an_epoch(tmp_path: Path, frameworks: list[str]) -> None:
    data = write_numbers(tmp_path / "x.parquet", ROWS)
    done = run_torchrun(SCRIPT, 2, [str(data), str(tmp_path), *frameworks])
    assert done.code == 0, done.output
    for first, second in zip(*(done.ranks[rank] for rank in range(2)), strict=True):
        assert len(first) == len(second)
        half = len(first) // EPOCHS
        for epoch in range(EPOCHS):
            part = slice(epoch * half, (epoch + 1) * half)
            assert sorted(first[part] + second[part]) == list(range(ROWS))
    # all frameworks get the same stream
    assert all(taken == done.ranks[0][0] for taken in done.ranks[0])
