"""HDF5 files and Zarr stores in object storage, through both S3 clients."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pytest

import windrow
from tests.io.files import S3
from tests.io.s3.conftest import BUCKET, STYLES, options_of


@pytest.fixture(scope="module")
def scenes(s3: S3) -> Iterator[str]:
    """The same rows as an HDF5 file and as a Zarr store with shards, some of whose chunks are missing."""
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    folder = s3.directory / BUCKET
    folder.mkdir(exist_ok=True)
    image = np.zeros((200, 8, 8), np.uint8)
    image[:150] = np.arange(150, dtype=np.uint8)[:, None, None]
    with h5py.File(folder / "scenes.h5", "w") as file:
        file.create_dataset("image", data=image, chunks=(10, 8, 8), compression="gzip")
        file["x"] = np.arange(200)
    group = zarr.create_group(str(folder / "scenes.zarr"))
    made = group.create_array("image", shape=image.shape, dtype="u1", chunks=(10, 8, 8), shards=(50, 8, 8))
    made[:150] = image[:150]
    group.create_array("x", data=np.arange(200), chunks=(30,))
    yield f"s3://{BUCKET}/scenes"
    shutil.rmtree(folder)


@pytest.mark.parametrize("style", STYLES)
def test_rows_are_those_of_local_files(s3: S3, scenes: str, style: str) -> None:
    if style == "s3fs":
        pytest.importorskip("s3fs")
    options = options_of(style, s3.endpoint)
    datasets = (
        windrow.read_hdf5(f"{scenes}.h5", storage_options=options),
        windrow.read_zarr(f"{scenes}.zarr", storage_options=options, target_block_bytes="4KiB"),
    )
    for ds in datasets:
        assert S3.secret not in repr(ds)
        pipe = ds.repeat(1).random_shuffle_each_window(seed=1).options(executor="threads", progress=False)
        with pipe.iterator() as shard:
            batches = list(shard.iter_batches(batch_size=64))
        x = np.concatenate([batch["x"] for batch in batches])
        assert sorted(x.tolist()) == list(range(200))
        image = np.concatenate([batch["image"] for batch in batches])
        np.testing.assert_array_equal(image[:, 3, 3], np.where(x < 150, x, 0))
    with pytest.raises(windrow.SourceError, match="nothing is not a Zarr store"):
        windrow.read_zarr(f"s3://{BUCKET}/nothing", storage_options=options)
