"""decode_video: the chosen frames are those of decoding the whole video, and its errors."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import windrow
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.tasks.media.decode_video import choose_frames
from windrow.pipeline.tasks.row_generator import StoredRows

av = pytest.importorskip("av")

WIDTH, HEIGHT = 64, 48


def encode(frames: int, codec: str = "mpeg4", container: str = "mp4", **options: str) -> bytes:
    """A video in which the brightness of a frame tells its number."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=10, options=options)
        stream.width, stream.height = WIDTH, HEIGHT
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number in range(frames):
            picture = np.full((HEIGHT, WIDTH, 3), 40 + 4 * number, np.uint8)
            picture[:, : WIDTH // 2] = 255 - 4 * number
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        out.mux(stream.encode(None))
    return file.getvalue()


def decode(data: bytes) -> list[Image.Image]:
    """All frames."""
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_image() for frame in container.decode(video=0)]


def dataset(values: Any) -> windrow.Dataset:
    column = pa.array(values, pa.binary())
    return windrow.from_arrow(pa.table({"clip": column, "row": np.arange(len(values))}))


VIDEOS = [encode(30, g="5"), encode(7), encode(1)]
KINDS = {
    "B frames": lambda: encode(40, "mpeg4", g="9", bf="2"),
    "H.264": lambda: encode(40, "libx264", g="9", bf="2"),
    "VP9": lambda: encode(20, "libvpx-vp9", "webm", g="6"),
    "Matroska": lambda: encode(30, "mpeg4", "matroska", g="6"),
    "AVI": lambda: encode(30, "mpeg4", "avi", g="6"),
    "pictures": lambda: encode(12, "mjpeg", "matroska"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_chosen_frames_are_those_of_the_whole_video(kind: str) -> None:
    data = KINDS[kind]()
    whole = [np.asarray(image) for image in decode(data)]
    for frames in (1, 2, 5, len(whole)):
        for sampling in ("uniform", "clip", "random"):
            made = dataset([data]).decode_video("clip", frames=frames, sampling=sampling)
            found = made.take_batch()["clip"][0]
            draws = StoredRows(0, 0, 0).generator(0, 0, 1, changes_rows=False).random(frames)[0]
            chosen = choose_frames(
                len(whole),
                frames,
                sampling,
                1,
                draws if sampling == "random" else None,
            )
            assert np.array_equal(found, np.stack([whole[number] for number in chosen]))


def test_a_size_makes_tensors_and_null_stays() -> None:
    made = dataset([*VIDEOS, None]).decode_video("clip", frames=3, size=(24, 32))
    column = made.to_arrow()["clip"]
    assert column.type == pa.fixed_shape_tensor(pa.uint8(), (3, 24, 32, 3))
    assert [value.is_valid for value in column] == [True, True, True, False]
    batch = dataset(VIDEOS).decode_video("clip", frames=3, size=(24, 32), mode="L").take_batch()["clip"]
    assert batch.shape == (3, 3, 24, 32)
    image = decode(VIDEOS[0])[15].convert("L").resize((32, 24), Image.Resampling.BILINEAR)
    assert np.array_equal(batch[0, 1], np.asarray(image))
    varied = dataset(VIDEOS).decode_video("clip", frames=3, mode="L")
    assert varied.schema().field("clip").type == windrow.VariableShapeTensorType(pa.uint8(), 3)


def turned(data: bytes, right: int) -> bytes:
    """An MP4 with the note that players turn its pictures by so many quarters to the right."""
    cosine, sine = [(1, 0), (0, 1), (-1, 0), (0, -1)][right]
    matrix = struct.pack(">9i", *(65536 * each for each in (cosine, sine, 0, -sine, cosine, 0, 0, 0)), 2**30)
    start = data.index(b"tkhd") + 44
    return data[:start] + matrix + data[start + len(matrix) :]


@pytest.mark.skipif(not hasattr(av.VideoFrame, "rotation"), reason="PyAV before 15 tells no rotation")
@pytest.mark.parametrize("right", range(4))
def test_pictures_are_turned_as_the_file_notes(right: int) -> None:
    data = turned(VIDEOS[0], right)
    stored = dataset([data]).decode_video("clip", frames=3).take_batch()["clip"]
    found = dataset([data]).decode_video("clip", frames=3, apply_rotation=True).take_batch()["clip"]
    assert stored[0].shape == (3, HEIGHT, WIDTH, 3)
    assert np.array_equal(found[0], np.rot90(stored[0], -right, axes=(1, 2)))


def test_rotation_needs_a_pyav_that_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "VideoFrame", object)
    with pytest.raises(
        PlanError, match=r"apply_rotation=True needs PyAV 15 or newer, not [\d.]+: upgrade av"
    ):
        dataset(VIDEOS).decode_video("clip", frames=1, apply_rotation=True)


def test_all_frames_of_a_row_are_cropped_and_mirrored_alike() -> None:
    whole = dataset(VIDEOS[:1] * 8)
    options: dict[str, Any] = {"size": 16, "crop": "random_resized", "flip": 0.5}
    found = whole.decode_video("clip", frames=4, **options).take_batch()["clip"]
    left_is_bright = found[..., 0, 0].astype(int).mean(axis=2) > found[..., -1, 0].astype(int).mean(axis=2)
    assert {tuple(row) for row in left_is_bright[:, :2].tolist()} <= {(True, True), (False, False)}
    assert len(np.unique(found.reshape(8, -1), axis=0)) > 4


@given(
    count=st.integers(1, 500),
    frames=st.integers(1, 40),
    sampling=st.sampled_from(["uniform", "random", "clip", "random_clip"]),
    stride=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_chosen_numbers_exist_in_order(
    count: int, frames: int, sampling: Any, stride: int, seed: int
) -> None:
    draws = StoredRows(0, 0, seed).generator(0, 0, 1, changes_rows=False).random(frames)[0]
    chosen = choose_frames(count, frames, sampling, stride, draws if "random" in sampling else None)
    assert len(chosen) == frames
    assert chosen == sorted(chosen)
    assert 0 <= chosen[0] <= chosen[-1] < count
    if "clip" in sampling and count > frames * stride:
        assert set(np.diff(chosen).tolist()) <= {stride}
    if sampling == "random" and count >= frames:
        parts = [int(number * frames / count) for number in chosen]
        assert all(abs(part - place) <= 1 for place, part in enumerate(parts))


@pytest.mark.parametrize("sampling", ["random", "random_clip"])
def test_random_frames_are_the_same_in_any_batches_and_others_in_each_epoch(sampling: Any) -> None:
    def epochs(batch_size: int | None, shards: int) -> list[dict[int, NDArray[Any]]]:
        pipe: Any = dataset(VIDEOS[:1] * 6).window().repeat(2).random_shuffle_each_window(seed=1)
        pipe = pipe.decode_video("clip", frames=3, sampling=sampling, size=8, batch_size=batch_size)
        found: list[dict[int, Any]] = [{}, {}]
        for shard in pipe.split(shards, equal=False):
            for epoch, reader in enumerate(shard.iter_epochs()):
                for batch in reader.iter_batches(batch_size=2):
                    found[epoch] |= dict(zip(batch["row"].tolist(), batch["clip"].tolist(), strict=True))
        return found

    whole = epochs(None, 1)
    assert epochs(1, 2) == whole
    assert whole[0] != whole[1]


def test_errors_name_column_and_row() -> None:
    made = dataset([VIDEOS[0], b"no video"]).decode_video("clip", frames=1, size=8)
    with pytest.raises(TransformError, match=r"row 1 of its batch.*column 'clip' cannot be decoded as video"):
        made.take_batch()
    kept = (
        dataset([VIDEOS[0], b"no video"]).decode_video("clip", frames=1, size=8, on_error="null").to_arrow()
    )
    assert kept["clip"].is_valid().to_pylist() == [True, False]


def test_functions_can_be_pickled() -> None:
    (stage,) = dataset(VIDEOS).decode_video("clip", frames=2, sampling="random", size=8)._plan.maps
    assert pickle.loads(pickle.dumps(stage)) == stage


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"frames": 0}, "frames"),
        ({"sampling": "all"}, "sampling='all' must be one of"),
        ({"stride": 2}, "stride=2 is for"),
        ({"stride": 0}, "stride"),
        ({"mode": "RGBA"}, "mode='RGBA' must be one of"),
        ({"crop": "center"}, "needs size="),
        ({"apply_rotation": 90}, "apply_rotation=90 must be True or False"),
    ],
)
def test_invalid_arguments_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        dataset(VIDEOS).decode_video("clip", **{"frames": 2, **options})
