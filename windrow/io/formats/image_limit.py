"""Pillow's limit on the pixels of an image, which protects against small files that decode to gigabytes."""

from __future__ import annotations

from typing import Any

__all__ = ["describe_limit", "is_too_large"]


def is_too_large(pillow: Any, error: BaseException) -> bool:
    """Whether Pillow refuses an image for its size; a warning, where warnings are errors, counts too."""
    return isinstance(error, (pillow.DecompressionBombError, pillow.DecompressionBombWarning))


def describe_limit(pillow: Any, error: BaseException) -> str:
    """Continue the sentence after an image's name: why it is refused, and what to change."""
    return (
        f"is too large for Pillow, which refuses more than twice PIL.Image.MAX_IMAGE_PIXELS = "
        f"{pillow.MAX_IMAGE_PIXELS:,} ({error}): scale the image down, exclude it, or raise MAX_IMAGE_PIXELS in every "
        "process that reads, if you trust the files"
    )
