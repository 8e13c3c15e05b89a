"""`DecodeImages`: a column of compressed images becomes one of pixels."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from windrow.io.formats.image_pixels import PixelFormat, image_errors, load_pillow, to_array
from windrow.pipeline.tasks.media.column_decoder import FIX, ColumnDecoder, Draws
from windrow.pipeline.tasks.media.framing import Framing, Window, frame_image
from windrow.pipeline.tasks.media.made_columns import FixedColumn, MadeColumn, VariableColumn

_WHOLE = (1.0, 1.0)
_ORIENTATION = 0x0112
# orientations that exchange height and width
_TURNED = (5, 6, 7, 8)


@dataclass(frozen=True)
class DecodeImages(ColumnDecoder):
    """``decode_images``: Pillow decodes each row, into one array if the images get one size."""

    pixels: PixelFormat
    framing: Framing
    exif_orientation: bool
    # how many times the final size a JPEG must at least have after it is scaled while it is decoded
    reducing_gap: float | None

    @property
    def draws(self) -> int:
        return self.framing.draws

    @property
    def fails_at_random(self) -> bool:
        # the part that is cut out decides at which scale a JPEG is decoded
        return self.reducing_gap is not None and self.draws > 0

    def empty_column(self, rows: int) -> MadeColumn:
        if self.framing.size is None:
            return VariableColumn(self.pixels.variable_type)
        return FixedColumn(rows, self.pixels.shape(*self.framing.size), self.pixels.dtype)

    def decode(self, data: Any, draws: Draws) -> NDArray[Any]:
        pillow = load_pillow("decode_images()")
        with image_errors(pillow, FIX), pillow.open(io.BytesIO(data)) as image:
            orientation = image.getexif().get(_ORIENTATION, 1) if self.exif_orientation else 1
            width, height = image.size[::-1] if orientation in _TURNED else image.size
            window = self.framing.window(width, height, draws)
            reduced = self._reduce(image, window, orientation in _TURNED)
            made = self.pixels.convert(_upright(image, orientation))
            return to_array(frame_image(pillow, made, self.framing, draws, window, reduced))

    def _reduce(self, image: Any, window: Window | None, is_turned: bool) -> tuple[float, float]:
        """Have the decoder scale down where its result is still large enough; returns the scale, (across, down)."""
        if window is None or self.reducing_gap is None or self.framing.size is None:
            return _WHOLE
        rows, columns = self.framing.size
        width, height = image.size[::-1] if is_turned else image.size
        across = columns / (window.right - window.left) * self.reducing_gap
        down = rows / (window.bottom - window.top) * self.reducing_gap
        needed = (max(1, int(width * across)), max(1, int(height * down)))
        stored = image.size
        drafted = image.draft(None, needed[::-1] if is_turned else needed)
        if drafted is None or image.size == stored:
            return _WHOLE
        _, (_, _, right, bottom) = drafted
        scale = (right / stored[0], bottom / stored[1])
        return scale[::-1] if is_turned else scale


def _upright(image: Any, orientation: int) -> Any:
    """Apply the orientation that a camera has noted."""
    if orientation not in range(2, 9):
        return image
    from PIL.ImageOps import exif_transpose

    return exif_transpose(image)
