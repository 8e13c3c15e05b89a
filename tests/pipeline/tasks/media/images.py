"""Images, and what decoding them gives, computed with Pillow alone."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def picture(number: int, width: int = 40, height: int = 30) -> Image.Image:
    """A picture of its own for each number."""
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    waves = [np.sin(across / (3 + number % 5) + number), np.cos(down / (2 + number % 7) - number)]
    channels = [waves[0], waves[1], waves[0] * waves[1]]
    return Image.fromarray((127 + 120 * np.stack(channels, axis=-1)).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decode(data: bytes, mode: str = "RGB") -> Image.Image:
    """What Pillow decodes."""
    return Image.open(io.BytesIO(data)).convert(mode)


def center_crop(image: Image.Image, size: int, shorter_side: int) -> NDArray[Any]:
    """torchvision's ``CenterCrop(size)`` of ``Resize(shorter_side)``."""
    width, height = image.size
    short, long = min(image.size), max(image.size)
    scaled = int(shorter_side * long / short)
    full = (shorter_side, scaled) if width <= height else (scaled, shorter_side)
    left, top = round((full[0] - size) / 2.0), round((full[1] - size) / 2.0)
    resized = image.resize(full, Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def random_resized_crop(
    image: Image.Image,
    size: tuple[int, int],
    draws: NDArray[Any],
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> NDArray[Any]:
    """torchvision's ``RandomResizedCrop``, with ``draws`` for its random numbers."""
    width, height = image.size
    for attempt in range(10):
        first, second = draws[3 + 2 * attempt], draws[4 + 2 * attempt]
        area = height * width * (scale[0] + (scale[1] - scale[0]) * first)
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * second)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(draws[1] * (height - h + 1)), int(draws[2] * (width - w + 1))
            break
    else:
        w, h = width, height
        if width / height < ratio[0]:
            h = round(width / ratio[0])
        elif width / height > ratio[1]:
            w = round(height * ratio[1])
        top, left = (height - h) // 2, (width - w) // 2
    cut = image.crop((left, top, left + w, top + h))
    return np.asarray(cut.resize(size[::-1], Image.Resampling.BILINEAR))
