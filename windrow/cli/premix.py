"""``windrow premix``: writes data once in a random order, for data too large to mix well by windows."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from windrow.cli.command_line import add_source_arguments, open_dataset, parse_options, print_json, print_line
from windrow.cli.file_facts import read_facts
from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.io.adapters.temporary_folder import LeasedFolder
from windrow.io.catalog.file_source import FileSource
from windrow.io.sinks.commit import lie_within
from windrow.io.sinks.open_store import find_store
from windrow.io.sinks.store import Store
from windrow.io.sinks.written_manifest import WriteResult

# of Parquet, and what write_parquet calls them
_CODECS = {
    "snappy": "snappy", "zstd": "zstd", "gzip": "gzip", "brotli": "brotli",
    "lz4": "lz4", "lz4_raw": "lz4", "uncompressed": None,
}  # fmt: skip
_TERMINAL_SECONDS, _LOG_SECONDS = 1.0, 30.0
_JOIN_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument("source", metavar="SOURCE", help="a file, directory, glob or URL")
    parser.add_argument("target", metavar="TARGET", help="the directory or URL to write; new or interrupted")
    add_source_arguments(parser, many=False)
    parser.add_argument(
        "--target-storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for the target, if its options are not those of the source",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the order; the same seed goes on with a write; by default 0"
    )
    parser.add_argument(
        "--file-bytes", default="64MiB", metavar="SIZE", help="of a file decoded; by default 64MiB"
    )
    parser.add_argument("--compression", choices=sorted(_CODECS), help="by default that of the source")
    parser.add_argument(
        "--spill-dir",
        metavar="DIR",
        help="for the rows between reading and writing; by default the temporary directory",
    )
    parser.add_argument("--memory", metavar="SIZE", help="the memory limit, such as 64GiB")
    parser.add_argument(
        "--executor", choices=("threads", "ray"), default="threads", help="by default threads"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(arguments: argparse.Namespace) -> int:
    """Rewrite the data."""
    dataset = open_dataset(arguments, [arguments.source])
    options = parse_options(arguments.target_storage_option or arguments.storage_option) or None
    store = find_store(arguments.target, None, options)
    _check_apart(dataset, arguments, store)
    compression = _CODECS[arguments.compression or _find_codec(dataset)]
    started = time.monotonic()
    spill = _make_spill_folder(arguments.spill_dir)
    try:
        result = _write(dataset, store, spill.path, compression, arguments)
    finally:
        spill.delete()
    seconds = time.monotonic() - started
    if arguments.json:
        print_json(
            {"target": store.url, "files": len(result.files), "rows": result.rows, "bytes": result.bytes,
             "seed": arguments.seed, "compression": compression, "seconds": round(seconds, 3)}
        )  # fmt: skip
    else:
        print_line(
            f"{store.url}: {result.rows:,} rows in {len(result.files):,} files, {format_bytes(result.bytes)}, "
            f"in the order of seed {arguments.seed}"
        )
    return 0


def _make_spill_folder(parent: str | None) -> LeasedFolder:
    """Make the folder for spilled rows, and delete those of runs that were killed."""
    if parent is not None and not os.path.isdir(parent):
        raise PlanError(f"--spill-dir {parent} is not a directory: create it, or give another one")
    return LeasedFolder(parent)


def _write(
    dataset: Dataset, store: Store, spill: str, compression: str | None, arguments: argparse.Namespace
) -> WriteResult:
    given: dict[str, Any] = {} if arguments.memory is None else {"memory_limit": arguments.memory}
    mixed = dataset.options(executor=arguments.executor, cache="disk", cache_dir=spill, **given)
    mixed = mixed.random_shuffle(seed=arguments.seed, target_block_bytes=arguments.file_bytes)
    decoded = int(dataset._plan.source.blocks.memory_bytes.sum())
    _warn_of_space(spill, decoded, arguments)
    options = parse_options(arguments.target_storage_option or arguments.storage_option) or None
    try:
        with _Progress(store, spill, decoded, mixed.num_blocks(), quiet=arguments.quiet):
            return mixed.write_parquet(
                arguments.target, compression=compression, mode="resume", storage_options=options
            )
    except PlanError as error:
        if "mode='resume'" not in str(error):
            raise
        raise PlanError(
            f"{store.url} holds other files, or an interrupted premix of other data or with other arguments: give "
            "an empty target, or the arguments that began it"
        ) from error
    except KeyboardInterrupt:
        print("premix: files that are complete stay; the same command goes on with them", file=sys.stderr)
        raise


def _check_apart(dataset: Dataset, arguments: argparse.Namespace, target: Store) -> None:
    """Raise if a later read of the source or of the target would read both."""
    options = parse_options(arguments.storage_option) or None
    source = dataset._plan.source
    given = find_store(arguments.source, None, options)
    root = given
    if isinstance(source, FileSource):
        root = find_store(source.files.name(""), None, options)
    if lie_within(root, target) and lie_within(target, root):
        raise PlanError(f"the source and the target are both {target.url}: give a target beside the source")
    if lie_within(root, target):
        raise PlanError(
            f"the source {root.url} lies in the target {target.url}, which would then hold every row twice: "
            "give a target beside the source"
        )
    # below a glob or beside a file, a target is not read with them
    if lie_within(target, given):
        raise PlanError(
            f"the target {target.url} lies in the source {given.url}, which would then hold every row twice: give a "
            "target beside the source"
        )


def _find_codec(dataset: Dataset) -> str:
    """The codec that stores most bytes of the source; that of `write_parquet` if it is not Parquet."""
    source = dataset._plan.source
    if not isinstance(source, FileSource) or source.format.name != "Parquet":
        return "snappy"
    codecs = {name: size for name, size in read_facts(source).codecs.items() if name in _CODECS}
    return max(codecs, key=codecs.__getitem__, default="snappy")


def _warn_of_space(folder: str, decoded: int, arguments: argparse.Namespace) -> None:
    free = shutil.disk_usage(folder).free
    if arguments.executor == "threads" and free < decoded:
        print_line(
            f"warning: the rows take about {format_bytes(decoded)} between reading and writing, and {folder} has "
            f"{format_bytes(free)} free: give another --spill-dir if they are too large for it",
            file=sys.stderr,
        )


class _Progress:
    """Shows how much has been spilled and written: on one line of a terminal, else as a line now and then."""

    def __init__(self, store: Store, spill: str, decoded: int, files: int, *, quiet: bool) -> None:
        self._store, self._spill, self._decoded, self._files = store, spill, decoded, files
        self._is_terminal = sys.stderr.isatty()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._show, name="windrow-progress", daemon=True)
        self._quiet = quiet

    def __enter__(self) -> _Progress:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if not self._quiet:
            self._thread.join(_JOIN_SECONDS)
            self._print(self._line(), last=True)

    def _show(self) -> None:
        while not self._end.wait(_TERMINAL_SECONDS if self._is_terminal else _LOG_SECONDS):
            self._print(self._line(), last=False)

    def _line(self) -> str:
        spilled = written = 0
        # for a display only: files vanish meanwhile, and a listing can fail for a moment
        with suppress(Exception):
            spilled = _folder_bytes(self._spill)
        with suppress(Exception):
            written = sum(path.endswith(".parquet") for path in self._store.list_files())
        return (
            f"premix: {format_bytes(spilled)} of about {format_bytes(self._decoded)} divided, "
            f"{written:,} of {self._files:,} files written"
        )

    def _print(self, line: str, *, last: bool) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr)
            print_line(line, end="\n" if last else "", file=sys.stderr)
        else:
            print_line(line, file=sys.stderr)


def _folder_bytes(folder: str) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.path.getsize(os.path.join(where, name))
    return total
