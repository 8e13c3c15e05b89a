"""The functions that read files, by how the names of these end."""

from __future__ import annotations

SUFFIXES: dict[str, tuple[str, ...]] = {
    "read_arrow": (".arrow", ".feather", ".ipc"),
    "read_avro": (".avro",),
    "read_csv": (".csv", ".tsv"),
    "read_hdf5": (".h5", ".hdf5"),
    "read_images": (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"),
    "read_json": (".json", ".jsonl", ".ndjson"),
    "read_lance": (".lance",),
    "read_mds": (".mds",),
    "read_numpy": (".npy", ".npz"),
    "read_orc": (".orc",),
    "read_parquet": (".parquet", ".parq", ".pq"),
    "read_text": (".txt",),
    "read_tfrecords": (".tfrec", ".tfrecord", ".tfrecords"),
    "read_webdataset": (".tar", ".tgz"),
    "read_zarr": (".zarr",),
}
