"""decode_images: equal to Pillow, keyed by rows, from every kind of column, and its errors."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import windrow
from tests.laws.examples import examples
from tests.pipeline.tasks.media.images import center_crop, decode, encode, picture, random_resized_crop
from windrow.core.errors import PlanError, TransformError
from windrow.io.storage.path_contents import PathReader
from windrow.pipeline.delivery.to_numpy import fixed_dtype
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.transforms import apply_maps

ROWS = 24
SHAPES = [(40, 30), (30, 40), (64, 20), (33, 33)]
IMAGES = [encode(picture(row, *SHAPES[row % 4]), quality=90) for row in range(ROWS)]


def table() -> pa.Table:
    return pa.table({"image": pa.array(IMAGES, pa.binary()), "row": np.arange(ROWS)})


def dataset(**options: Any) -> windrow.Dataset:
    return windrow.from_arrow(table(), target_block_bytes=4_000).options(executor="threads", **options)


def draws(rows: int = ROWS) -> NDArray[np.float64]:
    return StoredRows(0, 0, 0).generator(0, 0, rows, changes_rows=False).random(23)


def one_block() -> windrow.Dataset:
    return windrow.from_arrow(table(), target_block_bytes=10**8)


def test_without_arguments_images_are_decoded_as_they_are() -> None:
    found = one_block().decode_images("image")
    assert found.schema().field("image").type == windrow.VariableShapeTensorType(pa.uint8(), 3)
    for data, pixels in zip(IMAGES, found.take_batch(ROWS)["image"], strict=True):
        assert np.array_equal(pixels, np.asarray(decode(data)))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "CMYK", "F"])
def test_a_size_makes_tensors_of_every_mode(mode: str) -> None:
    batch = one_block().decode_images("image", size=(16, 20), mode=mode).take_batch(ROWS)
    expected = [decode(data, mode).resize((20, 16), Image.Resampling.BILINEAR) for data in IMAGES]
    assert np.array_equal(batch["image"], np.stack([np.asarray(image) for image in expected]))
    assert batch["row"].tolist() == list(range(ROWS))


@pytest.mark.parametrize("interpolation", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_interpolation_is_that_of_pillow(interpolation: Any) -> None:
    found = one_block().decode_images("image", size=16, interpolation=interpolation).take_batch(1)["image"][0]
    method = Image.Resampling[interpolation.upper()]
    assert np.array_equal(found, np.asarray(decode(IMAGES[0]).resize((16, 16), method)))


@pytest.mark.parametrize(("size", "shorter_side"), [(16, None), (16, 18), (28, 32)])
def test_center_crops_are_those_of_torchvision(size: int, shorter_side: int | None) -> None:
    found = one_block().decode_images("image", size=size, crop="center", shorter_side=shorter_side)
    for data, pixels in zip(IMAGES, found.take_batch(ROWS)["image"], strict=True):
        expected = center_crop(decode(data), size, shorter_side or size)
        # the window is scaled by itself: Pillow rounds some coefficients to the other side, across and down
        difference = np.abs(pixels.astype(int) - expected)
        assert difference.max() <= 2
        assert difference.mean() < 0.2


@pytest.mark.parametrize("flip", [0.0, 0.5, 1.0])
def test_random_crops_are_those_of_torchvision_with_the_numbers_of_the_row(flip: float) -> None:
    found = one_block().decode_images("image", size=(16, 20), crop="random_resized", flip=flip)
    for data, pixels, drawn in zip(IMAGES, found.take_batch(ROWS)["image"], draws(), strict=True):
        expected = random_resized_crop(decode(data), (16, 20), drawn)
        assert np.array_equal(pixels, expected[:, ::-1] if drawn[0] < flip else expected)


def test_random_crops_with_another_area_and_shape() -> None:
    scale, ratio = (0.9, 1.0), (3.0, 4.0)
    found = one_block().decode_images("image", size=16, crop="random_resized", scale=scale, ratio=ratio)
    for data, pixels, drawn in zip(IMAGES, found.take_batch(ROWS)["image"], draws(), strict=True):
        assert np.array_equal(pixels, random_resized_crop(decode(data), (16, 16), drawn, scale, ratio))


@examples(8)
@given(
    block_rows=st.integers(1, 9),
    batch_size=st.none() | st.integers(1, 9),
    shards=st.integers(1, 3),
    crop=st.sampled_from(["random", "random_resized"]),
    read=st.integers(1, 7),
)
def test_rows_are_augmented_alike_with_any_batches_and_shards_and_after_a_resume(
    block_rows: int, batch_size: int | None, shards: int, crop: Any, read: int
) -> None:
    side = 14 if crop == "random" else None

    def pipe(batch_size: int | None) -> Any:
        made = windrow.from_arrow(table(), target_block_bytes=900 * block_rows).window(blocks_per_window=2)
        made = made.repeat(2).random_shuffle_each_window(seed=7).options(executor="threads")
        return made.decode_images(
            "image", size=12, crop=crop, shorter_side=side, flip=0.5, batch_size=batch_size
        )

    expected = rows_by_epoch(pipe(None).iterator(), 4)
    repeated = [row for row in range(ROWS) if np.array_equal(expected[0][row], expected[1][row])]
    assert len(repeated) < ROWS // 3
    whole = pipe(batch_size)
    found = [rows_by_epoch(shard, read) for shard in whole.split(shards, equal=False)]
    for epoch in range(2):
        together = {row: pixels for shard in found for row, pixels in shard[epoch].items()}
        assert same(together, expected[epoch])
    left = whole.split(shards, equal=False)
    states = []
    rows: dict[int, Any] = {}
    for shard in left:
        batches = shard.iter_batches(batch_size=read)
        rows |= rows_of(next(batches, None))
        states.append(shard.state_dict())
        batches.close()
    resumed = pipe(3).iterator()
    resumed.load_state_dict(windrow.merge_state_dicts(states))
    for batch in resumed.iter_batches(batch_size=5):
        rows |= rows_of(batch)
    assert same(rows, expected[0])


def rows_by_epoch(shard: Any, batch_size: int) -> list[dict[int, Any]]:
    found: list[dict[int, Any]] = []
    for epoch in shard.iter_epochs():
        found.append({})
        for batch in epoch.iter_batches(batch_size=batch_size):
            found[-1] |= rows_of(batch)
    return found


def rows_of(batch: Any) -> dict[int, Any]:
    return {} if batch is None else dict(zip(batch["row"].tolist(), batch["image"], strict=True))


def same(some: dict[int, Any], others: dict[int, Any]) -> bool:
    return some.keys() == others.keys() and all(np.array_equal(some[row], others[row]) for row in some)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary())])
def test_columns_of_bytes(kind: Any) -> None:
    column = pa.array([*IMAGES[:5], None]).cast(kind) if not pa.types.is_dictionary(kind) else None
    column = pa.array([*IMAGES[:5], None]).dictionary_encode() if column is None else column
    found = windrow.from_arrow(pa.table({"image": column})).decode_images("image", size=8).to_arrow()["image"]
    assert found.null_count == 1
    assert not found[5].is_valid
    assert found.type == pa.fixed_shape_tensor(pa.uint8(), (8, 8, 3))
    shapes = windrow.from_arrow(pa.table({"image": column})).decode_images("image").take_batch()["image"]
    assert [None if image is None else image.shape[1::-1] for image in shapes] == [*(SHAPES * 2)[:5], None]


def test_structs_of_hugging_face_and_paths(tmp_path: Path) -> None:
    for row in range(4):
        (tmp_path / f"{row}.jpg").write_bytes(IMAGES[row])
    paths = [str(tmp_path / f"{row}.jpg") for row in range(4)]
    structs = [
        {"bytes": IMAGES[0], "path": None},
        {"bytes": IMAGES[1], "path": "elsewhere.jpg"},
        {"bytes": None, "path": paths[2]},
        {"bytes": None, "path": paths[3]},
    ]
    expected = one_block().decode_images("image", size=8).take_batch(4)["image"]
    for values in (structs, paths):
        stored = windrow.from_items([{"image": value} for value in values])
        assert np.array_equal(stored.decode_images("image", size=8).take_batch()["image"], expected)
    beside = stored.decode_images("image", size=8, output_column="pixels").take_batch()
    assert beside["image"].tolist() == paths
    assert np.array_equal(beside["pixels"], expected)
    nothing = windrow.from_arrow(pa.table({"image": pa.array([*structs, None])})).decode_images(
        "image", size=8
    )
    assert nothing.to_arrow()["image"].null_count == 1


def test_paths_of_another_filesystem() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for row in range(3):
        memory.pipe_file(f"/pictures/{row}.jpg", IMAGES[row])
    stored = windrow.from_items([{"image": f"memory://pictures/{row}.jpg"} for row in range(3)])
    expected = one_block().decode_images("image", size=8).take_batch(3)["image"]
    assert np.array_equal(stored.decode_images("image", size=8).take_batch()["image"], expected)
    missing = windrow.from_items([{"image": "memory://pictures/none.jpg"}]).decode_images("image", size=8)
    with pytest.raises(TransformError, match=r"row 0 of its batch.*none\.jpg"):
        missing.take_batch()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("gap", [None, 1.0])
def test_exif_orientation_by_choice(orientation: int, gap: float | None) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = picture(3, 160, 96)
    stored = windrow.from_items([{"image": encode(image, exif=exif.tobytes(), quality=95)}])
    upright = stored.decode_images("image", exif_orientation=True).take_batch()["image"][0]
    from PIL.ImageOps import exif_transpose

    data = stored.take()[0]["image"]
    turned = exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(upright, np.asarray(turned))
    plain = stored.decode_images("image").take_batch()["image"][0]
    assert np.array_equal(plain, np.asarray(decode(data)))
    options: dict[str, Any] = {"size": 20, "crop": "center", "exif_orientation": True, "reducing_gap": gap}
    scaled = stored.decode_images("image", **options).take_batch()["image"][0]
    expected = center_crop(turned.convert("RGB"), 20, 20)
    assert np.abs(scaled.astype(int) - expected).mean() < (0.1 if gap is None else 8)


def test_a_reducing_gap_decodes_large_jpegs_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted: list[tuple[int, int]] = []
    from PIL.JpegImagePlugin import JpegImageFile

    draft = JpegImageFile.draft

    def note(self: Any, mode: Any, size: Any) -> Any:
        made = draft(self, mode, size)
        drafted.append(self.size)
        return made

    monkeypatch.setattr(JpegImageFile, "draft", note)
    data = encode(picture(1, 640, 480), quality=95)
    stored = windrow.from_items([{"image": data}])
    whole = {"size": 32, "crop": "center"}
    full = stored.decode_images("image", **whole).take_batch()["image"]  # type: ignore[arg-type]
    assert drafted == []
    reduced = stored.decode_images("image", reducing_gap=2.0, **whole).take_batch()["image"]  # type: ignore[arg-type]
    assert drafted == [(160, 120)]
    assert np.abs(full.astype(int) - reduced).mean() < 2
    crop = stored.decode_images("image", size=32, crop="random_resized", reducing_gap=1.0).take_batch()[
        "image"
    ]
    exact = stored.decode_images("image", size=32, crop="random_resized").take_batch()["image"]
    assert np.abs(crop.astype(int) - exact).mean() < 8
    other = windrow.from_items([{"image": encode(picture(1, 64, 48), "PNG")}])
    assert other.decode_images("image", size=8, reducing_gap=2.0).take_batch()["image"].shape == (1, 8, 8, 3)


def test_pixels_are_written_into_one_array_that_becomes_the_column() -> None:
    made = one_block().decode_images("image", size=16)
    (stage,) = made._plan.maps
    found = stage.fn(table())["image"]
    assert isinstance(found, np.ndarray)
    assert found.flags.owndata
    assert sys.getrefcount(found) == 2
    addresses = []

    class Noted:
        def __call__(self, batch: pa.Table) -> dict[str, Any]:
            columns = dict(stage.fn(batch))
            addresses.append(columns["image"].__array_interface__["data"][0])
            return columns

    result = apply_maps(table(), [MapBatches(Noted(), "pyarrow")], "here")
    column = result["image"].chunk(0)
    assert fixed_dtype(column.type.value_type) == np.uint8
    assert column.storage.values.buffers()[1].address == addresses[0]


def test_functions_can_be_pickled() -> None:
    (stage,) = dataset().decode_images("image", size=8, crop="random_resized", flip=0.5)._plan.maps
    copy = pickle.loads(pickle.dumps(stage))
    assert copy == stage
    assert hash(copy.fn) == hash(stage.fn)
    rng = StoredRows(0, 0, 7).generator(0, 0, ROWS, changes_rows=False)
    again = StoredRows(0, 0, 7).generator(0, 0, ROWS, changes_rows=False)
    assert np.array_equal(copy.fn(table(), rng=rng)["image"], stage.fn(table(), rng=again)["image"])
    assert "secret" not in repr(PathReader(None, {"key": "secret"}))


def broken() -> windrow.Dataset:
    values = [IMAGES[0], b"no image", IMAGES[1], IMAGES[2][:300], IMAGES[3]]
    rows = pa.table({"image": pa.array(values, pa.binary()), "row": np.arange(5)})
    return windrow.from_arrow(rows).options(executor="threads")


@pytest.mark.parametrize("size", [None, 8])
def test_an_error_names_column_and_row(size: int | None) -> None:
    with pytest.raises(
        TransformError, match=r"(?s)decode_images\('image'\).*row 1 of its batch.*column 'image'"
    ) as caught:
        broken().decode_images("image", size=size).take_batch(5)
    assert "is not an image that Pillow can read: restore it, or go on without it: on_error=" in str(
        caught.value
    )
    values = pa.table({"image": pa.array([IMAGES[0][:300]], pa.binary())})
    with pytest.raises(TransformError, match=r"row 0 .*cannot be decoded \(OSError: "):
        windrow.from_arrow(values).decode_images("image", size=size).take_batch()


def test_failing_rows_are_put_aside_one_by_one(tmp_path: Path) -> None:
    made = broken().decode_images("image", size=8, crop="random", flip=0.5)
    with pytest.warns(RuntimeWarning, match="failed for 2 rows"):
        made.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    good = windrow.read_parquet(tmp_path / "out").to_arrow()
    assert good["row"].to_pylist() == [0, 2, 4]
    failed = windrow.read_parquet(tmp_path / "failed").to_arrow()
    assert failed["row"].to_pylist() == [1, 3]
    # the rows that stay have the random crops that they would have had
    (stage,) = made._plan.maps
    rng = StoredRows(0, 0, 0).generator(0, 0, 5, changes_rows=False).take(np.array([0, 2, 4]))
    kept = stage.fn(table().take([0, 1, 3]), rng=rng)["image"]
    assert np.array_equal(good["image"].chunk(0).to_numpy_ndarray(), kept)


def test_a_column_of_another_type_after_a_transform_fails_as_a_whole(tmp_path: Path) -> None:
    made = dataset().map_batches(lambda batch: {"image": batch["row"]}).decode_images("image", size=8)
    with pytest.raises(TransformError, match="column 'image' is of type int64: give a column of bytes"):
        made.take_batch()
    with pytest.warns(RuntimeWarning, match=f"failed for {ROWS} rows"):
        made.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    assert windrow.read_parquet(tmp_path / "failed").count() == ROWS
    missing = dataset().map_batches(lambda batch: {"row": batch["row"]}).decode_images("image", size=8)
    with pytest.raises(TransformError, match="there is no column 'image'"):
        missing.take_batch()


def test_images_that_are_too_large_name_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(
        TransformError, match=r"has 1,200 pixels, more than Pillow decodes: .*raise MAX_IMAGE_PIXELS"
    ):
        one_block().decode_images("image", size=8).take_batch(1)


def test_values_of_more_than_eight_bits_are_not_truncated() -> None:
    wide = Image.fromarray(np.full((4, 4), 70_000, np.int32))
    stored = windrow.from_items([{"image": encode(wide, "TIFF")}])
    with pytest.raises(TransformError, match=r"mode 'I', which cannot be converted to 'RGB'"):
        stored.decode_images("image", size=4).take_batch()
    assert stored.decode_images("image", size=4, mode="I").take_batch()["image"][0, 0, 0] == 70_000


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"size": (8,)}, "size="),
        ({"size": 0}, "size="),
        ({"size": "8"}, "size="),
        ({"mode": "XYZ"}, "mode="),
        ({"crop": "middle", "size": 8}, "crop='middle' must be one of"),
        ({"crop": "center"}, "needs size="),
        ({"shorter_side": 9, "size": 8}, "shorter_side= is for"),
        ({"shorter_side": 7, "size": 8, "crop": "center"}, "8 pixels or more"),
        ({"scale": (0, 1)}, "scale="),
        ({"scale": (0.5, 2)}, "at most 1"),
        ({"ratio": (2, 1)}, "the least one first"),
        ({"ratio": 1}, "two numbers"),
        ({"flip": 2}, "probability"),
        ({"flip": True}, "probability"),
        ({"interpolation": "cubic"}, "interpolation="),
        ({"exif_orientation": 1}, "True or False"),
        ({"reducing_gap": 0.5}, "1 or more"),
        ({"reducing_gap": True}, "1 or more"),
        ({"output_column": 3}, "output_column"),
        ({"batch_size": 0}, "batch_size"),
        ({"compute": "gpu"}, "compute"),
    ],
)
def test_invalid_arguments_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        dataset().decode_images("image", **options)


def test_columns_are_checked_where_the_schema_is_known() -> None:
    with pytest.raises(PlanError, match="decode_images has no column 'picture': there are 'image', 'row'"):
        dataset().decode_images("picture")
    with pytest.raises(PlanError, match="column 'row' is of type int64"):
        dataset().decode_images("row")
    with pytest.raises(TypeError, match="unexpected keyword argument 'sizes'"):
        dataset().decode_images("image", sizes=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("size", [None, (4, 4)])
def test_pixels_are_not_decoded_again(tmp_path: Path, size: tuple[int, int] | None) -> None:
    Image.new("RGB", (8, 6)).save(tmp_path / "0.png")
    with pytest.raises(
        PlanError, match="decoded already, as read_images does; read_binary_files reads bytes"
    ):
        windrow.read_images(tmp_path, size=size).decode_images("image", size=4)
