"""Pillow's limit on the pixels of an image, which protects against small files that decode to gigabytes."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["describe_limit", "is_too_large"]

_PIXELS = re.compile(r"\((\d+) pixels\)")


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
