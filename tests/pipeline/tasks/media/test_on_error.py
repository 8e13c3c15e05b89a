"""on_error= of decode_images: rows that cannot be decoded become null or are left out; the others stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import windrow
from tests.pipeline.tasks.media.images import encode
from tests.pipeline.tasks.media.test_decode_images import IMAGES, ROWS, broken, one_block, table
from windrow.core.errors import PlanError, TransformError


@pytest.mark.parametrize("size", [None, 8])
def test_images_that_cannot_be_decoded_become_null_or_are_left_out_by_choice(size: int | None) -> None:
    good = [0, 2, 4]
    expected = one_block().decode_images("image", size=size).take_batch(4)["image"]
    null = broken().decode_images("image", size=size, on_error="null").to_arrow()
    assert null["row"].to_pylist() == list(range(5))
    assert null["image"].is_valid().to_pylist() == [row in good for row in range(5)]
    dropped = broken().decode_images("image", size=size, on_error="drop")
    assert dropped.count() == 3
    batch = dropped.take_batch(5)
    assert batch["row"].tolist() == good
    for pixels, row in zip(batch["image"], [0, 1, 3], strict=True):
        assert np.array_equal(pixels, expected[row])
    beside = broken().decode_images("image", size=size, on_error="drop", output_column="pixels").to_arrow()
    assert beside["image"].to_pylist() == [IMAGES[0], IMAGES[1], IMAGES[3]]


@pytest.mark.parametrize("on_error", ["null", "drop"])
def test_rows_beside_one_that_cannot_be_decoded_keep_their_random_crops(on_error: Any) -> None:
    values = [IMAGES[0], b"no image", *IMAGES[2:]]
    rows = pa.table({"image": pa.array(values, pa.binary()), "row": np.arange(ROWS)})
    options: dict[str, Any] = {"size": 8, "crop": "random_resized", "flip": 0.5}
    made = windrow.from_arrow(rows).options(executor="threads")
    found = made.decode_images("image", **options, on_error=on_error).take_batch(ROWS)
    whole = one_block().decode_images("image", **options).take_batch(ROWS)["image"]
    assert found["row"].tolist() == [row for row in range(ROWS) if on_error == "null" or row != 1]
    for row, pixels in zip(found["row"], found["image"], strict=True):
        assert (pixels is None) if row == 1 else np.array_equal(pixels, whole[row])


@pytest.mark.parametrize(("gap", "differs"), [(None, True), (2.0, False)])
def test_crops_are_others_in_each_epoch_unless_they_can_decide_which_rows_there_are(
    gap: float | None, differs: bool
) -> None:
    rows = pa.table({"image": pa.array([b"no image", *IMAGES], pa.binary()), "row": np.arange(-1, ROWS)})
    made = windrow.from_arrow(rows).options(executor="threads")
    made = made.decode_images("image", size=8, crop="random_resized", on_error="drop", reducing_gap=gap)
    epochs = [
        {
            row: pixels.tobytes()
            for batch in epoch.iter_batches()
            for row, pixels in zip(batch["row"], batch["image"], strict=True)
        }
        for epoch in made.window().repeat(2).random_shuffle_each_window(seed=3).iterator().iter_epochs()
    ]
    assert epochs[0].keys() == epochs[1].keys() == set(range(ROWS))
    assert (epochs[0] != epochs[1]) == differs


def test_random_numbers_before_rows_are_left_out_are_the_same_in_each_epoch() -> None:
    rows = pa.table({"image": pa.array(IMAGES, pa.binary())})

    def draw(batch: Any, rng: Any) -> Any:
        return {**batch, "drawn": rng.random()}

    made = windrow.from_arrow(rows).options(executor="threads").map_batches(draw, rng=True)
    made = made.decode_images("image", size=8, on_error="drop")
    first, second = (
        sorted(drawn for batch in epoch.iter_batches() for drawn in batch["drawn"])
        for epoch in made.window().repeat(2).random_shuffle_each_window(seed=3).iterator().iter_epochs()
    )
    assert first == second


def test_the_first_row_of_a_process_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        broken().decode_images("image", size=8, on_error="null", output_column="logged").to_arrow()
    (record,) = [each for each in caplog.records if "on_error" in each.message]
    assert record.levelname == "WARNING"
    assert "a row gets null" in record.message
    assert "column 'image' is not an image" in record.message


def test_only_bytes_are_at_fault_for_a_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = windrow.from_items([{"image": str(tmp_path / "none.jpg")}])
    with pytest.raises(TransformError, match=r"row 0 of its batch.*none\.jpg"):
        missing.decode_images("image", size=8, on_error="null").take_batch()
    one = windrow.from_arrow(table().slice(0, 1))

    def lacks_decoder(*args: Any) -> Any:
        raise OSError("decoder jpeg not available")

    with monkeypatch.context() as patched:
        patched.setattr(Image, "open", lacks_decoder)
        with pytest.raises(TransformError, match="this Pillow cannot decode"):
            one.decode_images("image", size=8, on_error="drop").take_batch()
    deep = encode(Image.fromarray(np.full((4, 4), 40_000, np.uint16)), "PNG")
    with pytest.raises(TransformError, match="give another mode="):
        windrow.from_items([{"image": deep}]).decode_images("image", size=8, on_error="drop").take_batch()
    nothing = windrow.from_arrow(pa.table({"image": pa.array([b"none"] * 3, pa.binary())}))
    assert nothing.decode_images("image", size=8, on_error="drop").count() == 0
    assert nothing.decode_images("image", on_error="drop").count() == 0


def test_rows_are_left_out_only_before_the_shuffle() -> None:
    pipe = broken().window().random_shuffle_each_window(seed=1)
    with pytest.raises(PlanError, match="positions of rows are already fixed: call it before the shuffle"):
        pipe.decode_images("image", size=8, on_error="drop")
    batches = list(pipe.decode_images("image", size=8, on_error="null").iter_batches(batch_size=5))
    assert sorted(row for batch in batches for row in batch["row"][[x is None for x in batch["image"]]]) == [
        1,
        3,
    ]
    with pytest.raises(PlanError, match="on_error='skip' must be one of 'raise', 'null', 'drop'"):
        broken().decode_images("image", on_error="skip")  # type: ignore[arg-type]


def test_nulls_are_not_among_the_rows_that_fail(tmp_path: Path) -> None:
    made = broken().decode_images("image", size=8, on_error="null")
    made.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    assert windrow.read_parquet(tmp_path / "out").to_arrow()["image"].null_count == 2


@pytest.mark.parametrize("size", [None, 8])
def test_a_block_without_a_row_that_can_be_decoded_fits_the_others(size: int | None, tmp_path: Path) -> None:
    rows = pa.table({"image": pa.array([b"none", b"none", *IMAGES], pa.binary())})
    made = windrow.from_arrow(rows, target_block_bytes=10).options(executor="threads")
    made = made.decode_images("image", size=size, on_error="drop")
    assert sum(len(batch["image"]) for batch in made.iter_batches()) == ROWS
    made.write_parquet(tmp_path / "out")
    assert windrow.read_parquet(tmp_path / "out").count() == ROWS
    shuffled = made.window(blocks_per_window=3).random_shuffle_each_window(seed=1)
    assert sum(len(batch["image"]) for batch in shuffled.iter_batches()) == ROWS
