"""Which part of an image becomes its pixels: scaled, cropped and mirrored, at random by the numbers of its row.

The arithmetic is that of torchvision's `Resize`, `CenterCrop`, `RandomCrop` and `RandomResizedCrop`; a random crop
follows Szegedy et al., "Going Deeper with Convolutions", CVPR 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.io.formats.image_pixels import check_size
from windrow.pipeline.tasks.media.column_decoder import Draws

Crop = Literal["center", "random", "random_resized"]

CROPS: tuple[str, ...] = ("center", "random", "random_resized")
_METHODS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
# the numbers of a row: whether it is mirrored, two for the place of a crop, then two for each attempt at its shape
_FLIP, _TOP, _LEFT, _SHAPES = 0, 1, 2, 3
_ATTEMPTS = 10


class Window(NamedTuple):
    """A rectangle of an image in pixels, which can be fractions where a scaled image is cropped."""

    left: float
    top: float
    right: float
    bottom: float
    # whether scaling it may read no pixel outside of it
    is_cut: bool = False


@dataclass(frozen=True)
class Framing:
    """Scaling and cropping to ``size``, (height, width), or none of it, and mirroring with a probability."""

    size: tuple[int, int] | None
    crop: Crop | None = None
    shorter_side: int | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", check_size(self.size))
        if self.crop is not None and self.crop not in CROPS:
            raise PlanError(f"crop={self.crop!r} must be one of {', '.join(map(repr, CROPS))}, or None")
        if self.crop is not None and self.size is None:
            raise PlanError(f"crop={self.crop!r} needs size=(height, width) of what is cut out")
        self._check_shorter_side()
        for name in ("scale", "ratio"):
            self._check_range(name)
        if not _is_number(self.flip) or not 0 <= self.flip <= 1:
            raise PlanError(f"flip={self.flip!r} must be a probability from 0 to 1")
        if self.interpolation not in _METHODS:
            names = ", ".join(map(repr, _METHODS))
            raise PlanError(f"interpolation={self.interpolation!r} must be one of {names}")

    def _check_shorter_side(self) -> None:
        if self.shorter_side is None:
            return
        side = as_integer(self.shorter_side)
        if self.size is None or self.crop not in ("center", "random"):
            raise PlanError("shorter_side= is for crop='center' and crop='random'")
        if side is None or side < max(self.size):
            raise PlanError(
                f"shorter_side={self.shorter_side!r} must be an integer of {max(self.size)} pixels or more, the longer "
                "side of size="
            )
        object.__setattr__(self, "shorter_side", side)

    def _check_range(self, name: str) -> None:
        given = getattr(self, name)
        if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(map(_is_number, given)):
            raise PlanError(f"{name}={given!r} must be two numbers, (least, most)")
        least, most = map(float, given)
        highest = 1.0 if name == "scale" else math.inf
        if not 0 < least <= most <= highest or math.isinf(most):
            limit = ", at most 1" if name == "scale" else ""
            raise PlanError(f"{name}={given!r} must be two positive numbers, the least one first{limit}")
        object.__setattr__(self, name, (least, most))

    @property
    def draws(self) -> int:
        """How many random numbers a row takes."""
        if self.crop == "random_resized":
            return _SHAPES + 2 * _ATTEMPTS
        return _SHAPES if self.crop == "random" else int(self.flip > 0)

    def is_flipped(self, draws: Draws) -> bool:
        """Whether an image is mirrored left to right."""
        return draws is not None and self.flip > 0 and bool(draws[_FLIP] < self.flip)

    def window(self, width: int, height: int, draws: Draws) -> Window | None:
        """The part of an image that is scaled to ``size``; None: images keep their sizes."""
        if self.size is None:
            return None
        if self.crop is None:
            return Window(0, 0, width, height)
        if self.crop == "random_resized":
            assert draws is not None
            return self._resized_window(width, height, draws)
        rows, columns = self.size
        full_width, full_height = self._scaled_size(width, height)
        if self.crop == "center":
            top, left = round((full_height - rows) / 2), round((full_width - columns) / 2)
        else:
            assert draws is not None
            top = int(draws[_TOP] * (full_height - rows + 1))
            left = int(draws[_LEFT] * (full_width - columns + 1))
        across, down = width / full_width, height / full_height
        return Window(
            left * across,
            top * down,
            min(width, (left + columns) * across),
            min(height, (top + rows) * down),
        )

    def _scaled_size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) of the image of which a window is cut: its shorter side given, or just large enough."""
        assert self.size is not None
        rows, columns = (self.shorter_side, self.shorter_side) if self.shorter_side else self.size
        if columns * height >= rows * width:
            return columns, max(rows, int(columns * height / width))
        return max(columns, int(rows * width / height)), rows

    def _resized_window(self, width: int, height: int, draws: Any) -> Window:
        """A part of a random area and shape, as `RandomResizedCrop` has it."""
        shortest, longest = map(math.log, self.ratio)
        for attempt in range(_ATTEMPTS):
            first, second = draws[_SHAPES + 2 * attempt : _SHAPES + 2 * attempt + 2].tolist()
            area = width * height * (self.scale[0] + (self.scale[1] - self.scale[0]) * first)
            aspect = math.exp(shortest + (longest - shortest) * second)
            columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < columns <= width and 0 < rows <= height:
                top = int(draws[_TOP] * (height - rows + 1))
                left = int(draws[_LEFT] * (width - columns + 1))
                return Window(left, top, left + columns, top + rows, True)
        columns, rows = width, height
        if width / height < self.ratio[0]:
            rows = min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            columns = min(width, max(1, round(height * self.ratio[1])))
        top, left = (height - rows) // 2, (width - columns) // 2
        return Window(left, top, left + columns, top + rows, True)


def frame_image(
    pillow: Any,
    image: Any,
    framing: Framing,
    draws: Draws,
    window: Window | None,
    reduced: tuple[float, float],
) -> Any:
    """Scale, crop and mirror an image of Pillow's.

    ``window`` counts pixels of the stored image, of which ``image`` has ``reduced``, (across, down), times as many.
    """
    if window is not None:
        assert framing.size is not None
        method = pillow.Resampling[framing.interpolation.upper()]
        across, down = reduced
        box = (window.left * across, window.top * down, window.right * across, window.bottom * down)
        box = (box[0], box[1], min(box[2], image.width), min(box[3], image.height))
        size = framing.size[::-1]
        if window.is_cut and reduced == (1.0, 1.0):
            image = image.crop(tuple(map(int, box)))
            box = (0, 0, *image.size)
        if image.size != size or box != (0, 0, *size):
            image = image.resize(size, method, box=box)
    return image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if framing.is_flipped(draws) else image


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
