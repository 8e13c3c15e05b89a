"""read_images returns what Pillow decodes: tensors of one size, or of several."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

import windrow
from tests.io.formats.stored import CountingStore, read_blocks, same_order_as_parquet, source_of
from tests.laws.examples import examples
from windrow.core.source import CorruptBlockError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'windrow[images]'")

# pixel modes, each with a lossless format
KEPT = {
    "L": "png",
    "LA": "png",
    "RGB": "png",
    "RGBA": "png",
    "CMYK": "tiff",
    "I;16": "png",
    "I": "tiff",
    "F": "tiff",
}
TYPES: dict[str, Any] = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
CHANNELS = {"LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}


def pixels(mode: str, height: int, width: int, seed: int = 0) -> NDArray[Any]:
    bits = np.random.Generator(np.random.PCG64(seed))
    shape = (height, width, CHANNELS[mode]) if mode in CHANNELS else (height, width)
    return bits.integers(0, 255, shape).astype(TYPES.get(mode, np.uint8))


def write_image(path: Path, image: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@pytest.mark.parametrize("mode", list(KEPT))
def test_every_mode_is_decoded_with_and_without_size(tmp_path: Path, mode: str) -> None:
    saved = [pixels(mode, 5 + number, 4, number) for number in range(3)]
    for number, image in enumerate(saved):
        array = Image.frombytes(mode, image.shape[1::-1], image.tobytes())
        array.save(tmp_path / f"{number}.{KEPT[mode]}")
    rows = windrow.read_images(tmp_path, mode=mode).take()
    for row, image in zip(rows, saved, strict=True):
        np.testing.assert_array_equal(row["image"], image)
        assert row["image"].dtype == image.dtype
    batch = windrow.read_images(tmp_path / f"0.{KEPT[mode]}", mode=mode, size=(5, 4)).take_batch()
    np.testing.assert_array_equal(batch["image"], saved[0][None])
    assert batch["image"].dtype == saved[0].dtype


@examples(25)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8),
    st.sampled_from(["png", "jpg", "bmp", "gif", "webp", "tiff"]),
    st.sampled_from([None, (3, 5), (8, 2)]),
    st.integers(1, 2000),
)
def test_images_equal_those_of_pillow(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[int, int]],
    suffix: str,
    size: tuple[int, int] | None,
    block_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("images")
    expected = []
    for number, shape in enumerate(sizes):
        path = folder / f"{number}.{suffix}"
        Image.fromarray(pixels("RGB", *shape, number)).save(path)
        with Image.open(path) as stored:
            image = stored.convert("RGB")
            expected.append(
                np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR) if size else image)
            )
    ds = windrow.read_images(folder, size=size, target_block_bytes=block_bytes)
    assert ds.count() == len(sizes)
    assert read_blocks(ds).num_rows == len(sizes)
    found = ds.take_batch(len(sizes))["image"]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_images_of_one_size_are_tensors(tmp_path: Path) -> None:
    for number in range(4):
        Image.fromarray(pixels("RGB", 6 + number, 5)).save(tmp_path / f"{number}.png")
    ds = windrow.read_images(tmp_path, size=(4, 4))
    assert ds.schema() == pa.schema([("image", pa.fixed_shape_tensor(pa.uint8(), (4, 4, 3)))])
    assert source_of(ds).blocks.bytes_exact
    assert source_of(ds).blocks.memory_bytes.sum() == 4 * 48
    torch = pytest.importorskip("torch")
    (batch,) = ds.iter_torch_batches(batch_size=4)
    assert (batch["image"].shape, batch["image"].dtype) == ((4, 4, 4, 3), torch.uint8)
    (batch,) = windrow.read_images(tmp_path).iter_torch_batches(batch_size=4)
    assert [tuple(image.shape) for image in batch["image"]] == [(6 + number, 5, 3) for number in range(4)]


def test_headers_of_a_sample_estimate_memory(tmp_path: Path) -> None:
    for number in range(30):
        Image.fromarray(np.full((20 + number % 3, 20, 3), number, np.uint8)).save(
            tmp_path / f"{number:02}.png"
        )
    told = int(source_of(windrow.read_images(tmp_path, columns=["image"])).blocks.memory_bytes.sum())
    assert told == pytest.approx(30 * 21 * 20 * 3, rel=0.2)
    same = tmp_path / "same"
    for number in range(30):
        write_image(same / f"{number:02}.png", pixels("RGB", 9, 9, number))
    assert int(source_of(windrow.read_images(same, columns=["image"])).blocks.memory_bytes.sum()) == 30 * 243


def png(height: int, width: int, seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels("RGB", height, width, seed)).save(file, "png")
    return file.getvalue()


def test_planning_reads_few_files() -> None:
    store = CountingStore()
    store.pipe({f"/d/{number:03}.png": png(4, 4, number) for number in range(100)})
    store.forget()
    sized = windrow.read_images("/d", filesystem=store, size=(4, 4))
    assert (store.looks, store.reads) == (2, 1)
    store.forget()
    windrow.read_images("/d", filesystem=store)
    assert (store.looks, store.reads) == (2, 16)
    assert len(sized.take(200)) == 100


def test_classes_and_filters(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        for number in range(3):
            write_image(tmp_path / kind / f"{number}.png", pixels("RGB", 3, 3))
    ds = windrow.read_images(tmp_path, size=(3, 3), directory_column="label", include_paths=True)
    assert ds.take_batch()["label"].tolist() == ["cat"] * 3 + ["dog"] * 3
    dogs = windrow.read_images(
        tmp_path, size=(3, 3), directory_column="label", filter=pc.field("label") == "dog", columns=["label"]
    )
    assert (dogs.count(), dogs.take()) == (3, [{"label": "dog"}] * 3)


def test_order_equals_that_of_parquet(tmp_path: Path) -> None:
    for number in range(20):
        write_image(tmp_path / "images" / f"{number:02}.png", pixels("RGB", 4, 4, number))
    same_order_as_parquet(
        windrow.read_images(tmp_path / "images", size=(2, 2), target_block_bytes=40), tmp_path
    )
    same_order_as_parquet(windrow.read_images(tmp_path / "images", target_block_bytes=150), tmp_path)


@pytest.mark.parametrize("size", [None, (3, 3)])
@pytest.mark.parametrize(
    "content", [b"", b"no image", png(40, 40, 1)[:900], png(9, 9, 0).replace(b"IDAT", b"IDXX")]
)
def test_error_names_the_corrupt_image(tmp_path: Path, content: bytes, size: tuple[int, int] | None) -> None:
    for number in range(40):
        write_image(tmp_path / f"{number:02}.png", pixels("RGB", 3, 3))
    # not one of the sampled files
    (tmp_path / "01.png").write_bytes(content)
    ds = windrow.read_images(tmp_path, size=size)
    with pytest.raises(CorruptBlockError, match=rf"{tmp_path}/01\.png"):
        ds.take(100)
    with pytest.raises(windrow.SourceError, match=rf"{tmp_path}/01\.png.*(not an image|corrupt)"):
        windrow.read_images(tmp_path / "01.png", size=size).take()


def test_16_bit_images_are_not_truncated(tmp_path: Path) -> None:
    saved = np.array([[0, 300], [40_000, 65_535]], np.uint16)
    Image.frombytes("I;16", (2, 2), saved.tobytes()).save(tmp_path / "deep.png")
    with pytest.raises(
        windrow.SourceError,
        match=r"deep\.png is of mode 'I(;16)?', which cannot be converted to 'RGB', since its",
    ):
        windrow.read_images(tmp_path, size=(2, 2)).take()
    deep = windrow.read_images(tmp_path, size=(2, 2), mode="I;16").take_batch()["image"]
    np.testing.assert_array_equal(deep[0], saved)


def test_wrong_arguments_raise() -> None:
    for size in ((3,), (0, 3), "33", 0, 2.5, (2.5, 3)):
        with pytest.raises(windrow.PlanError, match=r"must be \(height, width\)"):
            windrow.read_images("x", size=size)  # type: ignore[arg-type]
    with pytest.raises(windrow.PlanError, match="mode='P' must be one of"):
        windrow.read_images("x", mode="P")


def test_one_number_is_both_sides(tmp_path: Path) -> None:
    Image.new("RGB", (5, 4)).save(tmp_path / "0.png")
    assert source_of(windrow.read_images(tmp_path, size=3)).identity() == (
        source_of(windrow.read_images(tmp_path, size=(3, 3))).identity()
    )


def test_missing_pillow_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(windrow.PlanError, match=r'pip install "windrow\[images\]"'):
        windrow.read_images("x")


def test_manifest_is_bound_to_size_and_mode(tmp_path: Path) -> None:
    write_image(tmp_path / "0.png", pixels("RGB", 3, 3))
    ds = windrow.read_images(tmp_path, size=(3, 3))
    manifest = tmp_path.parent / f"{tmp_path.name}.manifest"
    ds.save_manifest(manifest)
    again = windrow.read_images(None, size=(3, 3), manifest=manifest)
    np.testing.assert_array_equal(again.take_batch()["image"], ds.take_batch()["image"])
    assert source_of(again).identity() == source_of(ds).identity()
    assert source_of(windrow.read_images(tmp_path, size=(4, 4))).identity() != source_of(ds).identity()
    with pytest.raises(windrow.PlanError, match=r"made with size=\(3, 3\), mode='RGB'"):
        windrow.read_images(None, size=(4, 4), manifest=manifest)


@examples(10)
@given(npst.arrays(np.uint8, st.tuples(st.integers(1, 20), st.integers(1, 20), st.just(3))))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, image: NDArray[np.uint8]) -> None:
    folder = tmp_path_factory.mktemp("image")
    Image.fromarray(image).save(folder / "x.png")
    np.testing.assert_array_equal(windrow.read_images(folder).take()[0]["image"], image)
    sized = windrow.read_images(folder, size=image.shape[:2]).take_batch()["image"]
    np.testing.assert_array_equal(sized[0], image)


@pytest.mark.parametrize("size", [None, (3, 3)])
def test_image_beyond_the_limit_of_pillow_says_so(
    tmp_path: Path, size: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        write_image(tmp_path / f"{number:02}.png", pixels("RGB", 3, 3))
    # not one of the sampled files
    write_image(tmp_path / "01.png", pixels("RGB", 20, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    expected = (
        r"01\.png has 600 pixels, more than Pillow decodes: twice PIL\.Image\.MAX_IMAGE_PIXELS, which is 100: "
        "scale .*, exclude it, or raise"
    )
    with pytest.raises(windrow.SourceError, match=expected) as raised:
        windrow.read_images(tmp_path, size=size).take(100)
    assert not isinstance(raised.value, CorruptBlockError)
    assert "corrupt" not in str(raised.value)
    with pytest.raises(windrow.SourceError, match=expected):
        windrow.read_images(tmp_path / "01.png", size=size)
    # between the limit and its double, Pillow warns
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    with pytest.raises(
        windrow.SourceError, match=r"01\.png has 600 pixels, more than .*MAX_IMAGE_PIXELS, which is 400"
    ):
        windrow.read_images(tmp_path / "01.png", size=size)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert windrow.read_images(tmp_path, size=size).count() == 40


def test_image_in_a_struct_that_a_function_decodes_names_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windrow.from_items([{"image": {"bytes": png(20, 30, 0), "path": None}}]).write_parquet(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)

    def decode(row: dict[str, Any]) -> dict[str, Any]:
        return {"image": np.asarray(Image.open(io.BytesIO(row["image"]["bytes"])))}

    with pytest.raises(
        windrow.TransformError, match=r"600 pixels.*too large for Pillow.*raise PIL\.Image\.MAX_IMAGE_PIXELS"
    ):
        windrow.read_parquet(tmp_path).map(decode).take()
