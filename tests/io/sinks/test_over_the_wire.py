"""Writing to an S3 server through the public methods."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from tests.io.files import S3, make_bucket, write
from windrow.core.errors import PlanError, SourceError

pytest.importorskip("s3fs")


@pytest.mark.parametrize("method", ["parquet", "webdataset"])
def test_files_on_s3_equal_local_files(s3: S3, tmp_path: Path, method: str) -> None:
    table = pa.table({"x": range(60), "k": [f"k{row % 3}" for row in range(60)]})
    stored = write(tmp_path / "in.parquet", table, row_group_size=20)
    names = ["x.cls", "k"] if method == "webdataset" else ["x", "k"]
    data = windrow.read_parquet(stored, target_block_bytes=1).options(executor="threads")
    data = data.map_batches(lambda batch: dict(zip(names, batch.values(), strict=True)))
    put, url = getattr(data, f"write_{method}"), f"s3://sink/{method}"
    options: dict[str, Any] = {"storage_options": s3.storage_options, "partition_by": "k"}
    local = put(tmp_path / "out", partition_by="k")
    for mode in ("error", "overwrite"):
        written = put(url, mode=mode, **options)
        assert [file.sha256 for file in written.files] == [file.sha256 for file in local.files]
    folder = s3.directory / "sink" / method
    assert len(list(folder.rglob("part-*"))) == len(written.files)
    for text in (repr(written), (folder / written.manifest).read_text()):
        assert not any(secret in text for secret in (s3.key, s3.secret))
    if method == "parquet":
        # rclone sends the checksum of the whole file with a range of it
        ranges = {**s3.storage_options, "config_kwargs": {"response_checksum_validation": "when_required"}}
        found = windrow.read_parquet(url, storage_options=ranges)
        assert sorted(row["x"] for row in found.take(100)) == list(range(60))
    with pytest.raises(SourceError, match="create the bucket") as caught:
        put("s3://missing/deep", **options)
    text = "".join(traceback.format_exception(caught.value))
    assert not any(secret in text for secret in (s3.key, s3.secret))


@pytest.mark.parametrize("given", ["filesystem", "options"])
def test_writing_with_arrows_s3_client(memory_s3: str, tmp_path: Path, given: str) -> None:
    bucket = f"by-{given}"
    filesystem = make_bucket(memory_s3, bucket)
    names = {"access_key": S3.key, "secret_key": S3.secret, "region": "us-east-1"}
    options = {**names, "endpoint_override": memory_s3.removeprefix("http://"), "scheme": "http"}
    where: dict[str, Any] = (
        {"filesystem": filesystem} if given == "filesystem" else {"storage_options": options}
    )
    url = f"{bucket}/out" if given == "filesystem" else f"s3://{bucket}/out"
    ds = windrow.range(500, block_rows=60)
    for mode in ("error", "overwrite"):
        written = ds.write_parquet(url, mode=mode, **where)
    local = ds.write_parquet(tmp_path / "out")
    assert [file.sha256 for file in written.files] == [file.sha256 for file in local.files]
    found = windrow.read_parquet(url, **where)
    with pytest.raises(PlanError, match="would replace what is being read"):
        found.write_parquet(url, mode="overwrite", **where)
    assert found.to_numpy()["id"].tolist() == list(range(500))
    assert not any(secret in repr(written) + repr(found) for secret in (S3.key, S3.secret))
    with pytest.raises(SourceError, match="bucket") as caught:
        ds.write_parquet(url.replace(bucket, "missing"), **where)
    text = "".join(traceback.format_exception(caught.value))
    assert not any(secret in text for secret in (S3.key, S3.secret))
