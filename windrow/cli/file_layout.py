"""How data is divided into files and row groups, and what of it costs time or keeps windows from mixing."""

from __future__ import annotations

from typing import Any

import numpy as np

from windrow.core.byte_sizes import format_bytes
from windrow.io.catalog.file_source import FileSource
from windrow.pipeline.statistics.bottleneck import PipelineFacts

__all__ = ["FEW_BLOCKS", "count", "describe_files", "spread", "warn_of_files"]

# explain() warns where windows hold fewer blocks
FEW_BLOCKS = 8
_LARGE_GROUP_BYTES = 256 * 2**20
_SMALL_GROUP_BYTES = 2**20
# of so few, reading all takes no time whatever their size
_MANY_GROUPS = 256
# row groups of less mix well in windows of usual sizes
_COARSE_BLOCK_BYTES = 16 * 2**20


def describe_files(source: FileSource) -> dict[str, Any]:
    """Numbers and sizes of the files, their row groups, and how these become blocks."""
    manifest = source.manifest
    return {
        "format": source.format.name,
        "files": manifest.fragments,
        "stored_bytes": int(manifest.file_bytes.sum()),
        "row_groups": manifest.row_groups,
        "row_group_rows": spread(manifest.rows.astype(np.int64)),
        "row_group_encoded_bytes": spread(manifest.encoded_bytes.astype(np.int64)),
        "files_of_one_row_group": int((np.diff(manifest.row_group_ends, prepend=0) == 1).sum()),
        "cut_row_groups": source.cut_row_groups,
        "blocks": len(source.blocks.rows),
        "target_block_bytes": source.block_bytes,
    }


def spread(values: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, int]:
    """The least, the mean and the most."""
    if not len(values):
        return {"least": 0, "mean": 0, "most": 0}
    return {"least": int(values.min()), "mean": int(values.mean()), "most": int(values.max())}


def warn_of_files(found: dict[str, Any]) -> list[str]:
    """What `describe_files` found that costs time or keeps windows from mixing, and how to fix it; one line each."""
    lines = []
    groups, files, encoded = found["row_groups"], found["files"], found["row_group_encoded_bytes"]
    cut, largest = found["cut_row_groups"], format_bytes(encoded["most"])
    if cut:
        lines.append(
            f"large row groups: {count(cut, 'row group')} of up to {largest} encoded "
            f"{'is' if cut == 1 else 'are'} cut into blocks of adjacent rows. Windows mix these, and a task holds only "
            "one decoded. Pages at the borders and dictionaries are decoded more than once: write row groups of 64 "
            "MiB or less"
        )
    elif encoded["most"] > _LARGE_GROUP_BYTES:
        lines.append(
            f"large row groups: up to {largest} encoded. These are not cut, so a window that mixes {FEW_BLOCKS} of "
            f"them takes {format_bytes(FEW_BLOCKS * encoded['most'])}, and a task holds one decoded. Write row groups "
            "of 64 MiB or less, or leave target_block_bytes to windrow"
        )
    if encoded["mean"] < _SMALL_GROUP_BYTES and groups > max(_MANY_GROUPS, FEW_BLOCKS * files):
        joined = (
            "Adjacent ones are joined into blocks, which costs no quality"
            if found["blocks"] < groups
            else "Each is a block of its own"
        )
        lines.append(
            f"small row groups: {format_bytes(encoded['mean'])} encoded on average, so reads are many and small. "
            f"{joined}; write row groups of some MiB for speed"
        )
    single, coarse = found["files_of_one_row_group"], max(found["target_block_bytes"], _COARSE_BLOCK_BYTES)
    if single == files > 1 and not cut and encoded["mean"] > coarse:
        lines.append(
            f"files of one row group: each of the {files:,} files is one block of {format_bytes(encoded['mean'])} "
            "encoded, too small to be cut. Windows consist of whole files; several row groups a file give finer "
            "windows"
        )
    mean_bytes = found["stored_bytes"] / max(1, files)
    if PipelineFacts(files=files, file_bytes=mean_bytes).has_small_files:
        lines.append(
            f"small files: {files:,} files of {format_bytes(mean_bytes)} on average. Adjacent ones share a block, but "
            "each file is listed and opened, which costs about as much as decoding 100 KB, and a request on object "
            "storage. Write larger files, with windrow premix or write_parquet()"
        )
    return lines


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "file"), count(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
