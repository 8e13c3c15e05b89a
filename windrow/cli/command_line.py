"""What subcommands share: the arguments that name data and describe a pipeline, and how results are printed."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, TextIO

import windrow
from windrow.core.errors import PlanError
from windrow.core.terminal_text import align_columns, escape_controls
from windrow.dataset.dataset import Dataset, DatasetPipeline
from windrow.io.catalog.file_suffixes import SUFFIXES

_READERS: dict[str, Callable[..., Dataset]] = {
    "parquet": windrow.read_parquet,
    "arrow": windrow.read_arrow,
    "avro": windrow.read_avro,
    "orc": windrow.read_orc,
    "csv": windrow.read_csv,
    "json": windrow.read_json,
    "text": windrow.read_text,
    "numpy": windrow.read_numpy,
    "hdf5": windrow.read_hdf5,
    "zarr": windrow.read_zarr,
    "images": windrow.read_images,
    "binary": windrow.read_binary_files,
    "tfrecords": windrow.read_tfrecords,
    "webdataset": windrow.read_webdataset,
    "mds": windrow.read_mds,
    "delta": windrow.read_delta,
    "iceberg": windrow.read_iceberg,
    "lance": windrow.read_lance,
}
_OF_ARRAYS = ("hdf5", "zarr")
_NAMES = {suffix: name for name, reader in _READERS.items() for suffix in SUFFIXES.get(reader.__name__, ())}
_COMPRESSED = re.compile(r"\.(gz|bz2|zst|lz4|xz)$")
_WIDTH = 110
_LABEL = 10


def add_source_arguments(parser: argparse.ArgumentParser, *, many: bool = True) -> None:
    """Add the arguments that `open_dataset` takes; ``many``: the paths too."""
    if many:
        parser.add_argument("paths", nargs="+", metavar="PATH", help="files, directories, globs or URLs")
    parser.add_argument(
        "--format", choices=sorted(_READERS), help="of the data; by default by the suffix, else Parquet"
    )
    parser.add_argument("--columns", metavar="A,B", help="the columns to read; by default all")
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the filesystem, such as endpoint_url=http://...; may be repeated",
    )
    parser.add_argument(
        "--target-block-bytes",
        metavar="SIZE",
        help="the size of blocks, such as 16MiB; by default chosen from the footers",
    )


def open_dataset(arguments: argparse.Namespace, paths: list[str] | None = None) -> Dataset:
    """Open the dataset that arguments name; reads its metadata."""
    reader, given, keywords = _find_call(arguments, paths)
    return reader(given, **keywords)


def format_reader_call(arguments: argparse.Namespace, **changed: str) -> str:
    """The Python call that opens the dataset, without the values of storage options, which can be secret."""
    reader, given, keywords = _find_call(arguments, None)
    keywords.update(changed)
    shown = {name: f"{value!r}" for name, value in keywords.items()}
    if "storage_options" in keywords:
        shown["storage_options"] = (
            "{" + ", ".join(f"{name!r}: ..." for name in keywords["storage_options"]) + "}"
        )
    more = "".join(f", {name}={value}" for name, value in shown.items())
    return f"windrow.{reader.__name__}({given!r}{more})"


def parse_options(given: list[str]) -> dict[str, Any]:
    """Parse storage options: values are JSON where they can be read as such, else text.

    >>> parse_options(["anon=true", "key=abc", 'client_kwargs={"region_name": "eu"}'])
    {'anon': True, 'key': 'abc', 'client_kwargs': {'region_name': 'eu'}}
    """
    options: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise PlanError(
                f"--storage-option {shlex.quote(name)} has no value: write --storage-option KEY=VALUE"
            )
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
        if isinstance(options[name], (int, float)) and not isinstance(options[name], bool):
            # keys and secrets can consist of digits
            options[name] = value
    return options


def _find_call(
    arguments: argparse.Namespace, paths: list[str] | None
) -> tuple[Callable[..., Dataset], str | list[str], dict[str, Any]]:
    paths = arguments.paths if paths is None else paths
    name = arguments.format or _guess_format(paths[0])
    keywords: dict[str, Any] = {}
    if arguments.columns:
        names = arguments.columns.split(",")
        # of arrays, only those that are named must have the same length
        keywords["columns"] = {path: path for path in names} if name in _OF_ARRAYS else names
    if arguments.storage_option:
        keywords["storage_options"] = parse_options(arguments.storage_option)
    if arguments.target_block_bytes:
        keywords["target_block_bytes"] = arguments.target_block_bytes
    taken = signature(_READERS[name]).parameters
    for keyword in keywords:
        if keyword not in taken:
            raise PlanError(
                f"windrow.read_{name} takes no {keyword}: leave out --{keyword.replace('_', '-')}"
            )
    if len(paths) > 1 and "paths" not in taken:
        raise PlanError(f"--format {name} reads one table: give one path")
    return _READERS[name], paths[0] if len(paths) == 1 else list(paths), keywords


def _guess_format(path: str) -> str:
    """The format by the suffix of a path, or of the first file of a local directory."""
    folder = Path(path)
    if "://" not in path and folder.is_dir():
        if (folder / "_delta_log").is_dir():
            return "delta"
        if (folder / "index.json").is_file() and any(folder.glob("**/*.mds*")):
            return "mds"
        path = _first_file(folder) if not path.rstrip("/").endswith((".lance", ".zarr")) else path
    suffix = os.path.splitext(_COMPRESSED.sub("", path.rstrip("/").lower()))[1]
    return _NAMES.get(suffix.rstrip("*"), "parquet")


def _first_file(folder: Path) -> str:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        visible = sorted(name for name in files if not name.startswith((".", "_")))
        if visible:
            return os.path.join(where, visible[0])
    return ""


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `make_pipeline` takes, but for the window."""
    parser.add_argument("--blocks-per-window", type=int, metavar="N", help="instead of --window")
    parser.add_argument("--epochs", type=int, metavar="N", help="by default without an end")
    parser.add_argument("--seed", type=int, default=0, help="of the shuffle; by default 0")
    parser.add_argument(
        "--shuffle",
        choices=("rows", "blocks", "none"),
        default="rows",
        help="what is shuffled; by default rows",
    )
    parser.add_argument("--batch-size", type=int, default=256, metavar="ROWS", help="by default 256")


