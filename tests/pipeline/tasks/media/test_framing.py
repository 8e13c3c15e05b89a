"""The windows of images that are scaled to the size of the pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.pipeline.tasks.media.framing import Framing
from windrow.pipeline.tasks.row_generator import StoredRows


@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    extra=st.none() | st.integers(0, 20),
    crop=st.sampled_from(["center", "random", "random_resized", None]),
    seed=st.integers(0, 99),
)
def test_windows_lie_in_the_image(
    width: int, height: int, size: tuple[int, int], extra: int | None, crop: Any, seed: int
) -> None:
    side = max(size) + extra if extra is not None and crop in ("center", "random") else None
    framing = Framing(size, crop, side)
    drawn = StoredRows(0, 0, seed).generator(0, 0, 1, changes_rows=False).random(23)[0]
    window = framing.window(width, height, drawn)
    assert window is not None
    assert 0 <= window.left < window.right <= width
    assert 0 <= window.top < window.bottom <= height
    if crop in ("center", "random"):
        across, down = (window.right - window.left) / size[1], (window.bottom - window.top) / size[0]
        # both sides are scaled alike, but for the rounding of the scaled image to whole pixels: 7 x 4 becomes 1 x 1
        least = min(width, height, *size)
        assert across / down == pytest.approx(1, rel=1 if least < 2 else 0.5 if least < 8 else 0.15)


@pytest.mark.parametrize(
    ("first", "second", "sides"),
    [(0.0, 0.0, (50, 50)), (0.5, 0.0, (71, 71)), (0.999, 0.0, (87, 87)), (0.0, 0.999, (100, 25))],
)
def test_resized_crops_have_areas_and_shapes_of_their_ranges(
    first: float, second: float, sides: tuple[int, int]
) -> None:
    """Drawn evenly: the area from a quarter to three quarters, and the logarithm of the shape from 1 to 4."""
    framing = Framing((10, 10), "random_resized", scale=(0.25, 0.75), ratio=(1, 4))
    drawn = np.zeros(framing.draws)
    drawn[-2 * 10 : -2 * 10 + 2] = first, second
    window = framing.window(100, 100, drawn)
    assert window is not None
    assert (window.right - window.left, window.bottom - window.top) == sides
