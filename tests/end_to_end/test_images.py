"""Batch inference on images: read, decode, scale, run a model on a pool of actors, write, and read back."""

from __future__ import annotations

import cProfile
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.conftest import REPOSITORY
from tests.end_to_end.image_jobs import SIDE, Model, check_answers, decode_row, loop_answers, write_images
from tests.pipeline.tasks.media.images import encode, picture
from windrow.pipeline.delivery.batch_formats import to_numpy_batches
from windrow.pipeline.delivery.tensors.column_tensors import TensorSpec, tensor_batches
from windrow.pipeline.delivery.tensors.ragged import RaggedSpec
from windrow.pipeline.tasks.transforms import apply_maps

pytestmark = pytest.mark.timeout(240)

IMAGES = 240
# so that the images are several blocks
BLOCK_BYTES = 10_000


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[str, float]]]:
    folder = tmp_path_factory.mktemp("images")
    return folder, loop_answers(write_images(folder, IMAGES))


def _decoded(folder: Path, reader: str) -> windrow.Dataset:
    if reader == "read_images":
        return windrow.read_images(
            folder, size=(SIDE, SIDE), include_paths=True, target_block_bytes=BLOCK_BYTES
        )
    files = windrow.read_binary_files(folder, include_paths=True, target_block_bytes=BLOCK_BYTES)
    return files.map(decode_row)


@pytest.mark.parametrize(
    "reader", ["read_images", pytest.param("read_binary_files", marks=pytest.mark.nightly)]
)
@pytest.mark.ray_at_night
def test_a_pool_answers_for_every_image_once(
    images: tuple[Path, dict[str, tuple[str, float]]], reader: str, executor: str, tmp_path: Path
) -> None:
    folder, expected = images
    decoded = _decoded(folder, reader).options(executor=executor)
    assert decoded.num_blocks() > 1
    answers = decoded.map_batches(Model, batch_size=16, compute=windrow.ActorPool(size=2), num_cpus=0.5)
    if reader == "read_images":
        written = answers.write_json(tmp_path / "out")
        back = windrow.read_json(tmp_path / "out")
    else:
        written = answers.write_parquet(tmp_path / "out")
        back = windrow.read_parquet(tmp_path / "out")
    assert written.rows == IMAGES
    rows = back.take(2 * IMAGES)
    check_answers(rows, expected)
    assert max(row["rows"] for row in rows) == 16
    processes = {row["process"] for row in rows}
    assert os.getpid() not in processes
    assert len(processes) <= 2


@pytest.mark.nightly
@pytest.mark.ray
def test_models_see_the_gpu_that_they_reserve(
    images: tuple[Path, dict[str, tuple[str, float]]], tmp_path: Path
) -> None:
    folder, expected = images
    script = Path(__file__).with_name("gpu_script.py")
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(tmp_path)],
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fractions = windrow.read_json(tmp_path / "fractions").take(2 * IMAGES)
    whole = windrow.read_json(tmp_path / "whole" / "epoch=0").take(2 * IMAGES)
    for rows, most in ((fractions, 2), (whole, 1)):
        check_answers(rows, expected)
        assert {int(row["gpu"]) for row in rows} == {0}
        assert len({row["process"] for row in rows}) <= most


@pytest.mark.ray_at_night
def test_images_that_cannot_be_decoded_are_written_aside(
    images: tuple[Path, dict[str, tuple[str, float]]], executor: str, tmp_path: Path
) -> None:
    folder, expected = images
    bad = [tmp_path / "bad" / f"{number}.jpg" for number in range(3)]
    bad[0].parent.mkdir()
    for path in bad:
        path.write_bytes(b"not an image")
    files = windrow.read_binary_files(
        [folder, bad[0].parent], include_paths=True, target_block_bytes=BLOCK_BYTES
    )
    answers = files.options(executor=executor).map(decode_row).map_batches(Model, batch_size=16)
    with pytest.warns(RuntimeWarning, match="failed for 3 rows"):
        written = answers.write_parquet(tmp_path / "out", mode="resume", failed_rows=tmp_path / "failed")
    assert (written.rows, written.failed_rows) == (IMAGES, 3)
    check_answers(windrow.read_parquet(tmp_path / "out").take(2 * IMAGES), expected)
    failed: list[dict[str, Any]] = windrow.read_parquet(tmp_path / "failed").take()
    assert sorted(row["path"] for row in failed) == [str(path) for path in bad]
    assert all("UnidentifiedImageError" in row["windrow_error"] for row in failed)
    assert answers.write_parquet(tmp_path / "out", mode="resume", failed_rows=tmp_path / "failed") == written


def _stored_images() -> pa.Table:
    images = [encode(picture(row)) for row in range(60)]
    return pa.table({"image": pa.array(images, pa.binary()), "row": np.arange(60)})


@pytest.mark.ray_at_night
def test_decoded_images_are_those_of_threads_on_every_executor(executor: str) -> None:
    def rows(on: str, shards: int) -> list[dict[int, Any]]:
        pipe = windrow.from_arrow(_stored_images(), target_block_bytes=8_000).window(blocks_per_window=2)
        pipe = pipe.repeat(2).random_shuffle_each_window(seed=7).options(executor=on)
        found: list[dict[int, Any]] = [{}, {}]
        for shard in pipe.decode_images("image", size=8, crop="random_resized", flip=0.5).split(shards):
            for epoch, reader in enumerate(shard.iter_epochs()):
                for batch in reader.iter_batches(batch_size=5):
                    found[epoch] |= dict(zip(batch["row"].tolist(), batch["image"].tolist(), strict=True))
        return found

    assert rows(executor, 2) == rows("threads", 1)


@pytest.mark.parametrize("format", ["numpy", "torch"])
def test_decoded_images_reach_batches_without_work_for_each_row(format: str) -> None:
    (stage,) = windrow.from_arrow(_stored_images()).decode_images("image", size=8)._plan.maps
    calls = []
    # the first call imports torch
    for rows in (6, 6, 60):
        (batch,) = apply_maps(_stored_images().slice(0, rows), [stage], "here").to_batches()
        profile = cProfile.Profile()
        profile.enable()
        made = list(_batches(batch, format))
        profile.disable()
        assert len(made) == 1
        assert made[0]["image"].shape == (rows, 8, 8, 3)
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    assert calls[2] <= calls[1] < 400


def _batches(batch: pa.RecordBatch, format: str) -> Iterator[Any]:
    if format == "numpy":
        return to_numpy_batches(batch, 64)
    spec = TensorSpec(None, None, None, "numpy", None, RaggedSpec(None))
    return tensor_batches(batch, 64, spec, spec.placement.mover())
