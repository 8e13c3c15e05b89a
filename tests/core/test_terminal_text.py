"""Names from outside cannot change what a terminal shows: every text that is printed escapes control characters."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.cli.main import main
from windrow.core.terminal_text import escape_controls

EVIL = "a\x1b[31mred\n\u202e\x9b"
ESCAPED = r"a\x1b[31mred\n\u202e\x9b"


def test_printable_text_is_unchanged() -> None:
    assert escape_controls("größe 漢 ≤ ·") == "größe 漢 ≤ ·"
    assert escape_controls(EVIL) == ESCAPED
    assert escape_controls("a\nb\t\udc80", keep="\n") == "a\nb\\t\\udc80"


def _check(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable()


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A folder whose name and whose columns, in two types, hold control characters."""
    folder = tmp_path / EVIL
    folder.mkdir()
    struct = pa.array([{EVIL: 1}] * 9)
    for name, kind in (("a", np.int32), ("b", np.int64)):
        table = pa.table({EVIL: np.arange(9, dtype=kind), "s": struct})
        pq.write_table(table, folder / f"{name}{EVIL}.parquet")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["inspect"],
        ["inspect", "--json"],
        ["explain", "--batch-size", "2"],
        ["shuffle-report", "--batch-size", "2"],
        ["tune", "--batch-size", "2", "--memory", "8GiB"],
    ],
)
def test_commands_escape_names(evil: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main([command[0], str(evil), *command[1:]]) == 0
    printed = capsys.readouterr()
    _check(printed.out + printed.err)
    if command == ["inspect"]:
        assert ESCAPED in printed.out


def test_premix_escapes_names(evil: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["premix", str(evil), f"{tmp_path}/out{EVIL}", "--seed", "1"]) == 0
    printed = capsys.readouterr()
    _check((printed.out + printed.err).replace("\r\x1b[K", ""))
    assert ESCAPED in printed.out


def test_failed_commands_escape_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{tmp_path}/{EVIL}"]) == 1
    _check(capsys.readouterr().err)


@pytest.mark.parametrize(
    "show",
    [
        repr,
        lambda ds: str(ds.repeat(2).explain(2, batch_size=2)),
        lambda ds: repr(ds.sort(EVIL).repeat(2)),
        lambda ds: repr(ds.groupby(EVIL)),
        lambda ds: str(windrow.shuffle_report(ds.repeat(2), batch_size=2)),
    ],
)
def test_texts_of_datasets_escape_names(evil: Path, show: Callable[[windrow.Dataset], str]) -> None:
    _check(show(windrow.read_parquet(evil)))


def test_errors_escape_names(tmp_path: Path) -> None:
    (tmp_path / EVIL).write_bytes(b"no Parquet file")
    with pytest.raises(windrow.SourceError) as raised:
        windrow.read_parquet(tmp_path / EVIL)
    _check(str(raised.value))
    assert r"\x1b[31mred" in str(pickle.loads(pickle.dumps(raised.value)))
