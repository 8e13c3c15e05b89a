"""decode_audio: samples of every container, cut by position, and its errors."""

from __future__ import annotations

import io
import pickle
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import windrow
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.tasks.row_generator import StoredRows

av = pytest.importorskip("av")

RATE = 8_000


def tone(number: int, samples: int) -> NDArray[np.int16]:
    """(samples,) of a tone of its own for each number."""
    return (12_000 * np.sin(np.arange(samples) * (number + 1) / 20)).astype(np.int16)


def wav(channels: NDArray[np.int16], rate: int = RATE) -> bytes:
    """A WAV file of (channels, samples)."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((len(channels), 2, rate, 0, "NONE", ""))
        out.writeframes(np.ascontiguousarray(channels.T).tobytes())
    return file.getvalue()


def encode(samples: NDArray[np.int16], container: str, codec: str) -> bytes:
    """A compressed file of (samples,)."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


LENGTHS = [900, 400, 1500, 700]
FILES = [wav(tone(row, length)[None]) for row, length in enumerate(LENGTHS)]


def dataset(values: Any = FILES) -> windrow.Dataset:
    column = pa.array(values, pa.binary())
    return windrow.from_arrow(pa.table({"sound": column, "row": np.arange(len(values))}))


def plain(row: int) -> NDArray[np.float32]:
    return (tone(row, LENGTHS[row]) / 32_768).astype(np.float32)


def test_samples_are_lists_of_their_lengths() -> None:
    made = dataset([*FILES, None]).decode_audio("sound", sample_rate=RATE)
    found = made.to_arrow()["sound"]
    assert found.type == pa.list_(pa.float32())
    assert not found[4].is_valid
    for row in range(4):
        assert np.array_equal(np.array(found[row].as_py(), np.float32), plain(row))
    ragged = dataset().decode_audio("sound", sample_rate=RATE).iter_torch_batches(batch_size=4, ragged="pad")
    assert tuple(next(iter(ragged))["sound"].shape) == (4, 1500)


def test_resampling_and_mixing() -> None:
    found = dataset().decode_audio("sound", sample_rate=2 * RATE).take_batch()["sound"]
    assert [abs(len(row) - 2 * length) <= 2 for row, length in zip(found, LENGTHS, strict=True)] == [True] * 4
    assert np.abs(found[0][200:-200:2] - plain(0)[100:-100]).max() < 0.05
    stereo = np.stack([tone(1, 500), np.zeros(500, np.int16)])
    mono = dataset([wav(stereo)]).decode_audio("sound", sample_rate=RATE).take_batch()["sound"]
    assert np.abs(mono[0] - stereo[0] / 65_536).max() < 1e-3
    both = dataset([wav(stereo), FILES[0]]).decode_audio("sound", sample_rate=RATE, channels=2)
    assert both.schema().field("sound").type == windrow.VariableShapeTensorType(pa.float32(), 2)
    rows = both.take_batch()["sound"]
    assert [row.shape for row in rows] == [(2, 500), (2, 900)]
    assert np.array_equal(rows[0], (stereo / 32_768).astype(np.float32))
    assert np.array_equal(rows[1], np.stack([plain(0), plain(0)]))
    cut = dataset([wav(stereo)]).decode_audio("sound", sample_rate=RATE, channels=2, samples=600)
    assert cut.take_batch()["sound"].shape == (1, 2, 600)


@pytest.mark.parametrize(("container", "codec"), [("flac", "flac"), ("wav", "pcm_s16le")])
def test_lossless_files_give_the_samples(container: str, codec: str) -> None:
    data = encode(tone(2, 2_000), container, codec)
    found = dataset([data]).decode_audio("sound", sample_rate=RATE).take_batch()["sound"]
    assert np.array_equal(np.asarray(found[0]), (tone(2, 2_000) / 32_768).astype(np.float32))


