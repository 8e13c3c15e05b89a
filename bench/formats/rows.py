"""Images and binary files, with one row per file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import windrow
from bench.formats.case import Case, on_all_cores

_SIZE = (224, 224)
_STORED = (256, 320)
_FILE_BYTES = 10_000
# several files per call: the overhead of a call is as large as reading a small file
_AT_ONCE = 64


def _make_jpeg(folder: Path, size_bytes: int) -> None:
    from PIL import Image

    bits = np.random.Generator(np.random.PCG64(0))
    for number in range(max(1, size_bytes // (3 * _STORED[0] * _STORED[1]))):
        # smooth like photographs, so that decoding costs the same
        coarse = Image.fromarray(bits.integers(0, 256, (16, 20, 3), np.uint8))
        coarse.resize(_STORED[::-1]).save(folder / f"{number:06}.jpg", quality=90)


def _decode(paths: Sequence[Path]) -> int:
    from PIL import Image

    out = np.empty((len(paths), *_SIZE, 3), np.uint8)
    for place, path in enumerate(paths):
        with Image.open(path) as image:
            out[place] = np.asarray(image.convert("RGB").resize(_SIZE[::-1], Image.Resampling.BILINEAR))
    return len(out)


def _make_binary(folder: Path, size_bytes: int) -> None:
    bits = np.random.Generator(np.random.PCG64(0))
    for number in range(max(1, size_bytes // _FILE_BYTES)):
        (folder / f"{number:06}.bin").write_bytes(bits.bytes(_FILE_BYTES))


def _load(paths: Sequence[Path]) -> int:
    return sum(len(path.read_bytes()) > 0 for path in paths)


def _cut(folder: Path) -> list[list[Path]]:
    paths = sorted(folder.iterdir())
    return [paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)]


ROWS = (
    Case(
        "images",
        _make_jpeg,
        lambda folder: on_all_cores(_decode, _cut(folder)),
        lambda folder: windrow.read_images(str(folder), size=_SIZE),
    ),
    Case(
        "binary",
        _make_binary,
        lambda folder: on_all_cores(_load, _cut(folder)),
        lambda folder: windrow.read_binary_files(str(folder)),
    ),
)
