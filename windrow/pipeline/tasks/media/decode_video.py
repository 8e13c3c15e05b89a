"""`DecodeVideo`: a column of compressed videos becomes one of a few frames each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.variable_tensors import variable_tensor
from windrow.io.formats.image_pixels import PixelFormat, load_pillow, to_array
from windrow.pipeline.tasks.media.av_errors import open_stream
from windrow.pipeline.tasks.media.column_decoder import FIX, ColumnDecoder, Draws, MediaError
from windrow.pipeline.tasks.media.framing import Framing, frame_image
from windrow.pipeline.tasks.media.made_columns import FixedColumn, MadeColumn, VariableColumn

Sampling = Literal["uniform", "random", "clip", "random_clip"]

_SAMPLINGS = ("uniform", "random", "clip", "random_clip")
_MODES = ("RGB", "L")


@dataclass(frozen=True)
class DecodeVideo(ColumnDecoder):
    """``decode_video``: PyAV decodes the chosen frames of each row, from the keyframes before them on."""

    frames: int
    sampling: Sampling
    stride: int
    apply_rotation: bool
    pixels: PixelFormat
    framing: Framing

    def __post_init__(self) -> None:
        if self.sampling not in _SAMPLINGS:
            names = ", ".join(map(repr, _SAMPLINGS))
            raise PlanError(f"sampling={self.sampling!r} must be one of {names}")
        if self.stride != 1 and self.sampling in ("uniform", "random"):
            raise PlanError(f"stride={self.stride} is for sampling='clip' and sampling='random_clip'")
        if self.pixels.mode not in _MODES:
            raise PlanError(f"mode={self.pixels.mode!r} must be one of {', '.join(map(repr, _MODES))}")

    @property
    def draws(self) -> int:
        """Those of the framing, then those of the choice of frames."""
        return self.framing.draws + {"random": self.frames, "random_clip": 1}.get(self.sampling, 0)

    @property
    def fails_at_random(self) -> bool:
        # only what leads to the chosen frames is decoded
        return self.sampling in ("random", "random_clip")

    def empty_column(self, rows: int) -> MadeColumn:
        if self.framing.size is None:
            kind: Any = self.pixels.variable_type
            return VariableColumn(variable_tensor(kind.value_type, kind.ndim + 1))
        shape = (self.frames, *self.pixels.shape(*self.framing.size))
        return FixedColumn(rows, shape, self.pixels.dtype)

    def decode(self, data: Any, draws: Draws) -> NDArray[Any]:
        pillow = load_pillow("decode_video()")
        images: dict[int, NDArray[Any]] = {}
        with open_stream(data, "video") as (container, stream):
            index = _index_frames(container, stream)
        count = _count_frames(data) if index is None else len(index.pts)
        if not count:
            raise MediaError(f"holds a video without frames: {FIX}")
        chosen = choose_frames(count, self.frames, self.sampling, self.stride, self._own_draws(draws))
        for number, frame in _decode_chosen(data, sorted(set(chosen)), index):
            images[number] = self._fit(pillow, self._upright(pillow, frame), draws)
        return np.stack([images[number] for number in chosen])

    def _own_draws(self, draws: Draws) -> Draws:
        own = None if draws is None else draws[self.framing.draws :]
        return own if own is not None and len(own) else None

    def _upright(self, pillow: Any, frame: Any) -> Any:
        image = frame.to_image()
        quarters = round(frame.rotation / 90) % 4 if self.apply_rotation else 0
        # both count against the clock
        return image if quarters == 0 else image.transpose(pillow.Transpose[f"ROTATE_{90 * quarters}"])

    def _fit(self, pillow: Any, image: Any, draws: Draws) -> NDArray[Any]:
        width, height = image.size
        window = self.framing.window(width, height, draws)
        made = self.pixels.convert(image)
        return to_array(frame_image(pillow, made, self.framing, draws, window, (1.0, 1.0)))


def choose_frames(count: int, frames: int, sampling: Sampling, stride: int, draws: Draws) -> list[int]:
    """The numbers of the chosen frames of a video of ``count`` frames, in ascending order.

    >>> choose_frames(100, 4, "uniform", 1, None)
    [12, 37, 62, 87]
    >>> choose_frames(100, 4, "clip", 2, None)
    [46, 48, 50, 52]
    """
    if sampling in ("uniform", "random"):
        within = np.full(frames, 0.5) if draws is None else draws[:frames]
        places = (np.arange(frames) + within) * count / frames
        return np.minimum(places.astype(np.int64), count - 1).tolist()
    spare = max(0, count - ((frames - 1) * stride + 1))
    start = spare // 2 if draws is None else int(draws[0] * (spare + 1))
    return [min(start + step * stride, count - 1) for step in range(frames)]


@dataclass(frozen=True)
class _FrameIndex:
    """When each frame of a video is shown, in its own time units, and the same of its keyframes."""

    pts: list[int]
    keyframes: list[int]


class _UnknownFrameError(Exception):
    """The decoder did not give the frame that the container promises."""


def _index_frames(container: Any, stream: Any) -> _FrameIndex | None:
    """Read when frames are shown, without decoding any; None if the container does not say."""
    pts: list[int] = []
    keyframes: list[int] = []
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:
            continue
        if packet.pts is None:
            return None
        pts.append(packet.pts)
        if packet.is_keyframe:
            keyframes.append(packet.pts)
    if len(set(pts)) < len(pts) or not keyframes:
        return None
    return _FrameIndex(sorted(pts), sorted(keyframes))


def _decode_chosen(data: Any, chosen: Sequence[int], index: _FrameIndex | None) -> Iterator[tuple[int, Any]]:
    """The frames of ascending numbers."""
    if index is not None:
        try:
            with open_stream(data, "video") as (container, stream):
                found = list(_seek_frames(container, stream, chosen, index))
        except (_UnknownFrameError, MediaError):
            pass
        else:
            yield from found
            return
    wanted = set(chosen)
    found_numbers = []
    with open_stream(data, "video") as (container, stream):
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                found_numbers.append(number)
                yield number, frame
            if len(found_numbers) == len(wanted):
                return
    missing = min(wanted.difference(found_numbers))
    raise MediaError(f"is a video of which frame {missing:,} cannot be decoded: {FIX}")


def _seek_frames(
    container: Any, stream: Any, chosen: Sequence[int], index: _FrameIndex
) -> Iterator[tuple[int, Any]]:
    shown: int | None = None
    frames: Iterator[Any] = iter(())
    frame: Any = None
    for number in chosen:
        target = index.pts[number]
        keyframe = max((key for key in index.keyframes if key <= target), default=index.pts[0])
        if shown is None or keyframe > shown:
            container.seek(keyframe, stream=stream)
            frames = container.decode(stream)
        for frame in frames:
            shown = frame.pts
            if shown is not None and shown >= target:
                break
        if shown != target:
            raise _UnknownFrameError
        yield number, frame


def _count_frames(data: Any) -> int:
    with open_stream(data, "video") as (container, stream):
        return sum(1 for _ in container.decode(stream))
