"""Decoding of images by Pillow: the modes of pixels, and what each failure means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.core.optional_dependencies import require
from windrow.core.variable_tensors import variable_tensor

_PIXELS = re.compile(r"\((\d+) pixels\)")
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

Cause = Literal["too large", "wrong mode", "not an image", "no decoder", "corrupt"]


class ImageError(Exception):
    """Pillow cannot make the requested pixels of an image; the text continues the sentence after its name."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause = cause


@dataclass(frozen=True)
class PixelFormat:
    """Pixels in one of Pillow's modes, as arrays of (height, width, channels), or (height, width) of one channel."""

    mode: str

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise PlanError(f"mode={self.mode!r} must be one of {', '.join(map(repr, _MODES))}")

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(_MODES[self.mode][1])

    @property
    def pixel_bytes(self) -> int:
        return _MODES[self.mode][0] * self.dtype.itemsize

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        channels = _MODES[self.mode][0]
        return (height, width, channels) if channels > 1 else (height, width)

    @property
    def variable_type(self) -> pa.DataType:
        """The type of columns of images of several sizes."""
        return variable_tensor(pa.from_numpy_dtype(self.dtype), len(self.shape(1, 1)))

    def convert(self, image: Any) -> Any:
        """Convert an image to the mode; an `ImageError` if its values do not fit."""
        if image.mode == self.mode:
            return image
        image.load()
        narrows = image.mode.startswith(_WIDE_MODES) and not self.mode.startswith(_WIDE_MODES)
        try:
            if not narrows:
                return image.convert(self.mode)
        except ValueError:
            pass
        reason = ", since its values need more than eight bits" if narrows else ""
        raise ImageError(
            "wrong mode",
            f"is of mode {image.mode!r}, which cannot be converted to {self.mode!r}{reason}: give another mode=, or "
            "convert the file",
        )


def check_size(size: Any) -> tuple[int, int]:
    """Return (height, width) in pixels, equal ones for a single number; a `PlanError` if it is anything else."""
    side = as_integer(size)
    both = size if side is None else (side, side)
    given = tuple(both) if isinstance(both, Sequence) and not isinstance(both, str) else ()
    sides = [side for side in map(as_integer, given) if side is not None and side > 0]
    if len(given) != 2 or len(sides) != 2:
        raise PlanError(
            f"size={size!r} must be (height, width) in pixels, one number for both, or None to keep the sizes of images"
        )
    return sides[0], sides[1]


def load_pillow(why: str) -> Any:
    """Import Pillow; ``why`` is the call that needs it."""
    return require("PIL.Image", "images", why)


def to_array(image: Any) -> NDArray[Any]:
    """The pixels of an image."""
    return np.asarray(image)


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


@contextmanager
def image_errors(pillow: Any, fix: str) -> Iterator[None]:
    """Convert what Pillow raises to an `ImageError`; ``fix`` says what to do about bytes that are not an image."""
    try:
        yield
    except (MemoryError, ImageError):
        raise
    except pillow.UnidentifiedImageError as error:
        raise ImageError("not an image", f"is not an image that Pillow can read: {fix}") from error
    except Exception as error:
        if is_too_large(pillow, error):
            raise ImageError("too large", describe_limit(pillow, error)) from error
        if isinstance(error, NotImplementedError) or "not available" in str(error):
            raise ImageError(
                "no decoder",
                f"holds an image that this Pillow cannot decode: {error}; install a Pillow with that decoder, or "
                "convert the file",
            ) from error
        raise ImageError("corrupt", f"cannot be decoded ({type(error).__name__}: {error}): {fix}") from error
