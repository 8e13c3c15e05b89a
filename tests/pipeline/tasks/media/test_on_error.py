"""on_error= of decode_images: rows that cannot be decoded become null or are left out; the others stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import windrow
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
    for row, pixels in zip(found["row"], found["image"], strict=True):
        assert (pixels is None) if row == 1 else np.array_equal(pixels, whole[row])


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
