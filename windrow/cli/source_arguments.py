"""The arguments that name data, shared by subcommands, and the dataset that they name."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import windrow
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset

__all__ = ["add_source_arguments", "format_reader_call", "open_dataset", "parse_options"]

_READERS: dict[str, Callable[..., Dataset]] = {
    "parquet": windrow.read_parquet,
    "arrow": windrow.read_arrow,
    "csv": windrow.read_csv,
    "json": windrow.read_json,
    "text": windrow.read_text,
    "numpy": windrow.read_numpy,
    "images": windrow.read_images,
    "binary": windrow.read_binary_files,
    "tfrecords": windrow.read_tfrecords,
    "webdataset": windrow.read_webdataset,
    "delta": windrow.read_delta,
    "iceberg": windrow.read_iceberg,
    "lance": windrow.read_lance,
}
_SUFFIXES = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    ".txt": "text",
    **dict.fromkeys((".npy", ".npz"), "numpy"),
    **dict.fromkeys((".jpg", ".jpeg", ".png"), "images"),
    **dict.fromkeys((".tfrecord", ".tfrecords"), "tfrecords"),
    ".tar": "webdataset",
    ".lance": "lance",
}
_COMPRESSED = re.compile(r"\.(gz|bz2|zst|lz4|xz)$")


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
        keywords["columns"] = arguments.columns.split(",")
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
        path = _first_file(folder) if not path.rstrip("/").endswith(".lance") else path
    suffix = os.path.splitext(_COMPRESSED.sub("", path.rstrip("/").lower()))[1]
    return _SUFFIXES.get(suffix.rstrip("*"), "parquet")


def _first_file(folder: Path) -> str:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        visible = sorted(name for name in files if not name.startswith((".", "_")))
        if visible:
            return os.path.join(where, visible[0])
    return ""