@pytest.mark.parametrize("crop", ["start", "center", "random"])
def test_a_number_of_samples_cuts_or_fills(crop: Any) -> None:
    made = dataset([*FILES, None]).decode_audio("sound", sample_rate=RATE, samples=700, crop=crop)
    found = made.to_arrow()["sound"]
    assert found.type == pa.list_(pa.float32(), 700)
    assert found.null_count == 1
    draws = StoredRows(0, 0, 0).generator(0, 0, 4, changes_rows=False).random(1)[:, 0]
    for row, length in enumerate(LENGTHS):
        spare = max(0, length - 700)
        start = {"start": 0, "center": spare // 2, "random": int(draws[row] * (spare + 1))}[crop]
        expected = np.zeros(700, np.float32)
        part = plain(row)[start : start + 700]
        expected[: len(part)] = part
        assert np.array_equal(np.array(found[row].as_py(), np.float32), expected)


def test_random_parts_are_the_same_in_any_batches_and_others_in_each_epoch() -> None:
    def epochs(batch_size: int | None, shards: int) -> list[dict[int, Any]]:
        pipe: Any = dataset(FILES * 3).window().repeat(2).random_shuffle_each_window(seed=1)
        pipe = pipe.decode_audio("sound", sample_rate=RATE, samples=64, crop="random", batch_size=batch_size)
        found: list[dict[int, Any]] = [{}, {}]
        for shard in pipe.split(shards, equal=False):
            for epoch, reader in enumerate(shard.iter_epochs()):
                for batch in reader.iter_batches(batch_size=3):
                    found[epoch] |= dict(zip(batch["row"].tolist(), batch["sound"].tolist(), strict=True))
        return found

    whole = epochs(None, 1)
    assert epochs(2, 3) == whole
    assert all(whole[0][row] != whole[1][row] for row in range(12))


def test_errors_name_column_and_row(tmp_path: Path) -> None:
    made = dataset([FILES[0], b"no sound", FILES[1]]).decode_audio("sound", sample_rate=RATE)
    match = r"row 1 of its batch.*the value of column 'sound' cannot be decoded as audio \(InvalidDataError"
    with pytest.raises(TransformError, match=match):
        made.take_batch()
    for on_error, rows in (("null", [0, 1, 2]), ("drop", [0, 2])):
        kept: Any = dataset([FILES[0], b"no sound", FILES[1]])
        kept = kept.decode_audio("sound", sample_rate=RATE, on_error=on_error).to_arrow()
        assert kept["row"].to_pylist() == rows
        assert kept["sound"].null_count == len(rows) - 2
    unknown = bytearray(FILES[0])
    # the tag of the codec, which nobody has
    unknown[20:22] = b"\x34\x12"
    lacking: Any = dataset([bytes(unknown)]).decode_audio("sound", sample_rate=RATE, on_error="drop")
    with pytest.raises(TransformError, match="codec that this FFmpeg cannot decode"):
        lacking.take_batch()
    with pytest.warns(RuntimeWarning, match="failed for 1 row"):
        made.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    assert windrow.read_parquet(tmp_path / "failed").to_arrow()["row"].to_pylist() == [1]
    silent = dataset([wav(np.zeros((1, 0), np.int16))]).decode_audio("sound", sample_rate=RATE)
    with pytest.raises(TransformError, match="audio"):
        silent.take_batch()
    path = tmp_path / "sound.bin"
    path.write_bytes(b"nothing")
    with pytest.raises(TransformError, match=r"sound\.bin of column 'path' cannot be decoded as audio"):
        windrow.from_items([{"path": str(path)}]).decode_audio("path", sample_rate=RATE).take_batch()


def test_functions_can_be_pickled() -> None:
    (stage,) = dataset().decode_audio("sound", sample_rate=RATE, samples=9, crop="random")._plan.maps
    assert pickle.loads(pickle.dumps(stage)) == stage


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sample_rate": 0}, "sample_rate"),
        ({"channels": 3}, "mono"),
        ({"samples": 0}, "samples"),
        ({"crop": "end"}, "crop='end' must be one of"),
        ({"crop": "random"}, "needs samples="),
    ],
)
def test_invalid_arguments_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        dataset().decode_audio("sound", **{"sample_rate": RATE, **options})
