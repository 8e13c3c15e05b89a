"""``python -m bench balance``: steps of real lengths become even, and the ranks of a training wait less."""

from __future__ import annotations

import re

import pytest

from bench.cli import main
from bench.commands import balance, balance_cost


def test_steps_become_even(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["balance", "--epochs", "2", "--steps", "0", "--rows", "0"]) == 0
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if " x " in line and "length" in line
    ]
    assert len(rows) == 12
    for row in rows:
        without, _, equal, _, free, worst = map(float, row[-6:])
        assert 1 <= free <= equal < 1.05 < without
        assert worst < 1.02


def test_cost_is_compared_in_turns(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--epochs", "1", "--steps", "0", "--rows", "3000", "--rounds", "1"]
    assert main(["balance", *arguments]) == 0
    printed = capsys.readouterr().out
    budgets = re.findall(r"^(\d+) x (\d+,\d+) +([\d.]+) +([\d.]+) +\d+$", printed, re.MULTILINE)
    assert [(int(shards), int(tokens.replace(",", ""))) for shards, tokens, *_ in budgets] == list(
        balance_cost._BUDGETS
    )
    assert all(0.9 < float(fill) <= 1 < float(rows) for *_, rows, fill in budgets)
    ways = re.findall(r"^(\d+ x \d+) +([a-z].*?)((?: +\d+\.\d\d){6})$", printed, re.MULTILINE)
    assert [way for _, way, _ in ways] == list(balance_cost._WAYS) * len(balance_cost._STEPS)
    for _, way, values in ways:
        _, first, _, later, least, most = map(float, values.split())
        assert least <= later <= most
        assert (first, later) == (1, 1) or way != "without"


@pytest.mark.nightly
def test_ranks_wait_less(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["balance", "--epochs", "1", "--steps", "4", "--rows", "0"]) == 0
    saved = re.findall(r"^(\w+) .* (-?\d+)%$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in saved] == list(balance._WAYS)
