"""Which files of a directory of a Hugging Face repository are data: others describe the repository."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable

from windrow.core.errors import SourceError
from windrow.io.catalog.file_suffixes import SUFFIXES
from windrow.io.storage.hub import parse_hub_path

# By the name of the format. A directory read as another one means all files but the descriptions.
_READERS = {
    "Arrow": "read_arrow",
    "Avro": "read_avro",
    "CSV": "read_csv",
    "HDF5": "read_hdf5",
    "JSON": "read_json",
    "NumPy": "read_numpy",
    "ORC": "read_orc",
    "Parquet": "read_parquet",
    "TFRecord": "read_tfrecords",
    "WebDataset": "read_webdataset",
    "image": "read_images",
    "text": "read_text",
}
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".lz4", ".snappy", ".br")
_DESCRIPTIONS = {
    "readme.md",
    "license",
    "license.md",
    "license.txt",
    "dataset_infos.json",
    "dataset_dict.json",
}
_SHOWN = 5


def is_data_file(path: str, format_name: str) -> bool:
    """Whether a file of a directory is read as this format.

    >>> is_data_file("data/train.jsonl.gz", "JSON"), is_data_file("dataset_infos.json", "JSON")
    (True, False)
    >>> is_data_file("data/train.orc", "ORC"), is_data_file("data/train.csv", "ORC")
    (True, False)
    >>> is_data_file("README.md", "binary"), is_data_file("clips/0.wav", "binary")
    (False, True)
    """
    name = posixpath.basename(path).lower()
    if name in _DESCRIPTIONS:
        return False
    reader = _READERS.get(format_name)
    return reader is None or _plain_suffix(name) in SUFFIXES[reader]


def _plain_suffix(name: str) -> str:
    stem, suffix = posixpath.splitext(name)
    return posixpath.splitext(stem)[1] if suffix in _COMPRESSED else suffix


def make_no_files_error(path: str, others: Iterable[str], format_name: str | None) -> SourceError:
    """The error for a directory of a repository that holds no file of a format but perhaps ``others``."""
    url, place = f"hf://{path}", parse_hub_path(path)
    names = [posixpath.basename(other).lower() for other in others]
    counts = Counter(_plain_suffix(name) or name for name in names if name not in _DESCRIPTIONS)
    if not counts:
        return SourceError(
            f"{url} is a directory without data files: check the path, or upload the data first"
        )
    shown = ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common(_SHOWN))
    fixes = [
        f"{reader} for its {name} files"
        for name, reader in _READERS.items()
        if not counts.keys().isdisjoint(SUFFIXES[reader])
    ]
    if format_name == "Parquet" and place is not None and place.type == "dataset":
        converted = place._replace(path="").at("refs/convert/parquet")
        fixes.append(
            "the Parquet files that the Hub has made of them: "
            f'read_parquet("hf://{converted}"), or "@~parquet" for short'
        )
    fix = f"use {'; or '.join(fixes)}" if fixes else "name the files, or give a glob"
    return SourceError(
        f"{url} has no {format_name} files, going by the ends of their names, but {shown}: {fix}"
    )
