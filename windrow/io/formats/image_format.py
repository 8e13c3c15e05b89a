"""Image files: one row per file, decoded by Pillow."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError, SourceError
from windrow.core.integers import as_integer
from windrow.core.optional_dependencies import require
from windrow.core.source import CorruptBlockError
from windrow.core.variable_tensors import to_tensor_column, variable_tensor
from windrow.io.catalog.file_format import Survey
from windrow.io.formats.block_files import make_corrupt_error, open_path
from windrow.io.formats.numpy_types import column_type, to_column
from windrow.io.formats.whole_file_format import Contents, WholeFileFormat
from windrow.io.storage.filesystems import Files

_PIXELS = re.compile(r"\((\d+) pixels\)")
_IMAGE = "image"
# channels and pixel type of each mode; arrays of one channel have no channel dimension
_MODES: dict[str, tuple[int, type[np.generic]]] = {
    "L": (1, np.uint8),
    "LA": (2, np.uint8),
    "RGB": (3, np.uint8),
    "RGBA": (4, np.uint8),
    "CMYK": (4, np.uint8),
    "YCbCr": (3, np.uint8),
    "HSV": (3, np.uint8),
    "LAB": (3, np.uint8),
    "I;16": (1, np.uint16),
    "I": (1, np.int32),
    "F": (1, np.float32),
}
# modes of more than eight bits, which Pillow would clip when converting to others
_WIDE_MODES = ("I", "F")
_SAMPLE = 16
_HEAD_BYTES = 64 * 1024
# assumed ratio of decoded to file size; affects only how many images form a part
_GROWTH = 8
_FIX = "exclude it with a glob, or restore it"


def is_too_large(pillow: Any, error: BaseException) -> bool:
    """Whether Pillow raises an error for an image's size; a warning, where warnings are errors, counts too."""
    return isinstance(error, (pillow.DecompressionBombError, pillow.DecompressionBombWarning))


