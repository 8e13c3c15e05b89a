"""Corrupt files give the right rows or a WindrowError: no crash, no hang, no other error.

Which rows are right depends on what protects them:

- A page with a checksum gives the written rows, or an error.
- A footer has no checksum of its own, but a manifest contains its digest. A file that was listed
  before its corruption gives as many rows, of the same types, as were listed, or an error. A file
  that was corrupt before it was listed is read as its footer describes it.
- Corrupt bytes without a checksum (page headers, and pages written without one) can change values,
  as with every reader. Then both decoders must return the same values (of zstd, those that the
  installed version and Arrow's make of a corrupt frame) and the number of rows in the footer,
  without invalid memory accesses. Text can be invalid UTF-8, and decimals can have
  too many digits, since single values are not validated.

Cases run in a separate process with a memory limit, so that a crash can be attributed to its
seed. To reproduce one: ``python -m tests.io.fuzzing SEED 1``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.corruption import CORRUPTION, GROUP_ROWS, KINDS, ROWS, flip_in_checked_page, move_chunk, whole
from tests.io.fuzzing import Case, judge
from windrow.core.source import CorruptBlockError


def run_cases(first: int, count: int, seconds: int, most_mib: int = 1_024) -> None:
    command = [sys.executable, "-m", "tests.io.fuzzing", str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    begun = [line for line in done.stdout.splitlines() if line.startswith("case ")]
    failed = re.findall(r"^FAILED .*?(?=^case |^ended |\Z)", done.stdout, re.DOTALL | re.MULTILINE)
    last = begun[-1] if begun else "before the first case"
    assert done.returncode == 0, f"the process ended with {done.returncode} in {last}\n{done.stderr[-4000:]}"
    assert not failed, "\n".join(failed[:5])
    assert len(begun) == count
    peak = re.search(r"(\d+) MiB at most", done.stdout)
    assert peak is not None
    assert int(peak[1]) < most_mib


def test_corrupt_files_give_the_right_rows_or_an_error() -> None:
    run_cases(0, 90, 170)


def test_no_memory_is_taken_for_a_page_as_large_as_a_corrupt_header_states() -> None:
    """The pages of this stored file are not found, and one of 345 MiB is in a column chunk of 32 bytes."""
    run_cases(7_000_550, 1, 60, most_mib=400)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_many_corrupt_files() -> None:
    first = int.from_bytes(os.urandom(4), "little")
    for start in range(first, first + 20_000, 1_000):
        run_cases(start, 1_000, 600)


def test_every_kind_of_file_and_of_corruption_is_drawn() -> None:
    cases = [Case.draw(seed) for seed in range(400)]
    assert {case.kind for case in cases} == set(KINDS)
    assert {case.corruption for case in cases} == set(CORRUPTION)
    assert sum(case.checked for case in cases) > 3
    assert {case.listed for case in cases} == {False, True}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("offset", [-(2**40), -1, 0])
@pytest.mark.parametrize("kind", ["plain", "dictionary"])
def test_impossible_chunk_offset_is_reported_as_corruption(
    kind: str, offset: int, stored: bool, tmp_path: Path
) -> None:
    """Negative offsets are neither retried nor sent to object storage, which would count from the file's end."""
    path = f"memory:/{tmp_path}/moved.parquet" if stored else str(tmp_path / "moved.parquet")
    with fsspec.open(path, "wb") as file:
        file.write(move_chunk(whole(kind), 2, 1, offset))
    ds = windrow.read_parquet(path, target_block_bytes=1, columns=["few"])
    with pytest.raises(CorruptBlockError, match="row group 2"):
        list(ds.iter_batches())
    kept = ds.repeat(1).options(on_error="skip", executor="threads", progress=False)
    with pytest.warns(RuntimeWarning, match="a corrupt block is skipped"):
        assert sum(len(batch["few"]) for batch in kept.iter_batches()) == ROWS - GROUP_ROWS


def test_judge_detects_corruption_if_the_reader_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The fuzz test is sensitive: with the reader's checks disabled, it detects the corruption."""
    whole_file = pq.ParquetFile

    def unchecked(file: Any, **options: Any) -> Any:
        return whole_file(file, **{**options, "page_checksum_verification": False})

    monkeypatch.setattr(pq, "ParquetFile", unchecked)
    file = whole("checksums plain")
    content = bytearray(file.content)
    content[file.chunks[0][1] - 1] ^= 1
    with pytest.raises(AssertionError, match="corruption under a checksum"):
        judge(Case("checksums plain", flip_in_checked_page, False, False, bytes(content)), tmp_path)