def make_pipeline(
    dataset: Dataset, arguments: argparse.Namespace, window: str | None, **options: Any
) -> DatasetPipeline:
    """Make the pipeline of a dataset; a window of None, without blocks a window, is the whole dataset."""
    pipe: Any = dataset
    if window is not None or arguments.blocks_per_window is not None:
        size = int(window) if window is not None and window.isdigit() else window
        pipe = pipe.window(bytes_per_window=size, blocks_per_window=arguments.blocks_per_window)
    pipe = pipe.repeat(arguments.epochs)
    if arguments.shuffle == "rows":
        pipe = pipe.random_shuffle_each_window(seed=arguments.seed)
    elif arguments.shuffle == "blocks":
        pipe = pipe.randomize_block_order_each_window(seed=arguments.seed)
    made: DatasetPipeline = pipe.options(**options)
    return made


def print_json(value: Any) -> None:
    """Print a value of plain types as JSON."""
    print(json.dumps(value, indent=2, default=str))


def print_text(text: object) -> None:
    """Print text of several lines; other control characters than their ends are escaped."""
    print(escape_controls(str(text), keep="\n"))


def print_line(text: str, *, file: TextIO | None = None, end: str = "\n") -> None:
    """Print one line; all control characters within are escaped."""
    print(escape_controls(text), end=end, file=file, flush=file is not None)


def print_labelled(label: str, text: str) -> None:
    """Print text behind a label, wrapped."""
    print(
        textwrap.fill(
            escape_controls(text),
            _WIDTH,
            initial_indent=label.ljust(_LABEL),
            subsequent_indent=" " * _LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """The lines of a table below a header; the columns numbered in ``right`` are aligned to the right."""
    table = [tuple(map(escape_controls, row)) for row in (header, *rows)]
    return "\n".join(align_columns(table, right))
