"""``python -m bench balance``: steps of real lengths become even, and the ranks of a training wait less."""

from __future__ import annotations

import re

import pytest

from bench.cli import main
from bench.commands import balance


def test_steps_become_even(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["balance", "--epochs", "2", "--steps", "0"]) == 0
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if " x " in line and "length" in line
    ]
    assert len(rows) == 12
    for row in rows:
        without, _, equal, _, free, worst = map(float, row[-6:])
        assert 1 <= free <= equal < 1.05 < without
        assert worst < 1.02


@pytest.mark.nightly
def test_ranks_wait_less(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["balance", "--epochs", "1", "--steps", "4"]) == 0
    saved = re.findall(r"^(\w+) .* (-?\d+)%$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in saved] == list(balance._WAYS)
