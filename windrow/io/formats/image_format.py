"""Image files: one row per file, decoded by Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.core.variable_tensors import to_tensor_column
from windrow.io.catalog.file_format import Survey
from windrow.io.formats.block_files import make_corrupt_error, open_path
from windrow.io.formats.image_pixels import (
    ImageError,
    PixelFormat,
    check_size,
    describe_limit,
    image_errors,
    is_too_large,
    load_pillow,
    to_array,
)
from windrow.io.formats.numpy_types import column_type, to_column
from windrow.io.formats.whole_file_format import Contents, WholeFileFormat
from windrow.io.storage.filesystems import Files

_IMAGE = "image"
_SAMPLE = 16
_HEAD_BYTES = 64 * 1024
# assumed ratio of decoded to file size; affects only how many images form a part
_GROWTH = 8
_FIX = "restore it, or leave it out with include_paths=True and filter= on the column 'path'"


@dataclass(frozen=True)
class ImageFormat(WholeFileFormat):
    """One row per file: the decoded image.

    ``size`` is the (height, width) to which all images are scaled, so that they form a tensor. None keeps
    their sizes: rows then are tensors of several shapes. ``mode`` is Pillow's name for the pixel format.
    """

    size: tuple[int, int] | None = None
    mode: str = "RGB"
    name: str = "image"

    def __post_init__(self) -> None:
        PixelFormat(self.mode)
        if self.size is not None:
            object.__setattr__(self, "size", check_size(self.size))
        _pillow()

    @property
    def options(self) -> str:
        kind = "tensors of variable shape" if self.size is None else self.size
        return f"size={kind}, mode={self.mode!r}"

    def survey(self, files: Files, paths: Sequence[str], file_bytes: NDArray[np.int64]) -> Survey:
        """Compute sizes if images are scaled; otherwise extrapolate from the headers of a sample."""
        places = np.unique(np.linspace(0, len(paths) - 1, 1 if self.size else _SAMPLE).astype(np.int64))
        sampled = [(paths[place], int(file_bytes[place])) for place in places.tolist()]
        with ThreadPoolExecutor(len(sampled), "windrow-looking") as threads:
            found = list(threads.map(lambda look: self._look(files, *look), sampled))
        if self.size is not None:
            kind = column_type(self._pixels.dtype, self._pixels.shape(*self.size))
            each = np.full(len(paths), self._pixels.pixel_bytes * prod(self.size), np.int64)
            return Survey(pa.schema([pa.field(_IMAGE, kind)]), each, {})
        sizes = np.array([self._pixels.pixel_bytes * prod(size) for size in found], np.int64)
        if (sizes == sizes[0]).all():
            estimates = np.full(len(paths), sizes[0], np.int64)
        else:
            estimates = (file_bytes * (sizes.sum() / file_bytes[places].sum())).astype(np.int64) + 1
        return Survey(
            pa.schema([pa.field(_IMAGE, self._pixels.variable_type)]), estimates, {_IMAGE: estimates}
        )

    def estimate_row_bytes(self, size_bytes: int) -> int:
        return self._pixels.pixel_bytes * prod(self.size) if self.size else _GROWTH * size_bytes

    def columns(self, files: Files, contents: Contents, names: Sequence[str]) -> Mapping[str, pa.Array]:
        if self.size is not None:
            stacked = np.empty((len(contents.paths), *self._pixels.shape(*self.size)), self._pixels.dtype)
            for place, image in enumerate(self._decode_all(files, contents)):
                stacked[place] = image
            return {_IMAGE: to_column(stacked)}
        return {_IMAGE: to_tensor_column(self._decode_all(files, contents), self._pixels.variable_type)}

    @property
    def _pixels(self) -> PixelFormat:
        return PixelFormat(self.mode)

    def _look(self, files: Files, path: str, size_bytes: int) -> tuple[int, int]:
        """Read (height, width) from an image's header."""
        name = files.name(path)
        last_error: Exception | None = None
        with files.mapped_errors(name), open_path(files, path, size_bytes) as file:
            # some formats store their header at the end
            for stop in dict.fromkeys((min(size_bytes, _HEAD_BYTES), size_bytes)):
                head = io.BytesIO(file.read_range(0, stop))
                try:
                    with _pillow().open(head) as image:
                        width, height = image.size
                        return height, width
                except Exception as error:
                    if is_too_large(_pillow(), error):
                        raise SourceError(f"{name} {describe_limit(_pillow(), error)}") from error
                    last_error = error
        raise SourceError(f"{name} is not an image that Pillow can read: {_FIX}") from last_error

    def _decode_all(self, files: Files, contents: Contents) -> Iterator[NDArray[Any]]:
        pillow, data = _pillow(), contents.data.data
        bounds = zip(contents.ends[:-1].tolist(), contents.ends[1:].tolist(), strict=True)
        for path, (start, stop) in zip(contents.paths, bounds, strict=True):
            try:
                with image_errors(pillow, _FIX), pillow.open(io.BytesIO(data[start:stop])) as image:
                    decoded = self._decode(pillow, image)
            except ImageError as error:
                raise _to_source_error(files, files.name(path), error) from error.__cause__
            yield decoded

    def _decode(self, pillow: Any, image: Any) -> NDArray[Any]:
        image = self._pixels.convert(image)
        if self.size is not None and image.size != self.size[::-1]:
            image = image.resize(self.size[::-1], pillow.Resampling.BILINEAR)
        return to_array(image)


def _to_source_error(files: Files, name: str, error: ImageError) -> SourceError:
    if error.cause == "corrupt":
        return make_corrupt_error(files, name, error.__cause__ or error)
    kind = CorruptBlockError if error.cause == "not an image" else SourceError
    return kind(f"{name} {error}")


def _pillow() -> Any:
    return load_pillow("read_images()")