def describe_limit(pillow: Any, error: BaseException) -> str:
    """Continue the sentence after an image's name: how many pixels it has, the limit, and what to change."""
    found = _PIXELS.search(str(error))
    pixels = "too many pixels" if found is None else f"{int(found[1]):,} pixels"
    is_warning = isinstance(error, pillow.DecompressionBombWarning)
    limit = "PIL.Image.MAX_IMAGE_PIXELS" if is_warning else "twice PIL.Image.MAX_IMAGE_PIXELS"
    return (
        f"has {pixels}, more than Pillow decodes: {limit}, which is {pillow.MAX_IMAGE_PIXELS:,}: scale the image down, "
        "exclude it, or raise MAX_IMAGE_PIXELS in every process that reads, if you trust the files"
    )


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
        if self.mode not in _MODES:
            raise PlanError(f"mode={self.mode!r} must be one of {', '.join(map(repr, _MODES))}")
        if self.size is not None:
            object.__setattr__(self, "size", _check_size(self.size))
        _pillow()

    @property
    def options(self) -> str:
        """The size and mode of images."""
        kind = "tensors of variable shape" if self.size is None else self.size
        return f"size={kind}, mode={self.mode!r}"

    def survey(self, files: Files, paths: Sequence[str], file_bytes: NDArray[np.int64]) -> Survey:
        """Compute sizes if images are scaled; otherwise extrapolate from the headers of a sample."""
        places = np.unique(np.linspace(0, len(paths) - 1, 1 if self.size else _SAMPLE).astype(np.int64))
        sampled = [(paths[place], int(file_bytes[place])) for place in places.tolist()]
        with ThreadPoolExecutor(len(sampled), "windrow-looking") as threads:
            found = list(threads.map(lambda look: self._look(files, *look), sampled))
        if self.size is not None:
            kind = column_type(self._dtype, self._shape(*self.size))
            each = np.full(len(paths), self._pixel_bytes * prod(self.size), np.int64)
            return Survey(pa.schema([pa.field(_IMAGE, kind)]), each, {})
        sizes = np.array([self._pixel_bytes * prod(size) for size in found], np.int64)
        if (sizes == sizes[0]).all():
            estimates = np.full(len(paths), sizes[0], np.int64)
        else:
            estimates = (file_bytes * (sizes.sum() / file_bytes[places].sum())).astype(np.int64) + 1
        return Survey(pa.schema([pa.field(_IMAGE, self._variable_type)]), estimates, {_IMAGE: estimates})

    def estimate_row_bytes(self, size_bytes: int) -> int:
        """Estimate the decoded bytes of an image file of this size."""
        return self._pixel_bytes * prod(self.size) if self.size else _GROWTH * size_bytes

    def columns(self, files: Files, contents: Contents, names: Sequence[str]) -> Mapping[str, pa.Array]:
        """(files,) decoded images."""
        if self.size is not None:
            stacked = np.empty((len(contents.paths), *self._shape(*self.size)), self._dtype)
            for place, image in enumerate(self._decode_all(files, contents)):
                stacked[place] = image
            return {_IMAGE: to_column(stacked)}
        return {_IMAGE: to_tensor_column(self._decode_all(files, contents), self._variable_type)}

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(_MODES[self.mode][1])

    @property
    def _variable_type(self) -> pa.DataType:
        return variable_tensor(pa.from_numpy_dtype(self._dtype), len(self._shape(1, 1)))

    @property
    def _pixel_bytes(self) -> int:
        return _MODES[self.mode][0] * self._dtype.itemsize

    def _shape(self, height: int, width: int) -> tuple[int, ...]:
        """The array shape of an image."""
        channels = _MODES[self.mode][0]
        return (height, width, channels) if channels > 1 else (height, width)

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
                with pillow.open(io.BytesIO(data[start:stop])) as image:
                    decoded = self._decode(pillow, image)
            except MemoryError:
                raise
            except _ModeError as error:
                raise SourceError(f"{files.name(path)} {error}") from error
            except pillow.UnidentifiedImageError as error:
                raise CorruptBlockError(
                    f"{files.name(path)} is not an image that Pillow can read: {_FIX}"
                ) from error
            except Exception as error:
                if is_too_large(pillow, error):
                    raise SourceError(f"{files.name(path)} {describe_limit(pillow, error)}") from error
                if isinstance(error, NotImplementedError) or "not available" in str(error):
                    raise SourceError(
                        f"{files.name(path)} holds an image that this Pillow cannot decode: {error}; install a Pillow "
                        "with that decoder, or convert the file"
                    ) from error
                raise make_corrupt_error(files, files.name(path), error) from error
            yield decoded

    def _decode(self, pillow: Any, image: Any) -> NDArray[Any]:
        if image.mode != self.mode:
            image.load()
            image = self._convert(image)
        if self.size is not None and image.size != self.size[::-1]:
            image = image.resize(self.size[::-1], pillow.Resampling.BILINEAR)
        return np.asarray(image)

    def _convert(self, image: Any) -> Any:
        """Convert an image to the requested mode."""
        narrows = image.mode.startswith(_WIDE_MODES) and not self.mode.startswith(_WIDE_MODES)
        try:
            if not narrows:
                return image.convert(self.mode)
        except ValueError:
            pass
        reason = ", since its values need more than eight bits" if narrows else ""
        raise _ModeError(
            f"is of mode {image.mode!r}, which cannot be converted to {self.mode!r}{reason}: give another mode=, or "
            "convert the file"
        )


class _ModeError(Exception):
    """An image's mode cannot be converted to the requested one."""


def _check_size(size: Any) -> tuple[int, int]:
    given = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else ()
    sides = [side for side in map(as_integer, given) if side is not None and side > 0]
    if len(given) != 2 or len(sides) != 2:
        raise PlanError(
            f"size={size!r} must be (height, width) in pixels, or None to keep the sizes of images"
        )
    return sides[0], sides[1]


def _pillow() -> Any:
    """Import Pillow."""
    return require("PIL.Image", "images", "read_images()")
