"""Training frameworks under torchrun: each row once an epoch over both ranks, also over a checkpoint in its middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.data import write_numbers
from tests.end_to_end.torchrun_jobs import run_torchrun

# the order of ranks and loaders is tested on every change, and these take longer to import than to train
pytestmark = [pytest.mark.timeout(300), pytest.mark.nightly]
SCRIPT = Path(__file__).with_name("frameworks_script.py")
ROWS, EPOCHS = 400, 2


def test_frameworks_resume_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    data = write_numbers(tmp_path / "x.parquet", ROWS)
    done = run_torchrun(SCRIPT, 2, [str(data), str(tmp_path), "accelerate", "lightning", "transformers"])
    assert done.code == 0, done.output
    for first, second in zip(*(done.ranks[rank] for rank in range(2)), strict=True):
        assert len(first) == len(second)
        half = len(first) // EPOCHS
        for epoch in range(EPOCHS):
            part = slice(epoch * half, (epoch + 1) * half)
            assert sorted(first[part] + second[part]) == list(range(ROWS))
    # all frameworks get the same stream
    assert all(taken == done.ranks[0][0] for taken in done.ranks[0])
