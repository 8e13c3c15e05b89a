"""Corrupts Parquet files by seed, reads them and judges the results: ``python -m tests.io.fuzzing FIRST COUNT``.
Prints each case before it begins, so that the caller knows which case crashed the process.
"""

from __future__ import annotations

import faulthandler
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import numpy as np
import pyarrow as pa

import windrow
from tests.end_to_end.reading import read_pass
from tests.io.corruption import CORRUPTION, GROUP_ROWS, KINDS, ROWS, Corruption, flip_in_checked_page, whole
from tests.io.files import cut_source
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.file_source import FileSource
from windrow.io.parquet import decoder_library

__all__ = ["Case", "judge"]

_CASE_SECONDS = 60
_ADDRESS_SPACE = 8 * 2**30
_LIBRARY = decoder_library.LIBRARY
_MEMORY = fsspec.filesystem("memory")

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """One corrupt file, on disk or, if ``stored``, in object storage; ``listed`` before its corruption or after.

    With ``cut`` its row groups are read in pieces.
    """

    kind: str
    corruption: Corruption
    listed: bool
    stored: bool
    content: bytes
    cut: bool = False

    @classmethod
    def draw(cls, seed: int) -> Case:
        """The case of a seed."""
        rng = np.random.Generator(np.random.PCG64(seed))
        kind = list(KINDS)[rng.integers(len(KINDS))]
        corruption = CORRUPTION[rng.integers(len(CORRUPTION))]
        listed = bool(rng.integers(3) == 0)
        file = whole(kind)
        content = corruption(bytearray(file.content), file, rng)
        stored, cut = bool(rng.integers(5) == 0), bool(rng.integers(3) == 0)
        return cls(kind, corruption, listed, stored, content, cut)

    @property
    def checked(self) -> bool:
        """Whether checksums cover all of the corruption."""
        return self.corruption is flip_in_checked_page and self.kind.startswith("checksums")


def judge(case: Case, directory: Path) -> str:
    """Read a corrupt file with both decoders, and return the outcome in a word.

    Raises
    ------
    AssertionError
        If rows are detectably wrong.
    """
    file = whole(case.kind)
    path = f"memory:/{directory}/corrupt.parquet" if case.stored else str(directory / "corrupt.parquet")
    options: dict[str, Any] = {"target_block_bytes": 1}
    try:
        if case.listed:
            _write(path, file.content)
            windrow.read_parquet(path).save_manifest(directory / "_manifest")
            options["manifest"] = directory / "_manifest"
        _write(path, case.content)
        ds = windrow.read_parquet(path, **options)
        source = ds._plan.source
        if case.cut and isinstance(source, FileSource):
            ds = windrow.Dataset(LogicalPlan(cut_source(source, GROUP_ROWS // 4)))
    except windrow.WindrowError as error:
        return _named(error, "refused")
    outcomes = [_read(ds, library) for library in (_LIBRARY, None)]
    tables = [outcome for outcome in outcomes if isinstance(outcome, pa.Table)]
    for table in tables:
        assert table.num_rows == (ROWS if case.listed else ds.count()), (table.num_rows, ds.count())
        assert table.schema.equals(file.table.schema if case.listed else ds.schema()), table.schema
        _check_memory(table)
    # versions of zstd decompress a corrupt frame to other bytes, and Arrow has its own version
    if len(tables) == 2 and ("compression", "zstd") not in KINDS[case.kind].options:
        assert _same(*tables), "the two decoders differ"
    if case.checked:
        in_order = ds.options(executor="threads").iter_batches(ROWS, batch_format="pyarrow")
        assert not tables or _same(pa.concat_tables(in_order), file.table), "corruption under a checksum"
    return {0: "error", 1: f"only {'C' if tables and outcomes[0] is tables[0] else 'Arrow'}", 2: "rows"}[
        len(tables)
    ]


def _write(path: str, content: bytes) -> None:
    """Write a new file and rename it: a cancelled task can still have the old file mapped."""
    if path.startswith("memory:"):
        _MEMORY.pipe_file(path, content)
        return
    Path(f"{path}.new").write_bytes(content)
    Path(f"{path}.new").replace(path)


def _read(ds: windrow.Dataset, library: Any) -> pa.Table | windrow.WindrowError:
    decoder_library.LIBRARY = library
    pipe = ds.window(blocks_per_window=3).random_shuffle_each_window(seed=1).options(executor="threads")
    try:
        with pipe.iterator() as shard:
            batches = read_pass(shard, 64)
    except windrow.WindrowError as error:
        return error if isinstance(error, windrow.PlanError) else _named(error, error)
    finally:
        decoder_library.LIBRARY = _LIBRARY
    return pa.concat_tables(batches) if batches else ds.schema().empty_table()


def _named(error: Exception, outcome: T) -> T:
    assert "corrupt.parquet" in str(error), error
    return outcome


def _check_memory(table: pa.Table) -> None:
    """Check that the memory is valid; readers check neither UTF-8 nor the precision of decimals."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        if not re.search("Invalid UTF8|does not fit in precision", str(error)):
            raise


def _same(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables are equal, where NaN equals NaN."""
    return one.num_rows == other.num_rows and all(
        a.equals(b)
        or (pa.types.is_floating(a.type) and np.array_equal(a.to_numpy(), b.to_numpy(), equal_nan=True))
        for a, b in zip(one.columns, other.columns, strict=True)
    )


def main(first: int, count: int) -> None:
    """Judge ``count`` cases; print each before it begins, and all outcomes at the end."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ends: Counter[str] = Counter()
    begin = time.monotonic()
    for seed in range(first, first + count):
        case = Case.draw(seed)
        print(
            f"case {seed}: {case.kind}, {case.corruption.__name__}, {case.listed=}, {case.stored=}, {case.cut=}",
            flush=True,
        )
        faulthandler.dump_traceback_later(_CASE_SECONDS, exit=True)
        try:
            with tempfile.TemporaryDirectory() as directory:
                ends[judge(case, Path(directory))] += 1
            _MEMORY.store.clear()
        except Exception:
            ends["FAILED"] += 1
            print(f"FAILED {seed}: {traceback.format_exc()}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    # rusage would report the peak of the parent process, if that was higher
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) // 1024
    print(
        f"ended {dict(sorted(ends.items()))}, {peak} MiB at most, {time.monotonic() - begin:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    faulthandler.enable()
    main(int(sys.argv[1]), int(sys.argv[2]))
