"""`DecodeAudio`: a column of compressed audio becomes one of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.variable_tensors import variable_tensor
from windrow.pipeline.tasks.media.av_errors import load_av, open_stream
from windrow.pipeline.tasks.media.column_decoder import FIX, ColumnDecoder, Draws, MediaError
from windrow.pipeline.tasks.media.made_columns import FixedColumn, MadeColumn, VariableColumn

AudioCrop = Literal["start", "center", "random"]

_CROPS = ("start", "center", "random")
_STEREO = "stereo"
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class DecodeAudio(ColumnDecoder):
    """``decode_audio``: PyAV decodes each row and resamples it."""

    sample_rate: int
    channels: int
    samples: int | None
    crop: AudioCrop

    def __post_init__(self) -> None:
        if self.channels not in (1, 2):
            raise PlanError(f"channels={self.channels!r} must be 1 (mono) or 2 (stereo)")
        if self.crop not in _CROPS:
            raise PlanError(f"crop={self.crop!r} must be one of {', '.join(map(repr, _CROPS))}")
        if self.crop != "start" and self.samples is None:
            raise PlanError(f"crop={self.crop!r} needs samples=, the number that is cut out")

    @property
    def draws(self) -> int:
        return int(self.crop == "random")

    @property
    def fails_at_random(self) -> bool:
        # all of it is decoded before a part is cut out
        return False

    def empty_column(self, rows: int) -> MadeColumn:
        if self.samples is not None:
            return FixedColumn(rows, self._shape(self.samples), _FLOAT32)
        mono = pa.list_(pa.float32())
        return VariableColumn(mono if self.channels == 1 else variable_tensor(pa.float32(), 2))

    def decode(self, data: Any, draws: Draws) -> NDArray[Any]:
        parts = [frame.to_ndarray() for frame in self._frames(data)]
        if not parts:
            raise MediaError(f"holds audio without samples: {FIX}")
        wave: NDArray[Any] = np.concatenate(parts, axis=1)
        if self.channels == 1:
            wave = wave.mean(axis=0, keepdims=True, dtype=np.float32)
        elif len(wave) == 1:
            wave = wave.repeat(2, axis=0)
        if self.samples is not None:
            wave = _cut(wave, self.samples, self.crop, draws)
        return wave.reshape(self._shape(wave.shape[1]))

    def _frames(self, data: Any) -> list[Any]:
        with open_stream(data, "audio") as (container, stream):
            # FFmpeg mixes floats louder than their mean, up to a value beyond 1
            own = self.channels == 1 or stream.channels <= self.channels
            layout = stream.layout if own else _STEREO
            resampler = load_av("audio").AudioResampler("fltp", layout, self.sample_rate)
            frames = [made for frame in container.decode(stream) for made in resampler.resample(frame)]
            return [*frames, *resampler.resample(None)] if frames else frames

    def _shape(self, samples: int) -> tuple[int, ...]:
        return (samples,) if self.channels == 1 else (self.channels, samples)


def _cut(wave: NDArray[Any], samples: int, crop: AudioCrop, draws: Draws) -> NDArray[Any]:
    """Exactly so many samples, with zeros behind a shorter wave."""
    spare = wave.shape[1] - samples
    if spare <= 0:
        return np.pad(wave, ((0, 0), (0, -spare)))
    if crop == "random":
        assert draws is not None
        start = int(draws[0] * (spare + 1))
    else:
        start = spare // 2 if crop == "center" else 0
    return wave[:, start : start + samples]
